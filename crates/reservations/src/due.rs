//! The holds that the sweep is to ask PostgreSQL about (P5).
//!
//! Guarantee: nothing stays at the head of the list for ever. A hold id without a hold is taken off
//! it, a damaged hold is put off, and what is returned is put off by the `keep`, `commit` or
//! `release` that follows. The server's clock says when to ask; it decides nothing.

use std::time::Duration;

use contracts::HoldId;
use domain::gate::Shard;

use crate::{
    Gate, GateError, StoredHold,
    connection::Invocation,
    script,
    wire::{PerSku, SkuTable},
};

/// A hold that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueHold {
    /// Which.
    pub hold_id: HoldId,
    /// What is stored for it.
    pub state: DueState,
}

/// What is stored for a hold that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DueState {
    /// A hold: ask PostgreSQL, then `sync`.
    Held(StoredHold),
    /// A text that none of the scripts writes: the shard needs a rebuild. Put off for as long as a
    /// hold that was kept.
    Damaged,
}

/// What is stored under hold ids: none for those without a hold.
pub(crate) type StoredTexts = Vec<Option<(HoldId, String)>>;

impl Gate {
    /// At most `limit` holds that are due by the server's clock, the oldest first. None when the
    /// shard has no epoch.
    ///
    /// # Errors
    /// [`GateError`]: no answer, or a key of a wrong type.
    pub async fn due(&self, shard: Shard, limit: usize) -> Result<Vec<DueHold>, GateError> {
        let Some(state) = self.current_epoch(shard).await? else {
            return Ok(Vec::new());
        };
        let key = self.inner.keys.due(shard, &state.epoch);
        let now_ms = self.server_now_ms().await?;
        let mut range = redis::cmd("ZRANGE");
        range
            .arg(&key)
            .arg("-inf")
            .arg(now_ms)
            .arg("BYSCORE")
            .arg("LIMIT")
            .arg(0)
            .arg(limit);
        let members: Vec<String> = self.inner.link.query("due", &range).await?;

        let (ids, strays): (Vec<_>, Vec<_>) = members
            .into_iter()
            .map(|member| member.parse::<HoldId>().map_err(|_| member))
            .partition(Result::is_ok);
        let ids: Vec<HoldId> = ids.into_iter().filter_map(Result::ok).collect();
        let strays: Vec<String> = strays.into_iter().filter_map(Result::err).collect();
        if !strays.is_empty() {
            tracing::warn!(count = strays.len(), "due set held what is no hold id");
            let _: u64 = self
                .inner
                .link
                .query("due", redis::cmd("ZREM").arg(&key).arg(&strays))
                .await?;
        }
        self.read_due(shard, &key, now_ms, ids).await
    }

    /// Hold ids that have been due for longer than `by`, at most 1,000: nobody looked at them. None
    /// when the shard has no epoch.
    ///
    /// # Errors
    /// [`GateError`]: no answer, or a key of a wrong type.
    pub async fn overdue(&self, shard: Shard, by: Duration) -> Result<Vec<String>, GateError> {
        let Some(state) = self.current_epoch(shard).await? else {
            return Ok(Vec::new());
        };
        let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        let before = self.server_now_ms().await?.saturating_sub(by);
        let mut range = redis::cmd("ZRANGE");
        range
            .arg(self.inner.keys.due(shard, &state.epoch))
            .arg("-inf")
            .arg(before)
            .arg("BYSCORE")
            .arg("LIMIT")
            .arg(0)
            .arg(1_000);
        self.inner.link.query("overdue", &range).await
    }

    async fn read_due(
        &self,
        shard: Shard,
        key: &str,
        now_ms: i64,
        ids: Vec<HoldId>,
    ) -> Result<Vec<DueHold>, GateError> {
        let stored = self.stored_holds(shard, &ids).await?;
        let (mut due, mut absent) = (Vec::with_capacity(ids.len()), Vec::new());
        let mut later = redis::cmd("ZADD");
        later.arg(key).arg("XX");
        let put_off = now_ms.saturating_add(
            i64::try_from(self.inner.config.next_check.as_millis()).unwrap_or(i64::MAX),
        );
        let mut damaged = 0_u64;
        for (hold_id, text) in ids.into_iter().zip(stored) {
            match text.map(|(id, text)| StoredHold::parse(id, &text)) {
                None => absent.push(hold_id),
                Some(Some(stored)) => {
                    due.push(DueHold {
                        hold_id,
                        state: DueState::Held(stored),
                    });
                }
                Some(None) => {
                    damaged += 1;
                    later.arg(put_off).arg(hold_id.to_string());
                    due.push(DueHold {
                        hold_id,
                        state: DueState::Damaged,
                    });
                }
            }
        }
        if damaged > 0 {
            tracing::warn!(
                count = damaged,
                shard = shard.0,
                "holds at the gate are damaged"
            );
            let _: u64 = self.inner.link.query("due", &later).await?;
        }
        self.forget_absent(shard, &absent).await?;
        Ok(due)
    }

    /// Takes hold ids off the due set whose holds are gone, unless they are back: `release` without
    /// SKUs lifts nothing, and does that in one step.
    async fn forget_absent(&self, shard: Shard, ids: &[HoldId]) -> Result<(), GateError> {
        let table = SkuTable::default();
        for some in ids.chunks(script::BATCH_MAX) {
            let bound = self.inner.config.call_timeout;
            self.in_newest_epoch(shard, &script::RELEASE, bound, |epoch| {
                let keys = table.keys(&self.inner.keys, shard, epoch, PerSku::GateAndBuyers);
                let mut call = Invocation {
                    keys,
                    args: vec![epoch.to_owned()],
                };
                table.push_registers(&mut call)?;
                call.args.push(some.len().to_string());
                call.args.extend(some.iter().map(ToString::to_string));
                Ok(call)
            })
            .await?;
        }
        Ok(())
    }

    /// What is stored under the ids in the newest epoch, in their order.
    pub(crate) async fn stored_holds(
        &self,
        shard: Shard,
        ids: &[HoldId],
    ) -> Result<StoredTexts, GateError> {
        let Some(state) = self.current_epoch(shard).await? else {
            return Ok(vec![None; ids.len()]);
        };
        let key = self.inner.keys.holds(shard, &state.epoch);
        let mut out = Vec::with_capacity(ids.len());
        for some in ids.chunks(1_000) {
            let mut read = redis::cmd("HMGET");
            read.arg(&key);
            for id in some {
                read.arg(id.to_string());
            }
            let texts: Vec<Option<String>> = self.inner.link.query("holds", &read).await?;
            out.extend(
                some.iter()
                    .zip(texts)
                    .map(|(id, text)| text.map(|text| (*id, text))),
            );
        }
        Ok(out)
    }

    async fn server_now_ms(&self) -> Result<i64, GateError> {
        let (seconds, micros): (i64, i64) =
            self.inner.link.query("time", &redis::cmd("TIME")).await?;
        Ok(seconds.saturating_mul(1_000).saturating_add(micros / 1_000))
    }
}
