//! Says whether the consumer is alive: its heartbeat in PostgreSQL, and its readiness. Being polled
//! and being a member is not progress (F in the catalogue of failures): lag without progress is
//! told from having nothing to do.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use contracts::ConsumerName;
use platform::{Ops, clock};
use store::{Store, heartbeats};

use super::shared::Shared;

/// How often both are looked at.
pub(super) const EVERY: Duration = Duration::from_secs(1);
/// Waiting for a dependency for longer is no life sign.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// A client that was not polled for longer is no life sign.
const POLL_MAX: Duration = Duration::from_secs(5);
/// Lag for longer without any progress: not ready.
const STALL_MAX: Duration = Duration::from_secs(60);

/// What the runner tells.
#[derive(Debug)]
pub(super) struct Progress {
    moved_at: Mutex<Instant>,
    waits_since: Mutex<Option<Instant>>,
    stuck: AtomicUsize,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self {
            moved_at: Mutex::new(clock::monotonic()),
            waits_since: Mutex::new(None),
            stuck: AtomicUsize::new(0),
        }
    }

    /// Records were done.
    pub(super) fn moved(&self) {
        *lock(&self.moved_at) = clock::monotonic();
    }

    /// A dependency is waited for, or not any more.
    pub(super) fn waits(&self, waits: bool) {
        let mut since = lock(&self.waits_since);
        *since = waits.then(|| since.unwrap_or_else(clock::monotonic));
    }

    /// How many events fail alone.
    pub(super) fn stuck(&self, events: usize) {
        self.stuck.store(events, Ordering::Relaxed);
    }

    fn waits_for(&self) -> Duration {
        lock(&self.waits_since)
            .map(|since| since.elapsed())
            .unwrap_or_default()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this consumer could handle an event now: expiry waits while no consumer can (P5).
fn is_alive(shared: &Shared, progress: &Progress) -> bool {
    shared.is_member() && shared.polled_ago() < POLL_MAX && progress.waits_for() < WAIT_MAX
}

/// Whether there is lag and nothing moves. An event that fails alone is no lag: it has its own end.
fn is_stalled(shared: &Shared, progress: &Progress) -> bool {
    let waiting = shared.outstanding() > progress.stuck.load(Ordering::Relaxed);
    if !waiting && shared.unread() == 0 {
        progress.moved();
        return false;
    }
    lock(&progress.moved_at).elapsed() > STALL_MAX
}

/// The name of the readiness condition.
fn condition(consumer: ConsumerName) -> &'static str {
    match consumer {
        ConsumerName::Order => "consumer.order",
        ConsumerName::Payment => "consumer.payment",
        ConsumerName::Stock => "consumer.stock",
    }
}

/// Looks once.
pub(super) async fn look(
    consumer: ConsumerName,
    store: &Store,
    ops: &Ops,
    shared: &Shared,
    progress: &Progress,
) {
    let stalled = is_stalled(shared, progress);
    let detail = if stalled { "lag without progress" } else { "" };
    ops.set(condition(consumer), !stalled, detail);
    metrics::gauge!("consumer_stuck_events", "consumer" => consumer.as_str()).set(f64::from(
        u32::try_from(progress.stuck.load(Ordering::Relaxed)).unwrap_or(u32::MAX),
    ));
    if stalled || !is_alive(shared, progress) {
        return;
    }
    let beaten = match store.conn().await {
        Ok(mut conn) => heartbeats::beat(&mut conn, consumer.as_str()).await,
        Err(error) => Err(error),
    };
    if let Err(error) = beaten {
        let error: &dyn std::error::Error = &error;
        tracing::debug!(
            error,
            consumer = consumer.as_str(),
            "heartbeat was not written"
        );
    }
}
