//! What this process knows of the servers behind it: PostgreSQL's clock, whether it answers, and how
//! long events have been waiting for Kafka.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use platform::{Ops, Shutdown, clock, periodic};
use store::{PgClock, Store, StoreError, outbox};

use crate::mode::Backlog;

/// How often the servers are asked.
const EVERY: Duration = Duration::from_millis(500);

/// How long an answer may take.
const WITHIN: Duration = Duration::from_secs(2);

/// Keeps clock, readiness and backlog true until shutdown. Not ready before the first answer: without
/// a reading of the clock nothing is accepted, and a new replica would refuse what it is sent.
pub(crate) fn start(store: Store, pg_clock: PgClock, backlog: Backlog, ops: Ops, tasks: &Shutdown) {
    ops.set("postgresql", false, "not asked yet");
    let answers = Arc::new(AtomicBool::new(true));
    periodic::spawn(tasks, EVERY, move || {
        let (store, pg_clock, answers) = (store.clone(), pg_clock.clone(), answers.clone());
        let (backlog, ops) = (backlog.clone(), ops.clone());
        // The gate is no condition of readiness: without it orders go on.
        async move {
            let said = look(&store, &pg_clock, &backlog).await;
            let (ready, detail) = match said {
                Ok(()) => (true, "answers"),
                Err(detail) => (false, detail),
            };
            ops.set("postgresql", ready, detail);
            match (answers.swap(ready, Ordering::Relaxed), ready) {
                (true, false) => tracing::warn!("postgresql {detail}"),
                (false, true) => tracing::info!("postgresql answers again"),
                _ => {}
            }
        }
    });
}

async fn look(store: &Store, pg_clock: &PgClock, backlog: &Backlog) -> Result<(), &'static str> {
    match tokio::time::timeout(WITHIN, ask(store, pg_clock)).await {
        Ok(Ok(age)) => {
            backlog.set(age.unwrap_or_default());
            metrics::gauge!("outbox_oldest_age_seconds").set(age.unwrap_or_default().as_secs_f64());
            Ok(())
        }
        // Busy, not away: taken out of service for that, all replicas would go at once. Not before the
        // first reading of the clock, without which nothing is accepted.
        Ok(Err(error)) if !error.is_absence() && pg_clock.now().is_some() => Ok(()),
        Ok(Err(error)) => {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "postgresql does not answer"
            );
            Err("does not answer")
        }
        Err(_) => Err("does not answer in time"),
    }
}

async fn ask(store: &Store, pg_clock: &PgClock) -> Result<Option<Duration>, StoreError> {
    let now = store.clock().await?;
    pg_clock.observe(now, clock::monotonic());
    outbox::oldest_unpublished_age(store).await
}

#[cfg(test)]
mod tests {
    use store::StoreOptions;

    use super::*;

    #[tokio::test]
    async fn nobody_is_sent_here_before_the_first_reading_of_the_clock() {
        let store = Store::connect(&StoreOptions::new(
            "postgres://nobody@127.0.0.1:1/none",
            "test",
        ));
        let (ops, tasks) = (Ops::new(), Shutdown::new());
        let backlog = Backlog::default();
        start(store.unwrap(), PgClock::new(), backlog, ops.clone(), &tasks);
        // Nothing of the task has run.
        assert!(!ops.is_ready());
        tasks.begin();
    }
}
