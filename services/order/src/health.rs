//! What this process knows of the servers behind it: PostgreSQL's clock, whether it answers, and how
//! long events have been waiting for Kafka.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use platform::{Ops, Shutdown, clock, periodic};
use reservations::Gate;
use store::{PgClock, Store, StoreError, outbox};

/// How often the servers are asked.
const EVERY: Duration = Duration::from_millis(500);

/// How long an answer may take.
const WITHIN: Duration = Duration::from_secs(2);

/// From this age on expiry calls it an outage of ours; what is younger is a busy relay.
const OUTAGE_FROM_MS: u64 = 5_000;

/// The age of the oldest event that is not published.
#[derive(Debug, Clone, Default)]
pub(crate) struct Backlog {
    age_ms: Arc<AtomicU64>,
}

impl Backlog {
    /// Whether an order with this ttl would be accepted into an outage that eats its time (P5).
    pub(crate) fn is_longer_than_quarter_of(&self, ttl_seconds: i32) -> bool {
        let quarter_ms = u64::try_from(ttl_seconds).unwrap_or(0) * 1_000 / 4;
        self.age_ms.load(Ordering::Relaxed) > quarter_ms.max(OUTAGE_FROM_MS)
    }

    fn set(&self, age: Duration) {
        self.age_ms.store(
            u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
    }
}

/// Keeps clock, readiness and backlog true until shutdown.
pub(crate) fn start(
    store: Store,
    gate: Gate,
    pg_clock: PgClock,
    backlog: Backlog,
    ops: Ops,
    tasks: &Shutdown,
) {
    periodic::spawn(tasks, EVERY, move || {
        let (store, gate, pg_clock) = (store.clone(), gate.clone(), pg_clock.clone());
        let (backlog, ops) = (backlog.clone(), ops.clone());
        async move {
            look(&store, &pg_clock, &backlog, &ops).await;
            // Not a condition of readiness: without the gate orders go on.
            metrics::gauge!("gate_available").set(if gate.is_available() { 1.0 } else { 0.0 });
        }
    });
}

async fn look(store: &Store, pg_clock: &PgClock, backlog: &Backlog, ops: &Ops) {
    let asked = tokio::time::timeout(WITHIN, ask(store, pg_clock)).await;
    match asked {
        Ok(Ok(age)) => {
            backlog.set(age.unwrap_or_default());
            metrics::gauge!("outbox_oldest_age_seconds").set(age.unwrap_or_default().as_secs_f64());
            ops.set("postgresql", true, "answers");
        }
        Ok(Err(error)) => {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "postgresql does not answer"
            );
            ops.set("postgresql", false, "does not answer");
        }
        Err(_) => {
            tracing::warn!("postgresql does not answer in time");
            ops.set("postgresql", false, "does not answer in time");
        }
    }
}

async fn ask(store: &Store, pg_clock: &PgClock) -> Result<Option<Duration>, StoreError> {
    let now = store.clock().await?;
    pg_clock.observe(now, clock::monotonic());
    outbox::oldest_unpublished_age(store).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backlog_counts_against_the_time_that_an_order_has() {
        let backlog = Backlog::default();
        assert!(!backlog.is_longer_than_quarter_of(1));
        backlog.set(Duration::from_secs(6));
        assert!(backlog.is_longer_than_quarter_of(20));
        assert!(!backlog.is_longer_than_quarter_of(600));
        backlog.set(Duration::from_secs(4));
        assert!(
            !backlog.is_longer_than_quarter_of(4),
            "a busy relay is no outage"
        );
    }
}
