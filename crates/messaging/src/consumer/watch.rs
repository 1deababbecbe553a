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

use super::{Stall, shared::Shared};

/// How often both are looked at.
pub(super) const EVERY: Duration = Duration::from_secs(1);
/// Waiting for a dependency for longer is no life sign.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// A client that was not polled for longer is no life sign.
const POLL_MAX: Duration = Duration::from_secs(5);
/// How long readiness waits for the group at the start; without Kafka the service is ready then.
const JOIN_MAX: Duration = Duration::from_secs(10);

/// What a look at a consumer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judgement {
    /// It works, or has nothing to do.
    Fine,
    /// There is lag and nothing moves: not ready.
    Stalled,
    /// So long that only a new process helps.
    Hopeless,
}

/// What a look sees.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// Whether records wait, here or at the broker; those that fail alone have an end of their own.
    pub(super) lag: bool,
    /// Since the last record was done, or nothing waited.
    pub(super) idle: Duration,
    /// Since the client was polled.
    pub(super) unpolled: Duration,
    /// Whether a dependency is waited for.
    pub(super) waits: bool,
    /// Whether a broker is connected.
    pub(super) connected: bool,
}

/// Judges. Servers that are away are waited out: a new process would not bring them back.
pub(super) fn judge(seen: Seen, rule: Stall) -> Judgement {
    if seen.unpolled >= rule.ends_after {
        return Judgement::Hopeless;
    }
    if !seen.lag || seen.idle < rule.unready_after {
        return Judgement::Fine;
    }
    if seen.waits || !seen.connected || seen.idle < rule.ends_after {
        return Judgement::Stalled;
    }
    Judgement::Hopeless
}

/// What the runner tells.
#[derive(Debug)]
pub(super) struct Progress {
    begun_at: Instant,
    moved_at: Mutex<Instant>,
    waits_since: Mutex<Option<Instant>>,
    stuck: AtomicUsize,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self {
            begun_at: clock::monotonic(),
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

fn see(shared: &Shared, progress: &Progress) -> Seen {
    let waiting = shared.outstanding() > progress.stuck.load(Ordering::Relaxed);
    let lag = waiting || shared.unread() > 0;
    if !lag {
        progress.moved();
    }
    Seen {
        lag,
        idle: lock(&progress.moved_at).elapsed(),
        unpolled: shared.polled_ago(),
        waits: !progress.waits_for().is_zero(),
        connected: shared.is_connected(),
    }
}

/// Whether the consumer has joined its group, or readiness is not to wait for it any longer. The
/// API does not wait: it takes orders whether requests come by Kafka or not.
fn has_joined(consumer: ConsumerName, shared: &Shared, progress: &Progress) -> bool {
    consumer == ConsumerName::Order
        || shared.is_member()
        || shared.last_change() > 0
        || progress.begun_at.elapsed() > JOIN_MAX
}

/// Not ready until it has joined.
pub(super) fn begin(consumer: ConsumerName, ops: &Ops) {
    let ready = consumer == ConsumerName::Order;
    ops.set(condition(consumer), ready, "joining its group");
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
    rule: Stall,
    store: &Store,
    ops: &Ops,
    shared: &Shared,
    progress: &Progress,
) -> Judgement {
    let judgement = judge(see(shared, progress), rule);
    let stalled = judgement != Judgement::Fine;
    let joined = has_joined(consumer, shared, progress);
    let detail = match (stalled, joined) {
        (true, _) => "lag without progress",
        (false, false) => "joining its group",
        (false, true) => "",
    };
    ops.set(condition(consumer), !stalled && joined, detail);
    metrics::gauge!("consumer_stuck_events", "consumer" => consumer.as_str()).set(f64::from(
        u32::try_from(progress.stuck.load(Ordering::Relaxed)).unwrap_or(u32::MAX),
    ));
    if stalled || !is_alive(shared, progress) {
        return judgement;
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
    judgement
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Stall = Stall {
        unready_after: Duration::from_secs(60),
        ends_after: Duration::from_secs(120),
    };

    fn idle(seconds: u64) -> Seen {
        Seen {
            lag: true,
            idle: Duration::from_secs(seconds),
            unpolled: Duration::ZERO,
            waits: false,
            connected: true,
        }
    }

    #[test]
    fn lag_without_progress_takes_readiness_and_then_the_process() {
        assert_eq!(judge(idle(59), RULE), Judgement::Fine);
        assert_eq!(judge(idle(60), RULE), Judgement::Stalled);
        assert_eq!(judge(idle(119), RULE), Judgement::Stalled);
        assert_eq!(judge(idle(120), RULE), Judgement::Hopeless);
        let nothing_to_do = Seen {
            lag: false,
            ..idle(9_999)
        };
        assert_eq!(judge(nothing_to_do, RULE), Judgement::Fine);
    }

    #[test]
    fn servers_that_are_away_end_no_process() {
        for away in [
            Seen {
                waits: true,
                ..idle(9_999)
            },
            Seen {
                connected: false,
                ..idle(9_999)
            },
        ] {
            assert_eq!(judge(away, RULE), Judgement::Stalled);
        }
    }

    #[test]
    fn a_client_that_is_not_polled_is_hopeless_whatever_else_is_seen() {
        let hung = Seen {
            lag: false,
            connected: false,
            unpolled: RULE.ends_after,
            ..idle(0)
        };
        assert_eq!(judge(hung, RULE), Judgement::Hopeless);
    }
}
