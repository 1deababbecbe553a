//! Races for units and keys: R8 to R11.

use std::time::Duration;

use super::{Came, Races, body};
use crate::{faults::until, load::adjust};

/// Units that turns before may have left.
const LEFT_OVER: usize = 30;

/// Seven units too many, unless the gate has gone: a key that we made would be nobody's.
const DRIFT: &str = "if redis.call('EXISTS', KEYS[1]) == 1 then
    return redis.call('HINCRBY', KEYS[1], 'held', 7)
end
return false";

impl Races {
    /// R8: sold out, then a restock and the same key; a restock, then an order.
    pub(super) async fn restocks(&self, turn: u64) -> anyhow::Result<()> {
        let mut operator = self.operator()?;
        let key = self.sold_out(turn).await?;
        let wanted = body(&key, &["RACE-OUT"], "card");
        adjust(&mut operator, "RACE-OUT", 1, &format!("{key}-more")).await?;
        let sold = until(Duration::from_secs(6), || async {
            let placed = self.place(1, &key, &wanted).await;
            placed.is_ok_and(|answer| answer.status == 201)
        });
        if sold.await.is_some() {
            self.saw("R8", Came::Second);
        }
        let key = format!("race-R8-first-{turn}");
        adjust(&mut operator, "RACE-OUT", 1, &format!("{key}-more")).await?;
        let wanted = body(&key, &["RACE-OUT"], "card");
        if self.place(0, &key, &wanted).await?.status == 201 {
            self.saw("R8", Came::First);
        }
        Ok(())
    }

    /// Orders what a fault has left over from turns before, until somebody is told that nothing is
    /// left; that somebody's key.
    async fn sold_out(&self, turn: u64) -> anyhow::Result<String> {
        for number in 0..LEFT_OVER {
            let key = format!("race-R8-{turn}-{number}");
            let wanted = body(&key, &["RACE-OUT"], "card");
            if self.place(0, &key, &wanted).await?.status == 410 {
                return Ok(key);
            }
        }
        anyhow::bail!("RACE-OUT is not sold out")
    }

    /// R10: two bodies under one key at once; and one body twice at once.
    pub(super) async fn keys(&self, turn: u64) -> anyhow::Result<()> {
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
        match (a.status, b.status) {
            (201, 422) => self.saw("R10", Came::First),
            (422, 201) => self.saw("R10", Came::Second),
            other => self.wrong("R10", format!("{key}: {other:?}")),
        }
        let key = format!("race-R10-same-{turn}");
        let wanted = body(&key, &["RACE-LONG"], "card");
        let (a, b) = tokio::join!(self.place(0, &key, &wanted), self.place(1, &key, &wanted));
        let (a, b) = (a?, b?);
        if a.status != 201 || b.status != 201 || a.id != b.id {
            let said = format!("{key}: {} {} and {} {}", a.status, a.id, b.status, b.id);
            self.wrong("R10", said);
        }
        Ok(())
    }

    /// R11: one unit of each of two SKUs, and two orders for both: exactly one gets them.
    pub(super) async fn last_units(&self, turn: u64) -> anyhow::Result<()> {
        let mut operator = self.operator()?;
        let key = format!("race-R11-{turn}");
        for sku in ["RACE-A", "RACE-B"] {
            let now = crate::truth::get(&mut operator, &format!("/v1/skus/{sku}")).await?;
            // An order of a turn before may yet expire, and its unit come back in the middle.
            anyhow::ensure!(now["held"] == 0, "{sku} is held");
            let missing = 1 - now["available"].as_i64().unwrap_or(1);
            if missing != 0 {
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
            (201, 410) => self.saw("R11", Came::First),
            (410, 201) => self.saw("R11", Came::Second),
            // A gate that was told of the units a moment too late refuses both: no harm.
            (410, 410) => {}
            other => self.wrong("R11", format!("{key}: {other:?}")),
        }
        Ok(())
    }

    /// R9: a gate that holds seven units too many, an order into it, and its repair.
    pub(super) async fn drift(&self, turn: u64) -> anyhow::Result<()> {
        let _alone = self.site.plant.gate_moved.lock().await;
        let mut conn = self.site.plant.redis_connection().await?;
        let gate = find(&mut conn).await?;
        let moved: Option<i64> = redis::cmd("EVAL")
            .arg(DRIFT)
            .arg(1)
            .arg(&gate)
            .query_async(&mut conn)
            .await?;
        anyhow::ensure!(moved.is_some(), "the gate has gone meanwhile");
        let mut drifted = false;
        for number in 0..30 {
            let key = format!("race-R9-{turn}-{number}");
            self.accepted(&key, "RACE-DRIFT", "card-declined").await?;
            let held: Option<i64> = redis::cmd("HGET")
                .arg(&gate)
                .arg("held")
                .query_async(&mut conn)
                .await?;
            // Declined orders go at once, so what stays is the drift.
            if held.is_none_or(|held| held < 7) {
                self.saw("R9", Came::First);
                return Ok(());
            }
            if !drifted {
                self.saw("R9", Came::Second);
            }
            drifted = true;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        Ok(())
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
