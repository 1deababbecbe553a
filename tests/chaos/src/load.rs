//! The load: a sane client sends a key until it has a definite answer; twins, cancels, people who
//! hang up, keys used again, observers, restocks, and requests by Kafka.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use contracts::{Topic, TopicNames, envelope};
use http::Method;
use messaging::admin::Producer;
use platform::clock;
use serde_json::{Value, json};

use crate::{
    http::Http,
    ledger::{Cancel, Ledger, Seen},
    plan::{ARTICLES, Article, Beside, Planned, TIGHT, plan},
    plant::{OPERATOR_KEY, SHOP_KEY},
};

/// Clients at a time.
const CLIENTS: usize = 64;
/// How long one key is tried while the load goes on; what is left is asked again at the end.
const PATIENCE: Duration = Duration::from_secs(20);
/// The source of requests by Kafka.
pub const SOURCE: &str = "chaos";

/// Where and how fast.
#[derive(Debug)]
pub struct Load {
    /// Of all choices.
    pub seed: u64,
    /// New keys a second.
    pub rate: u32,
    /// The order services.
    pub urls: Vec<String>,
    /// Kafka.
    pub brokers: String,
    /// What was seen.
    pub ledger: Arc<Ledger>,
    /// Time to live of orders that last, in seconds.
    pub long_ttl: i64,
    /// Time to live of the others.
    pub short_ttl: i64,
    /// The number of the next key.
    pub next: AtomicU64,
    /// Set when no new key is to be sent.
    pub over: AtomicBool,
}

impl Load {
    /// Puts everything on sale.
    ///
    /// # Errors
    /// It is refused.
    pub async fn open(&self) -> anyhow::Result<()> {
        let mut operator = Http::new(&self.urls[0], OPERATOR_KEY)?;
        for article in ARTICLES {
            let mut tries = 0;
            while let Err(error) = self.put(&mut operator, article).await {
                tries += 1;
                anyhow::ensure!(tries < 30, "{error:#}");
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
        Ok(())
    }

    async fn put(&self, operator: &mut Http, article: Article) -> anyhow::Result<()> {
        let ttl = if article.lasts {
            self.long_ttl
        } else {
            self.short_ttl
        };
        put_sku(operator, article.sku, article.on_hand, ttl, article.limit).await
    }

    /// Everything at once, until [`Load::over`] is set and the last client is done.
    pub async fn run(self: Arc<Self>) {
        let begun = clock::monotonic();
        let clients = (0..CLIENTS).map(|_| tokio::spawn(Arc::clone(&self).client(begun)));
        let clients: Vec<_> = clients.collect();
        let beside = [
            tokio::spawn(Arc::clone(&self).restock()),
            tokio::spawn(Arc::clone(&self).observe()),
            tokio::spawn(Arc::clone(&self).ask_by_kafka()),
        ];
        for task in clients.into_iter().chain(beside) {
            if let Err(error) = task.await {
                self.ledger
                    .inner()
                    .broken
                    .push(format!("the load itself: {error}"));
            }
        }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    async fn client(self: Arc<Self>, begun: Instant) {
        let mut https: Vec<Http> = self
            .urls
            .iter()
            .filter_map(|url| Http::new(url, SHOP_KEY).ok())
            .collect();
        while !self.is_over() {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let offset = Duration::from_secs_f64(
                f64::from(u32::try_from(number).unwrap_or(u32::MAX)) / f64::from(self.rate),
            );
            tokio::time::sleep_until((begun + offset).into()).await;
            if self.is_over() {
                return;
            }
            let planned = plan(self.seed, number, self.urls.len());
            self.one(&mut https, planned).await;
        }
    }

    async fn one(self: &Arc<Self>, https: &mut [Http], planned: Planned) {
        let body = Bytes::from(planned.body.to_string());
        let twin = (planned.beside == Beside::Twin).then(|| {
            let (load, body, planned) = (Arc::clone(self), body.clone(), planned.clone());
            tokio::spawn(async move {
                let Some(url) = load.urls.get((planned.replica + 1) % load.urls.len()) else {
                    return;
                };
                if let Ok(http) = Http::new(url, SHOP_KEY) {
                    let place = (planned.replica + 1) % load.urls.len();
                    load.until_definite(&mut [http], &planned.key, planned.what, place, &body)
                        .await;
                }
            })
        });
        if planned.beside == Beside::HangUp {
            let (sent, within) = (clock::monotonic(), Duration::from_millis(5));
            let http = &mut https[planned.replica];
            let answer = http
                .send_within(
                    within,
                    Method::POST,
                    "/v1/orders",
                    Some(&planned.key),
                    Some(body.clone()),
                )
                .await;
            let times = (sent, clock::monotonic());
            self.ledger.note(
                &planned.key,
                planned.what,
                planned.replica,
                times,
                answer.ok().as_ref(),
            );
        }
        let seen = self
            .until_definite(https, &planned.key, planned.what, planned.replica, &body)
            .await;
        match (planned.beside, &seen) {
            (Beside::Cancel(pause), Some(Seen::Accepted { order, .. })) => {
                tokio::time::sleep(Duration::from_millis(pause)).await;
                self.cancel(&mut https[planned.replica], order).await;
            }
            (Beside::Reuse, Some(Seen::Accepted { .. })) => {
                self.reuse(&mut https[planned.replica], &planned).await;
            }
            (Beside::Again, _) => {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let other = (planned.replica + 1) % https.len().max(1);
                self.until_definite(https, &planned.key, planned.what, other, &body)
                    .await;
            }
            _ => {}
        }
        if let Some(twin) = twin
            && let Err(error) = twin.await
        {
            self.ledger.inner().broken.push(format!("a twin: {error}"));
        }
    }

    /// Sends a key until the answer is definite or patience ends.
    pub async fn until_definite(
        &self,
        https: &mut [Http],
        key: &str,
        what: &'static str,
        first: usize,
        body: &Bytes,
    ) -> Option<Seen> {
        let begun = clock::monotonic();
        let mut at = first;
        while begun.elapsed() < PATIENCE {
            // One connection alone is one to the replica that was meant.
            let alone = https.len() == 1;
            let replica = if alone {
                first
            } else {
                at % https.len().max(1)
            };
            let http = https.get_mut(if alone { 0 } else { replica })?;
            let sent = clock::monotonic();
            let answer = http
                .send_within(
                    crate::http::WITHIN,
                    Method::POST,
                    "/v1/orders",
                    Some(key),
                    Some(body.clone()),
                )
                .await
                .ok();
            let times = (sent, clock::monotonic());
            let seen = self.ledger.note(key, what, replica, times, answer.as_ref());
            match seen {
                Seen::Accepted { .. } | Seen::Refused(..) => return Some(seen),
                Seen::Later(..) | Seen::Unknown => {
                    if matches!(seen, Seen::Unknown) {
                        at += 1;
                    }
                    let asked = answer.and_then(|answer| answer.retry_after);
                    let pause = asked.unwrap_or(Duration::from_millis(100));
                    tokio::time::sleep(pause.min(Duration::from_secs(1))).await;
                }
            }
        }
        None
    }

    /// Cancels an order, and notes what was said.
    pub async fn cancel(&self, http: &mut Http, order: &str) {
        let path = format!("/v1/orders/{order}/cancel");
        let body = json!({ "reason": "changed my mind" });
        for _ in 0..10 {
            match http.send(Method::POST, &path, None, Some(&body)).await {
                Ok(answer) if answer.status == 200 || answer.status == 409 => {
                    self.ledger.inner().cancels.push(Cancel {
                        order: order.to_owned(),
                        status: answer.status,
                    });
                    return;
                }
                Ok(answer) if answer.status == 404 => {
                    let said = format!("cancel of accepted order {order}: 404");
                    self.ledger.inner().broken.push(said);
                    return;
                }
                _ => tokio::time::sleep(Duration::from_millis(300)).await,
            }
        }
    }

    async fn reuse(&self, http: &mut Http, planned: &Planned) {
        let mut body = planned.body.clone();
        body["customer_id"] = json!("c-somebody-else");
        let answer = http
            .send(Method::POST, "/v1/orders", Some(&planned.key), Some(&body))
            .await;
        match answer {
            Ok(answer) if answer.status == 422 => self.ledger.inner().reused += 1,
            Ok(answer) if [503, 429, 409].contains(&answer.status) => {}
            Ok(answer) => {
                let said = format!("{} with another body: {}", planned.key, answer.text());
                self.ledger.inner().broken.push(said);
            }
            Err(_) => {}
        }
    }

    /// What is tight comes back: ten units, now here, now there.
    async fn restock(self: Arc<Self>) {
        let Ok(mut operator) = Http::new(&self.urls[0], OPERATOR_KEY) else {
            return;
        };
        let mut number = 0_usize;
        while !self.is_over() {
            tokio::time::sleep(Duration::from_secs(2)).await;
            let sku = ARTICLES[TIGHT.start + number % TIGHT.len()].sku;
            let key = format!("restock-{number}");
            number += 1;
            for _ in 0..10 {
                if adjust(&mut operator, sku, 10, &key).await.is_ok() || self.is_over() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        }
    }

    /// Looks at recent orders again and again: a version never falls, an end never changes (I12).
    async fn observe(self: Arc<Self>) {
        let mut seen: std::collections::BTreeMap<String, (i64, String)> = Default::default();
        let mut https: Vec<Http> = self
            .urls
            .iter()
            .filter_map(|url| Http::new(url, SHOP_KEY).ok())
            .collect();
        let mut turn = 0;
        while !self.is_over() {
            let recent = self.recent(turn);
            for order in recent {
                turn += 1;
                let index = turn % https.len().max(1);
                let Some(http) = https.get_mut(index) else {
                    return;
                };
                let path = format!("/v1/orders/{order}");
                if let Ok(answer) = http.send(Method::GET, &path, None, None).await
                    && answer.status == 200
                {
                    self.look(&mut seen, &order, &answer.json());
                } else {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Some orders among the latest.
    fn recent(&self, turn: usize) -> Vec<String> {
        let inner = self.ledger.inner();
        let latest = inner.orders.iter().rev();
        latest.skip(turn % 7).step_by(5).take(20).cloned().collect()
    }

    fn look(
        &self,
        seen: &mut std::collections::BTreeMap<String, (i64, String)>,
        order: &str,
        json: &Value,
    ) {
        let version = json["version"].as_i64().unwrap_or(0);
        let status = json["status"].as_str().unwrap_or("").to_owned();
        let now = (version, status);
        let before = seen.insert(order.to_owned(), now.clone());
        if let Some(before) = before
            && (before.0 > now.0 || (before.0 == now.0 && before.1 != now.1))
        {
            let said = format!("{order}: {before:?}, then {now:?}");
            self.ledger.inner().backwards.push(said);
        }
    }

    /// Orders that come by Kafka, two a second.
    async fn ask_by_kafka(self: Arc<Self>) {
        let Ok(producer) = Producer::new(&self.brokers) else {
            return;
        };
        let topic = TopicNames::new("").topic(Topic::OrderRequests);
        let mut number = 0_u64;
        while !self.is_over() {
            tokio::time::sleep(Duration::from_millis(500)).await;
            number += 1;
            let article = ARTICLES[usize::try_from(number).unwrap_or(0) % 8].sku;
            let id = format!("r-{number}");
            let data = json!({
                "customer_id": format!("k-{number}"),
                "lines": [{ "sku": article, "quantity": 1 }],
                "payment_method": "card",
            });
            if send_request(&producer, &topic, &id, &data).await.is_ok() {
                self.ledger.inner().by_kafka.push(id);
            }
        }
    }
}

/// Writes an `ORDER_REQUESTED`; acknowledged when it returns.
async fn send_request(
    producer: &Producer,
    topic: &str,
    id: &str,
    data: &Value,
) -> anyhow::Result<()> {
    let kind = "ORDER_REQUESTED";
    let schema = envelope::dataschema(kind);
    let time = clock::now().to_rfc3339();
    let headers: Vec<(&str, &[u8])> = [
        (envelope::header::SPECVERSION, "1.0"),
        (envelope::header::ID, id),
        (envelope::header::SOURCE, SOURCE),
        (envelope::header::TYPE, kind),
        (envelope::header::TIME, time.as_str()),
        (envelope::header::SUBJECT, id),
        (envelope::header::DATASCHEMA, schema.as_str()),
        (envelope::header::CONTENT_TYPE, envelope::CONTENT_TYPE),
    ]
    .into_iter()
    .map(|(name, value)| (name, value.as_bytes()))
    .collect();
    let body = data.to_string();
    producer
        .send(topic, Some(id.as_bytes()), &headers, Some(body.as_bytes()))
        .await?;
    Ok(())
}

/// Puts a SKU.
///
/// # Errors
/// It is refused.
pub async fn put_sku(
    operator: &mut Http,
    sku: &str,
    on_hand: i64,
    ttl: i64,
    limit: Option<i32>,
) -> anyhow::Result<()> {
    let body = json!({
        "on_hand": on_hand, "unit_price": { "amount_minor": 12_900, "currency": "KRW" },
        "per_customer_limit": limit, "opens_at": null, "closes_at": null,
        "reservation_ttl_seconds": ttl, "waiting_room": "off",
    });
    let path = format!("/v1/skus/{sku}");
    let answer = operator.send(Method::PUT, &path, None, Some(&body)).await?;
    anyhow::ensure!(
        [200, 201].contains(&answer.status),
        "{sku}: {}",
        answer.text()
    );
    Ok(())
}

/// Adds units.
///
/// # Errors
/// It is refused, or unknown; the key may be sent again.
pub async fn adjust(operator: &mut Http, sku: &str, delta: i64, key: &str) -> anyhow::Result<()> {
    let body = json!({ "delta": delta, "reason": "restock" });
    let path = format!("/v1/skus/{sku}/adjustments");
    let answer = operator
        .send(Method::POST, &path, Some(key), Some(&body))
        .await?;
    anyhow::ensure!(answer.status == 201, "{sku}: {}", answer.text());
    Ok(())
}
