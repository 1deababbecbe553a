//! The gate's client and `reserve`.
//!
//! Guarantee of `reserve`: never an error and never a long wait. Whatever is not answered in time is
//! `NoGate`; while the server is away, all is, at once.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use domain::gate::{Hold, Shard};
use tokio::{
    runtime::Handle,
    sync::watch,
    time::{Instant, timeout},
};

use crate::{
    GateConfig, GateError, ReserveOutcome, Safety, ServerSeen,
    breaker::{Breaker, Passage},
    connection::{Invocation, Link},
    keys::{Keys, is_epoch},
    script::{self, NUMBER_MAX, Script},
    wire::{PerSku, Reply, SkuTable, chunks, is_canonical},
};

/// The gate of all shards behind one server. Cheap to clone.
#[derive(Clone)]
pub struct Gate {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) config: GateConfig,
    pub(crate) keys: Keys,
    pub(crate) link: Link,
    breaker: Breaker,
    /// The newest epoch that was seen: a pointer that each script checks, never an answer.
    epochs: RwLock<HashMap<Shard, Arc<str>>>,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate")
            .field("config", &self.inner.config)
            .finish_non_exhaustive()
    }
}

impl Gate {
    /// No I/O: a service starts while Redis is away.
    ///
    /// # Errors
    /// [`GateError::Config`] and [`GateError::Url`].
    pub fn new(config: GateConfig) -> Result<Self, GateError> {
        if config.reserve_timeout.is_zero()
            || config.call_timeout.is_zero()
            || config.connect_timeout.is_zero()
        {
            return Err(GateError::Config("time-outs must be longer than zero"));
        }
        let inner = Inner {
            keys: Keys::new(&config.key_prefix)?,
            link: Link::new(&config)?,
            breaker: Breaker::new(config.probe_interval),
            epochs: RwLock::default(),
            config,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Holds units for each order, or says why not: one outcome per hold, in their order. `now_ms`
    /// is PostgreSQL's clock in milliseconds since the epoch.
    pub async fn reserve(&self, shard: Shard, now_ms: i64, holds: &[Hold]) -> Vec<ReserveOutcome> {
        let mut outcomes = vec![ReserveOutcome::NoGate; holds.len()];
        let places: Vec<usize> = (0..holds.len())
            .filter(|n| is_canonical(&holds[*n]))
            .collect();
        let asked: Vec<&Hold> = places.iter().map(|n| &holds[*n]).collect();
        if !asked.is_empty() && self.may_pass() {
            let answers = self.reserve_within_bound(shard, now_ms, &asked).await;
            for (place, answer) in places.into_iter().zip(answers) {
                outcomes[place] = answer;
            }
        }
        for outcome in &outcomes {
            metrics::counter!("gate_reservations_total", "outcome" => outcome.as_str())
                .increment(1);
        }
        outcomes
    }

    /// The answers that came in time, in order; fewer than holds when the bound ran out.
    async fn reserve_within_bound(
        &self,
        shard: Shard,
        now_ms: i64,
        holds: &[&Hold],
    ) -> Vec<ReserveOutcome> {
        let mut answers = Vec::with_capacity(holds.len());
        let bound = self.inner.config.reserve_timeout;
        let result = timeout(bound, async {
            for chunk in chunks(holds) {
                let chunk_answers = match self.reserve_chunk(shard, now_ms, chunk).await {
                    // The connection had died unnoticed: the hold ids make a repeat harmless.
                    Err(error) if error.is_absence() => {
                        self.reserve_chunk(shard, now_ms, chunk).await?
                    }
                    other => other?,
                };
                answers.extend(chunk_answers);
            }
            Ok(())
        })
        .await;
        match result.unwrap_or(Err(GateError::Timeout { verb: "reserve" })) {
            Ok(()) => self.note_present(),
            Err(error) if error.is_absence() => self.note_absent(&error),
            Err(error) => {
                metrics::counter!("gate_errors_total", "verb" => "reserve").increment(1);
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "gate refused to reserve"
                );
            }
        }
        answers
    }

    async fn reserve_chunk(
        &self,
        shard: Shard,
        now_ms: i64,
        holds: &[&Hold],
    ) -> Result<Vec<ReserveOutcome>, GateError> {
        let table = SkuTable::new(holds, []);
        let due_after_ms = self.inner.config.due_after.as_millis().to_string();
        let bound = self.inner.config.reserve_timeout;
        let reply = self
            .in_newest_epoch(shard, &script::RESERVE, bound, |epoch| {
                let keys = table.keys(&self.inner.keys, shard, epoch, PerSku::GateAndBuyers);
                let mut call = Invocation {
                    keys,
                    args: Vec::with_capacity(5 * holds.len() + 8),
                };
                call.args.push(epoch.to_owned());
                call.args.push(now_ms.clamp(0, NUMBER_MAX).to_string());
                call.args.push(due_after_ms.clone());
                table.push_names(&mut call);
                table.push_holds(holds, &mut call);
                Ok(call)
            })
            .await?;
        match reply {
            None => Ok(vec![ReserveOutcome::NoGate; holds.len()]),
            Some(reply) => Ok(reply
                .outcomes::<ReserveOutcome, ReserveOutcome>(0, holds.len())?
                .1),
        }
    }

    /// Runs a script in the newest epoch: in the one that was seen last, and once more when its
    /// reply names another. None when the shard has no epoch.
    pub(crate) async fn in_newest_epoch(
        &self,
        shard: Shard,
        script: &'static Script,
        bound: Duration,
        call: impl Fn(&str) -> Result<Invocation, GateError>,
    ) -> Result<Option<Reply>, GateError> {
        let Some(epoch) = self.newest_epoch(shard).await? else {
            return Ok(None);
        };
        let run = |call: Invocation| async move {
            Reply::read(script, self.inner.link.invoke(script, &call, bound).await?)
        };
        let reply = run(call(&epoch)?).await?;
        if reply.epoch == *epoch {
            return Ok(Some(reply));
        }
        let Some(epoch) = self.remember_epoch(shard, &reply.epoch) else {
            return Ok(Some(reply));
        };
        let reply = run(call(&epoch)?).await?;
        if reply.epoch != *epoch {
            self.remember_epoch(shard, &reply.epoch);
        }
        Ok(Some(reply))
    }

    async fn newest_epoch(&self, shard: Shard) -> Result<Option<Arc<str>>, GateError> {
        if let Some(epoch) = self.known_epoch(shard) {
            return Ok(Some(epoch));
        }
        let state = self.current_epoch(shard).await?;
        Ok(state.and_then(|state| self.remember_epoch(shard, &state.epoch)))
    }

    /// A function of its own, so that no lock lives across an await.
    fn known_epoch(&self, shard: Shard) -> Option<Arc<str>> {
        let known = self
            .inner
            .epochs
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        known.get(&shard).cloned()
    }

    /// Keeps the epoch for the next call; forgets the last one when it is none.
    pub(crate) fn remember_epoch(&self, shard: Shard, epoch: &str) -> Option<Arc<str>> {
        let mut known = self
            .inner
            .epochs
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if is_epoch(epoch) {
            let epoch: Arc<str> = Arc::from(epoch);
            known.insert(shard, Arc::clone(&epoch));
            Some(epoch)
        } else {
            known.remove(&shard);
            None
        }
    }

    /// Whether the server answered when it was last asked. Has it tried again when it is time.
    #[must_use]
    pub fn is_available(&self) -> bool {
        self.may_pass()
    }

    /// Which server was seen, and how often it changed: a change is a reason to check for drift.
    #[must_use]
    pub fn server(&self) -> watch::Receiver<ServerSeen> {
        self.inner.link.server()
    }

    /// Asks the server for a sign of life.
    ///
    /// # Errors
    /// [`GateError::Connect`], [`GateError::Call`], [`GateError::Timeout`].
    pub async fn ping(&self) -> Result<(), GateError> {
        self.inner.link.ping().await
    }

    /// Whether the server keeps what it is told (P15).
    ///
    /// # Errors
    /// [`GateError::Connect`], [`GateError::Call`], [`GateError::Timeout`], [`GateError::Reply`].
    pub async fn check_safety(&self) -> Result<Safety, GateError> {
        self.inner.link.safety().await
    }

    fn may_pass(&self) -> bool {
        match self.inner.breaker.passage(Instant::now()) {
            Passage::Closed => true,
            Passage::Open => false,
            Passage::Probe => {
                if let Ok(runtime) = Handle::try_current() {
                    let gate = self.clone();
                    runtime.spawn(async move {
                        if gate.ping().await.is_ok() {
                            gate.note_present();
                        }
                    });
                }
                false
            }
        }
    }

    fn note_present(&self) {
        if self.inner.breaker.close() {
            metrics::gauge!("gate_available").set(1.0);
            metrics::counter!("gate_breaker_closed_total").increment(1);
            tracing::info!("gate answers again");
        }
    }

    fn note_absent(&self, error: &GateError) {
        metrics::counter!("gate_errors_total", "verb" => "reserve").increment(1);
        if self.inner.breaker.open(Instant::now()) {
            metrics::gauge!("gate_available").set(0.0);
            metrics::counter!("gate_breaker_opened_total").increment(1);
            tracing::warn!(
                error = error as &dyn std::error::Error,
                "gate does not answer; orders go on without it"
            );
        }
    }
}
