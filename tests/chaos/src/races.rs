//! Races in which both orders are right, each forced both ways again and again while faults come
//! and go. What came first is read from what became of it, never assumed.

use std::{collections::BTreeMap, sync::atomic::Ordering, time::Duration};

use contracts::{Topic, TopicNames, envelope};
use http::Method;
use messaging::admin::Producer;
use platform::clock;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    faults::{Site, crashes},
    http::Http,
    load::{adjust, put_sku},
    plant::{OPERATOR_KEY, SHOP_KEY},
};

/// The two orders of one race, and how often each was seen.
#[derive(Debug, Clone, Serialize)]
pub struct Race {
    /// `R1`.
    pub id: &'static str,
    /// In words: one before the other.
    pub title: &'static str,
    /// The first came first.
    pub first: u64,
    /// The second came first.
    pub second: u64,
    /// What was seen that may never be.
    pub wrong: Vec<String>,
}

const TITLES: &[(&str, &str)] = &[
    ("R1", "payment succeeds | order expires"),
    ("R2", "payment succeeds | buyer cancels"),
    ("R3", "payment fails | order expires"),
    ("R4", "answer of the accept | cancel"),
    ("R5", "our payment | another payment of the same order"),
    ("R6", "stock-1 expires orders | stock-2 does"),
    ("R7", "accept | sweep of its hold"),
    ("R8", "restock | sold-out answer"),
    ("R9", "repair of a drift | reserve into it"),
    ("R10", "one body of a key | another body, and twins of one body"),
    ("R11", "lines A, B | lines B, A, for the last units"),
    ("R12", "handler ends | rebalance begins"),
    ("R13", "newer event | redrive of a dead letter"),
    ("R14", "refund | late webhook of the capture"),
];

/// Who came first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Came {
    First,
    Second,
}

type Seen = anyhow::Result<Vec<(&'static str, Came)>>;

/// The races of a run.
#[derive(Debug, Clone)]
pub struct Races {
    site: Site,
    crash_points: bool,
    seen: std::sync::Arc<std::sync::Mutex<BTreeMap<&'static str, Race>>>,
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Site").finish_non_exhaustive()
    }
}

/// An order that a race has placed.
struct Placed {
    id: String,
    status: u16,
}

impl Races {
    /// None run yet.
    #[must_use]
    pub fn new(site: &Site, crash_points: bool) -> Self {
        let races = TITLES.iter().map(|(id, title)| {
            let race = Race {
                id,
                title,
                first: 0,
                second: 0,
                wrong: Vec::new(),
            };
            (*id, race)
        });
        Self {
            site: site.clone(),
            crash_points,
            seen: std::sync::Arc::new(std::sync::Mutex::new(races.collect())),
        }
    }

    /// What was seen.
    #[must_use]
    pub fn result(&self) -> Vec<Race> {
        let mut races: Vec<Race> = self.lock().values().cloned().collect();
        let expired = |name| self.site.metrics.sum_of(name, "orders_expired_total", &[]);
        for race in races.iter_mut().filter(|race| race.id == "R6") {
            race.first = crate::reached::whole(expired("stock-1"));
            race.second = crate::reached::whole(expired("stock-2"));
        }
        races.sort_by_key(|race| race.id[1..].parse::<u32>().unwrap_or(0));
        races
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, Race>> {
        self.seen
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Runs them in turn until the load is over. What a fault spoils is tried again next time.
    pub async fn run(self) {
        if let Err(error) = self.prepare().await {
            self.wrong("R8", format!("nothing can be prepared: {error:#}"));
            return;
        }
        let mut turn = 0_u64;
        let mut long = Vec::new();
        while !self.site.load.over.load(Ordering::SeqCst) {
            turn += 1;
            if turn % 6 == 1 {
                // These wait for more than a minute, beside the others.
                let races = self.clone();
                long.push(tokio::spawn(async move { races.note(races.late(turn).await) }));
            }
            self.note(self.cancels(turn).await);
            self.note(self.restocks(turn).await);
            self.note(self.keys(turn).await);
            self.note(self.last_units(turn).await);
            self.note(self.drift(turn).await);
            self.note(self.two_payments(turn).await);
            if self.crash_points {
                self.note(self.accept_and_cancel(turn).await);
                self.note(self.accept_and_sweep(turn).await);
                self.note(self.rebalance(turn).await);
            }
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
        for task in long {
            // Bounded by its own waits; the orders end without it, too.
            let _ = tokio::time::timeout(Duration::from_secs(100), task).await;
        }
    }

    fn note(&self, seen: Seen) {
        // A fault in between is no verdict: the next turn tries again.
        let Ok(seen) = seen else { return };
        let mut races = self.lock();
        for (id, came) in seen {
            if let Some(race) = races.get_mut(id) {
                match came {
                    Came::First => race.first += 1,
                    Came::Second => race.second += 1,
                }
            }
        }
    }

    fn wrong(&self, id: &'static str, what: String) {
        if let Some(race) = self.lock().get_mut(id) {
            race.wrong.push(what);
        }
    }

    async fn prepare(&self) -> anyhow::Result<()> {
        let mut operator = self.operator()?;
        for (sku, on_hand, ttl) in [
            ("RACE-LATE", 100_000, 4),
            ("RACE-LONG", 100_000, 120),
            ("RACE-OUT", 0, 8),
            ("RACE-A", 0, 8),
            ("RACE-B", 0, 8),
            ("RACE-DRIFT", 100_000, 8),
        ] {
            put_sku(&mut operator, sku, on_hand, ttl, None).await?;
        }
        Ok(())
    }

    fn operator(&self) -> anyhow::Result<Http> {
        Http::new(&self.site.load.urls[0], OPERATOR_KEY)
    }

    fn shop(&self, number: usize) -> anyhow::Result<Http> {
        let urls = &self.site.load.urls;
        Http::new(&urls[number % urls.len()], SHOP_KEY)
    }

    /// Places an order, with the same key until the answer is definite.
    async fn place(&self, number: usize, key: &str, body: &Value) -> anyhow::Result<Placed> {
        let mut http = self.shop(number)?;
        for _ in 0..40 {
            let sent = http.send(Method::POST, "/v1/orders", Some(key), Some(body));
            if let Ok(answer) = sent.await
                && ![503, 429].contains(&answer.status)
                && !(answer.status == 409 && answer.json()["code"] == "request-in-flight")
            {
                let id = answer.json()["order_id"].as_str().unwrap_or("").to_owned();
                return Ok(Placed {
                    id,
                    status: answer.status,
                });
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        anyhow::bail!("{key} has no definite answer")
    }

    async fn accepted(&self, key: &str, sku: &str, method: &str) -> anyhow::Result<String> {
        let placed = self.place(0, key, &body(key, &[sku], method)).await?;
        anyhow::ensure!(placed.status == 201, "{key}: {}", placed.status);
        Ok(placed.id)
    }

    async fn order(&self, id: &str) -> anyhow::Result<Value> {
        crate::truth::get(&mut self.shop(1)?, &format!("/v1/orders/{id}")).await
    }

    /// Waits until an order has ended, and says how.
    async fn ended(&self, id: &str, within: u64) -> anyhow::Result<String> {
        for _ in 0..within * 2 {
            if let Ok(order) = self.order(id).await
                && let Some(status) = order["status"].as_str()
                && status != "RESERVED"
            {
                return Ok(status.to_owned());
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        anyhow::bail!("{id} does not end")
    }

    async fn cancel(&self, id: &str) -> anyhow::Result<u16> {
        let path = format!("/v1/orders/{id}/cancel");
        let reason = json!({ "reason": "race" });
        for _ in 0..20 {
            let sent = self.shop(1)?.send(Method::POST, &path, None, Some(&reason)).await;
            if let Ok(answer) = sent
                && answer.status != 503
            {
                return Ok(answer.status);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        anyhow::bail!("no answer to the cancel of {id}")
    }

    /// Whether the captures of an order have gone back, within a bound.
    async fn refunded(&self, id: &str, within: u64) -> anyhow::Result<bool> {
        let mut conn = self.site.plant.sql().await?;
        for _ in 0..within * 2 {
            let open: Option<bool> = sqlx::query_scalar(
                "select bool_and(captured_minor > 0 and refunded_minor = captured_minor)
                 from payments where order_id = $1::uuid",
            )
            .bind(id)
            .fetch_one(&mut conn)
            .await?;
            if open == Some(true) {
                return Ok(true);
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        Ok(false)
    }

    /// R1, R3: the news of a payment comes after the grace, and before the deadline.
    async fn late(&self, turn: u64) -> Seen {
        let (paid, failed) = tokio::join!(self.late_one(turn, true), self.late_one(turn, false));
        let mut seen = paid.unwrap_or_default();
        seen.extend(failed.unwrap_or_default());
        Ok(seen)
    }

    async fn late_one(&self, turn: u64, paid: bool) -> Seen {
        let (race, late, soon) = if paid {
            ("R1", "card-late", "card")
        } else {
            ("R3", "card-late-declined", "card-declined")
        };
        let mut seen = Vec::new();
        let key = format!("race-{race}-soon-{turn}");
        let id = self.accepted(&key, "RACE-LONG", soon).await?;
        let wanted = if paid { "CONFIRMED" } else { "CANCELED" };
        if self.ended(&id, 60).await? == wanted {
            seen.push((race, Came::First));
        }
        let key = format!("race-{race}-late-{turn}");
        let id = self.accepted(&key, "RACE-LATE", late).await?;
        match self.ended(&id, 180).await?.as_str() {
            "EXPIRED" => {
                if paid && !self.refunded(&id, 120).await? {
                    self.wrong(race, format!("{id} expired, and its money is kept"));
                }
                seen.push((race, Came::Second));
            }
            other if paid == (other == "CONFIRMED") => seen.push((race, Came::First)),
            other => self.wrong(race, format!("{id} is {other}")),
        }
        Ok(seen)
    }

    /// R2, R14: a buyer cancels before and after the payment is known; a webhook comes again after
    /// the refund.
    async fn cancels(&self, turn: u64) -> Seen {
        let mut seen = Vec::new();
        let id = self
            .accepted(&format!("race-R2-paid-{turn}"), "RACE-LONG", "card")
            .await?;
        let status = self.ended(&id, 30).await?;
        if status == "CONFIRMED" {
            match self.cancel(&id).await? {
                409 => seen.push(("R2", Came::First)),
                other => self.wrong("R2", format!("cancel of CONFIRMED {id}: {other}")),
            }
        }
        let id = self
            .accepted(&format!("race-R2-canceled-{turn}"), "RACE-LONG", "card-hang")
            .await?;
        if self.cancel(&id).await? == 200 {
            seen.push(("R2", Came::Second));
            if let Ok(came) = self.webhooks(&id).await {
                seen.extend(came);
            }
        }
        Ok(seen)
    }

    /// R14: the capture of a canceled order is refunded when its webhook comes; the webhook comes
    /// again after that, and nothing goes back twice.
    async fn webhooks(&self, id: &str) -> Seen {
        if !self.refunded(id, 20).await? {
            // It was canceled before it was charged.
            return Ok(Vec::new());
        }
        let mut conn = self.site.plant.sql().await?;
        let key: String =
            sqlx::query_scalar("select gateway_key from payments where order_id = $1::uuid")
                .bind(id)
                .fetch_one(&mut conn)
                .await?;
        let before = self.journal(&key).await?;
        let mut gateway = Http::new(&self.site.plant.gateway_url(), "none")?;
        let charge = crate::truth::get(&mut gateway, &format!("/v1/charges/{key}")).await?;
        self.site.plant.webhook(&charge).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let after = self.journal(&key).await?;
        if after["refunds"] != before["refunds"] || after["refunds"] != 1 {
            self.wrong("R14", format!("{id}: {before} before, {after} after"));
        }
        // The first webhook was the news that made the refund; the second came after it.
        Ok(vec![("R14", Came::Second), ("R14", Came::First)])
    }

    async fn journal(&self, key: &str) -> anyhow::Result<Value> {
        let mut gateway = Http::new(&self.site.plant.gateway_url(), "none")?;
        // The journal begins after a key: the one before it in the order of keys.
        let before = &key[..key.len().saturating_sub(1)];
        let path = format!("/v1/journal?limit=10000&after={before}");
        let journal = crate::truth::get(&mut gateway, &path).await?;
        let entries = journal["data"].as_array().cloned().unwrap_or_default();
        entries
            .into_iter()
            .find(|entry| entry["key"] == key)
            .ok_or_else(|| anyhow::anyhow!("{key} is not in the journal"))
    }

    /// R5: somebody else's payment of an order comes before ours is known, and after.
    async fn two_payments(&self, turn: u64) -> Seen {
        let ours_first = turn % 2 == 0;
        let method = if ours_first { "card" } else { "card-late" };
        let id = self
            .accepted(&format!("race-R5-{turn}"), "RACE-LONG", method)
            .await?;
        if ours_first && self.ended(&id, 30).await? != "CONFIRMED" {
            return Ok(Vec::new());
        }
        let payment = format!("other-{turn}");
        let amount = json!({ "amount_minor": 12_900, "currency": "KRW" });
        let data = json!({ "payment_id": payment, "order_id": id, "amount": amount,
            "method": "card", "completed_at": clock::now().to_rfc3339() });
        self.tell("PAYMENT_COMPLETED", &payment, &id, &data).await?;
        if ours_first {
            // Ours is applied, so the other goes back: whoever took it says so.
            let key = self.refund_key(&payment).await?;
            let data = json!({ "refund_key": key, "payment_id": payment, "order_id": id, "amount": amount });
            self.tell("PAYMENT_REFUNDED", &format!("{payment}-back"), &id, &data)
                .await?;
            return Ok(vec![("R5", Came::First)]);
        }
        match self.ended(&id, 30).await?.as_str() {
            "CONFIRMED" => Ok(vec![("R5", Came::Second)]),
            other => anyhow::bail!("{id} is {other}"),
        }
    }

    async fn refund_key(&self, payment: &str) -> anyhow::Result<String> {
        let mut conn = self.site.plant.sql().await?;
        for _ in 0..60 {
            let key: Option<String> =
                sqlx::query_scalar("select refund_key from refunds where payment_id = $1")
                    .bind(payment)
                    .fetch_optional(&mut conn)
                    .await?;
            if let Some(key) = key {
                return Ok(key);
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        anyhow::bail!("no refund of {payment} is asked for")
    }

    /// An event of payments.v1 from another system; again until it is acknowledged.
    async fn tell(&self, kind: &str, id: &str, order: &str, data: &Value) -> anyhow::Result<()> {
        let producer = Producer::new(&self.site.plant.brokers)?;
        let topic = TopicNames::new("").topic(Topic::Payments);
        let schema = envelope::dataschema(kind);
        let time = clock::now().to_rfc3339();
        let headers: Vec<(&str, &[u8])> = [
            (envelope::header::SPECVERSION, "1.0"),
            (envelope::header::ID, id),
            (envelope::header::SOURCE, "chaos-upstream"),
            (envelope::header::TYPE, kind),
            (envelope::header::TIME, time.as_str()),
            (envelope::header::SUBJECT, order),
            (envelope::header::DATASCHEMA, schema.as_str()),
            (envelope::header::CONTENT_TYPE, envelope::CONTENT_TYPE),
        ]
        .into_iter()
        .map(|(name, value)| (name, value.as_bytes()))
        .collect();
        let body = data.to_string();
        for _ in 0..10 {
            let sent = producer.send(&topic, Some(order.as_bytes()), &headers, Some(body.as_bytes()));
            if sent.await.is_ok() {
                return Ok(());
            }
        }
        anyhow::bail!("{kind} {id} is not acknowledged")
    }

    /// R8: sold out, then a restock and the same key; a restock, then an order.
    async fn restocks(&self, turn: u64) -> Seen {
        let mut operator = self.operator()?;
        let mut seen = Vec::new();
        let key = format!("race-R8-{turn}");
        let wanted = body(&key, &["RACE-OUT"], "card");
        let before = self.place(0, &key, &wanted).await?;
        adjust(&mut operator, "RACE-OUT", 1, &format!("{key}-more")).await?;
        if before.status == 410 {
            for _ in 0..20 {
                if self.place(1, &key, &wanted).await?.status == 201 {
                    seen.push(("R8", Came::Second));
                    break;
                }
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        }
        let key = format!("race-R8-first-{turn}");
        adjust(&mut operator, "RACE-OUT", 1, &format!("{key}-more")).await?;
        if self.place(0, &key, &body(&key, &["RACE-OUT"], "card")).await?.status == 201 {
            seen.push(("R8", Came::First));
        }
        Ok(seen)
    }

    /// R10: two bodies under one key at once; and one body twice at once.
    async fn keys(&self, turn: u64) -> Seen {
        let key = format!("race-R10-{turn}");
        let (one, two) = (
            body(&format!("{key}-a"), &["RACE-LONG"], "card"),
            body(&format!("{key}-b"), &["RACE-LONG"], "card"),
        );
        let ahead = usize::from(turn % 2 == 0);
        let (a, b) = tokio::join!(self.place(ahead, &key, &one), self.place(1 - ahead, &key, &two));
        let (a, b) = (a?, b?);
        let mut seen = match (a.status, b.status) {
            (201, 422) => vec![("R10", Came::First)],
            (422, 201) => vec![("R10", Came::Second)],
            other => {
                self.wrong("R10", format!("{key}: {other:?}"));
                Vec::new()
            }
        };
        let key = format!("race-R10-same-{turn}");
        let wanted = body(&key, &["RACE-LONG"], "card");
        let (a, b) = tokio::join!(self.place(0, &key, &wanted), self.place(1, &key, &wanted));
        let (a, b) = (a?, b?);
        if a.status != 201 || b.status != 201 || a.id != b.id {
            let said = format!("{key}: {} {} and {} {}", a.status, a.id, b.status, b.id);
            self.wrong("R10", said);
            seen.clear();
        }
        Ok(seen)
    }

    /// R11: one unit of each of two SKUs, and two orders for both: exactly one gets them.
    async fn last_units(&self, turn: u64) -> Seen {
        let mut operator = self.operator()?;
        let key = format!("race-R11-{turn}");
        for sku in ["RACE-A", "RACE-B"] {
            let now = crate::truth::get(&mut operator, &format!("/v1/skus/{sku}")).await?;
            let missing = 1 - now["available"].as_i64().unwrap_or(0);
            if missing > 0 {
                adjust(&mut operator, sku, missing, &format!("{key}-{sku}")).await?;
            }
        }
        let (ab, ba) = (
            body(&format!("{key}-ab"), &["RACE-A", "RACE-B"], "card"),
            body(&format!("{key}-ba"), &["RACE-B", "RACE-A"], "card"),
        );
        let (key_ab, key_ba) = (format!("{key}-ab"), format!("{key}-ba"));
        let ahead = usize::from(turn % 2 == 0);
        let (a, b) = tokio::join!(
            self.place(ahead, &key_ab, &ab),
            self.place(1 - ahead, &key_ba, &ba)
        );
        match (a?.status, b?.status) {
            (201, 410) => Ok(vec![("R11", Came::First)]),
            (410, 201) => Ok(vec![("R11", Came::Second)]),
            // A gate that was told of the units a moment too late refuses both: no harm.
            (410, 410) => Ok(Vec::new()),
            other => {
                self.wrong("R11", format!("{key}: {other:?}"));
                Ok(Vec::new())
            }
        }
    }

    /// R9: a gate that holds seven units too many, an order into it, and its repair.
    async fn drift(&self, turn: u64) -> Seen {
        let mut conn = self.site.plant.redis_connection().await?;
        let gate = find(&mut conn).await?;
        let _: i64 = redis::cmd("HINCRBY")
            .arg(&gate)
            .arg("held")
            .arg(7)
            .query_async(&mut conn)
            .await?;
        let mut seen = Vec::new();
        for number in 0..30 {
            let key = format!("race-R9-{turn}-{number}");
            self.accepted(&key, "RACE-DRIFT", "card-declined").await?;
            let held: Option<i64> = redis::cmd("HGET")
                .arg(&gate)
                .arg("held")
                .query_async(&mut conn)
                .await?;
            // Declined orders go at once, so what stays is the drift.
            match held {
                Some(held) if held >= 7 => {
                    if seen.is_empty() {
                        seen.push(("R9", Came::Second));
                    }
                }
                _ => {
                    seen.push(("R9", Came::First));
                    return Ok(seen);
                }
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        Ok(seen)
    }

    /// R4: the accept has committed and its answer is held up; the order is found and canceled.
    async fn accept_and_cancel(&self, turn: u64) -> Seen {
        let (before, _) = (turn % 2 == 0, ());
        let key = format!("race-R4-{turn}");
        let wanted = body(&key, &["RACE-LONG"], "card-hang");
        if !before {
            let id = self.accepted(&key, "RACE-LONG", "card-hang").await?;
            let status = self.cancel(&id).await?;
            anyhow::ensure!([200, 409].contains(&status), "{status}");
            return Ok(vec![("R4", Came::First)]);
        }
        let order = self.site.plant.replica(cli::services::ServiceName::Order, 0)?;
        crashes::set(order, "cp8=delay(1500)").await?;
        let placing = self.place(0, &key, &wanted);
        let canceling = async {
            let path = format!("/v1/orders?customer_id={key}");
            for _ in 0..40 {
                tokio::time::sleep(Duration::from_millis(50)).await;
                let Ok(found) = crate::truth::get(&mut self.shop(1)?, &path).await else {
                    continue;
                };
                if let Some(id) = found["data"][0]["order_id"].as_str() {
                    let status = self.cancel(id).await?;
                    return Ok((id.to_owned(), status, clock::monotonic()));
                }
            }
            anyhow::bail!("{key} is not found")
        };
        let (placed, canceled) = tokio::join!(placing, canceling);
        let cleared = crashes::set(order, "").await;
        let answered = clock::monotonic();
        let (placed, (id, status, at)) = (placed?, canceled?);
        cleared?;
        if placed.status != 201 || placed.id != id {
            let said = format!("{key}: canceled as {id}, answered {} {}", placed.status, placed.id);
            self.wrong("R4", said);
        }
        let came = if status == 200 && at < answered {
            Came::Second
        } else {
            Came::First
        };
        Ok(vec![("R4", came)])
    }

    /// R7: an accept that waits for longer than its hold is left alone, and one that does not.
    async fn accept_and_sweep(&self, turn: u64) -> Seen {
        let order = self.site.plant.replica(cli::services::ServiceName::Order, 1)?;
        let key = format!("race-R7-{turn}");
        let wanted = body(&key, &["RACE-LONG"], "card");
        let swept = || {
            self.site
                .metrics
                .sum("holds_swept_total", &["\"released\""])
        };
        if turn % 2 == 1 {
            crashes::set(order, "cp3=delay(300)@1").await?;
            let placed = self.place(1, &key, &wanted).await;
            crashes::set(order, "").await?;
            anyhow::ensure!(placed?.status == 201, "refused");
            return Ok(vec![("R7", Came::First)]);
        }
        self.site.metrics.read(&self.site.plant).await;
        let before = swept();
        crashes::set(order, "cp3=delay(7500)@1").await?;
        let placed = self.place(1, &key, &wanted).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        crashes::set(order, "").await?;
        anyhow::ensure!(placed?.status == 201, "refused");
        self.site.metrics.read(&self.site.plant).await;
        if swept() > before {
            return Ok(vec![("R7", Came::Second)]);
        }
        Ok(Vec::new())
    }

    /// R12: a member leaves its group while another handles a batch, and after it has.
    async fn rebalance(&self, turn: u64) -> Seen {
        let stock = cli::services::ServiceName::Stock;
        let (busy, leaving) = (
            self.site.plant.replica(stock, 0)?,
            self.site.plant.replica(stock, 1)?,
        );
        if turn % 4 != 2 {
            return Ok(Vec::new());
        }
        let bit = || crashes::bites(&self.site).get("cp15 delay").copied().unwrap_or(0);
        let mut seen = Vec::new();
        for (delay, wait, came) in [(2_000, 100, Came::Second), (50, 1_500, Came::First)] {
            let before = bit();
            crashes::set(busy, &format!("cp15=delay({delay})@1")).await?;
            for _ in 0..60 {
                if bit() > before {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let bitten = bit() > before;
            tokio::time::sleep(Duration::from_millis(wait)).await;
            let left = leaving.stop(Duration::from_secs(10)).await;
            leaving.start().await?;
            if bitten && left?.is_some() {
                seen.push(("R12", came));
            }
            crashes::set(busy, "").await?;
            leaving.ready().await?;
        }
        Ok(seen)
    }
}

fn body(customer: &str, skus: &[&str], method: &str) -> Value {
    let lines: Vec<Value> = skus
        .iter()
        .map(|sku| json!({ "sku": sku, "quantity": 1 }))
        .collect();
    json!({ "customer_id": customer, "lines": lines, "payment_method": method })
}

/// The key of the drifting gate in the present epoch.
async fn find(conn: &mut redis::aio::MultiplexedConnection) -> anyhow::Result<String> {
    let found: Vec<String> = redis::cmd("KEYS")
        .arg("hf:*gate*RACE-DRIFT*")
        .query_async(conn)
        .await?;
    found
        .into_iter()
        .next_back()
        .ok_or_else(|| anyhow::anyhow!("there is no gate of RACE-DRIFT"))
}
