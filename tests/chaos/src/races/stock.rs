//! Races for units and keys: R8 to R11.

use std::time::Duration;

use super::{Came, Races, Seen, body};
use crate::load::adjust;

impl Races {
    /// R8: sold out, then a restock and the same key; a restock, then an order.
    pub(super) async fn restocks(&self, turn: u64) -> Seen {
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
        if self
            .place(0, &key, &body(&key, &["RACE-OUT"], "card"))
            .await?
            .status
            == 201
        {
            seen.push(("R8", Came::First));
        }
        Ok(seen)
    }

    /// R10: two bodies under one key at once; and one body twice at once.
    pub(super) async fn keys(&self, turn: u64) -> Seen {
        let key = format!("race-R10-{turn}");
        let (one, two) = (
            body(&format!("{key}-a"), &["RACE-LONG"], "card"),
            body(&format!("{key}-b"), &["RACE-LONG"], "card"),
        );
        let ahead = usize::from(turn.is_multiple_of(2));
        let (a, b) = tokio::join!(
            self.place(ahead, &key, &one),
            self.place(1 - ahead, &key, &two)
        );
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
    pub(super) async fn last_units(&self, turn: u64) -> Seen {
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
        let ahead = usize::from(turn.is_multiple_of(2));
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
    pub(super) async fn drift(&self, turn: u64) -> Seen {
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
