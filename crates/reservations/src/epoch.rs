//! One life of a shard's keys (P10): begun closed, filled, opened, and dropped when the next one
//! has taken its place.
//!
//! Guarantee: each step does nothing unless the epoch is still the newest, so that two rebuilds at
//! once, or one that was stopped for an hour, spoil nothing. An epoch that was replaced never comes
//! back: ids are not used twice.

use std::collections::BTreeSet;

use domain::gate::Shard;

use crate::{
    EpochOutcome, Gate, GateError,
    connection::Invocation,
    error::is_wrong_type,
    keys::is_epoch,
    script::{self, Script},
    wire::Reply,
};

/// The newest epoch of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochState {
    /// Its id.
    pub epoch: String,
    /// Whether it answers `reserve`; while it is being built it takes `keep`, `commit` and
    /// `release` only.
    pub open: bool,
}

impl Gate {
    /// A new id: never used before, and the later the greater.
    #[must_use]
    pub fn new_epoch_id() -> String {
        contracts::ids::generate().to_string()
    }

    /// The newest epoch of a shard; none when the server knows nothing of it, or when the epoch key
    /// is damaged: a rebuild begins anew and replaces it.
    ///
    /// # Errors
    /// [`GateError`]: no answer.
    pub async fn current_epoch(&self, shard: Shard) -> Result<Option<EpochState>, GateError> {
        let key = self.inner.keys.meta(shard);
        let fields: Result<(Option<String>, Option<String>), GateError> = self
            .inner
            .link
            .query(
                "epoch",
                redis::cmd("HMGET").arg(key).arg(&["epoch", "open"]),
            )
            .await;
        let (epoch, open) = match fields {
            Err(GateError::Call { source, .. }) if is_wrong_type(&source) => (None, None),
            other => other?,
        };
        let Some(epoch) = epoch.filter(|epoch| is_epoch(epoch)) else {
            return Ok(None);
        };
        self.remember_epoch(shard, &epoch);
        Ok(Some(EpochState {
            epoch,
            open: open.as_deref() == Some("1"),
        }))
    }

    /// Starts a new epoch, closed, when the newest one is still `replaces`.
    ///
    /// # Errors
    /// [`GateError::Epoch`] and what a call can fail with.
    pub async fn begin_epoch(
        &self,
        shard: Shard,
        epoch: &str,
        replaces: Option<&str>,
    ) -> Result<EpochOutcome, GateError> {
        if !is_epoch(epoch) || replaces.is_some_and(|old| old == epoch || !is_epoch(old)) {
            return Err(GateError::Epoch(epoch.to_owned()));
        }
        let args = vec![epoch.to_owned(), replaces.unwrap_or("-").to_owned()];
        self.epoch_step(&script::BEGIN_EPOCH, shard, args).await
    }

    /// Lets a rebuilt epoch answer.
    ///
    /// # Errors
    /// [`GateError::Epoch`] and what a call can fail with.
    pub async fn open_epoch(&self, shard: Shard, epoch: &str) -> Result<EpochOutcome, GateError> {
        if !is_epoch(epoch) {
            return Err(GateError::Epoch(epoch.to_owned()));
        }
        self.epoch_step(&script::OPEN_EPOCH, shard, vec![epoch.to_owned()])
            .await
    }

    async fn epoch_step(
        &self,
        script: &'static Script,
        shard: Shard,
        args: Vec<String>,
    ) -> Result<EpochOutcome, GateError> {
        let call = Invocation {
            keys: vec![self.inner.keys.meta(shard)],
            args,
        };
        let reply = self
            .inner
            .link
            .invoke(script, &call, self.inner.config.call_timeout)
            .await?;
        let reply = Reply::read(script, reply)?;
        self.remember_epoch(shard, &reply.epoch);
        let (_, outcomes) = reply.outcomes::<EpochOutcome, EpochOutcome>(0, 1)?;
        outcomes.first().copied().ok_or_else(|| GateError::Reply {
            verb: script.name,
            detail: "no outcome".to_owned(),
        })
    }

    /// The epochs that have keys but are not the newest one: each may be dropped.
    ///
    /// # Errors
    /// What a call can fail with.
    pub async fn old_epochs(&self, shard: Shard) -> Result<BTreeSet<String>, GateError> {
        let mut seen = BTreeSet::new();
        for key in self.scan(&self.inner.keys.all(shard)).await? {
            if let Some(epoch) = self.inner.keys.read(shard, &key).epoch() {
                seen.insert(epoch.to_owned());
            }
        }
        // Read after the scan: an epoch that was begun meanwhile is the newest one now.
        if let Some(newest) = self.current_epoch(shard).await? {
            seen.remove(&newest.epoch);
        }
        Ok(seen)
    }

    /// Unlinks the keys of an epoch that is not the newest one; how many there were.
    ///
    /// # Errors
    /// [`GateError::Epoch`] for the newest epoch, and what a call can fail with.
    pub async fn drop_epoch(&self, shard: Shard, old: &str) -> Result<u64, GateError> {
        let newest = self.current_epoch(shard).await?;
        if !is_epoch(old) || newest.is_some_and(|state| state.epoch == old) {
            return Err(GateError::Epoch(old.to_owned()));
        }
        let keys = self.scan(&self.inner.keys.of_epoch(shard, old)).await?;
        let mut unlinked = 0;
        for some in keys.chunks(500) {
            let count: u64 = self
                .inner
                .link
                .query("drop_epoch", redis::cmd("UNLINK").arg(some))
                .await?;
            unlinked += count;
        }
        Ok(unlinked)
    }

    /// The keys that match a pattern, each once, read by cursor.
    pub(crate) async fn scan(&self, pattern: &str) -> Result<Vec<String>, GateError> {
        let mut keys = BTreeSet::new();
        let mut cursor = 0_u64;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor)
                .arg("MATCH")
                .arg(pattern)
                .arg("COUNT")
                .arg(1_000);
            let (next, page): (u64, Vec<String>) = self.inner.link.query("scan", &scan).await?;
            keys.extend(page);
            cursor = next;
            if cursor == 0 {
                return Ok(keys.into_iter().collect());
            }
        }
    }
}
