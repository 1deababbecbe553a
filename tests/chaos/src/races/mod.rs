//! Races in which both orders are right, each forced both ways again and again while faults come
//! and go. What came first is read from what became of it, never assumed.

mod letters;
mod payments;
mod points;
mod stock;
mod turns;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use http::Method;
use platform::clock;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    faults::Site,
    http::Http,
    load::put_sku,
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
    (
        "R10",
        "one body of a key | another body, and twins of one body",
    ),
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

/// How long a race asks for a definite answer: as long as an outage of the broker lasts.
const PLACED_WITHIN: Duration = Duration::from_secs(75);

/// The races of a run.
#[derive(Debug, Clone)]
pub struct Races {
    site: Site,
    crash_points: bool,
    /// When the load should end.
    until: Instant,
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
    pub fn new(site: &Site, crash_points: bool, until: Instant) -> Self {
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
            until,
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

    /// Notes which order of a race was seen.
    fn saw(&self, id: &'static str, came: Came) {
        if let Some(race) = self.lock().get_mut(id) {
            match came {
                Came::First => race.first += 1,
                Came::Second => race.second += 1,
            }
        }
    }

    /// The order of a race that was seen less often.
    fn lacking(&self, id: &'static str) -> Came {
        match self.lock().get(id) {
            Some(race) if race.second < race.first => Came::Second,
            _ => Came::First,
        }
    }

    /// Whether each of these was seen in both orders.
    fn both_seen(&self, ids: &[&'static str]) -> bool {
        let races = self.lock();
        let seen = |race: &Race| race.first > 0 && race.second > 0;
        ids.iter().all(|id| races.get(id).is_some_and(seen))
    }

    fn wrong(&self, id: &'static str, what: String) {
        if let Some(race) = self.lock().get_mut(id) {
            race.wrong.push(what);
        }
    }

    async fn prepare(&self) -> anyhow::Result<()> {
        let mut operator = self.operator()?;
        for (sku, on_hand, ttl) in [
            ("RACE-LATE", 100_000, 8),
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
        let begun = clock::monotonic();
        while begun.elapsed() < PLACED_WITHIN {
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
            let sent = self
                .shop(1)?
                .send(Method::POST, &path, None, Some(&reason))
                .await;
            if let Ok(answer) = sent
                && answer.status != 503
            {
                return Ok(answer.status);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        anyhow::bail!("no answer to the cancel of {id}")
    }

    /// Whether the captures of an order have gone back, within a bound; `None` when it was never
    /// charged.
    async fn refunded(&self, id: &str, within: u64) -> anyhow::Result<Option<bool>> {
        let mut conn = self.site.plant.sql().await?;
        for _ in 0..within * 2 {
            let (payments, back): (i64, Option<bool>) = sqlx::query_as(
                "select count(*), bool_and(captured_minor > 0 and refunded_minor = captured_minor)
                 from payments where order_id = $1::uuid",
            )
            .bind(id)
            .fetch_one(&mut conn)
            .await?;
            if payments == 0 {
                return Ok(None);
            }
            if back == Some(true) {
                return Ok(Some(true));
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        Ok(Some(false))
    }
}

fn body(customer: &str, skus: &[&str], method: &str) -> Value {
    let lines: Vec<Value> = skus
        .iter()
        .map(|sku| json!({ "sku": sku, "quantity": 1 }))
        .collect();
    json!({ "customer_id": customer, "lines": lines, "payment_method": method })
}
