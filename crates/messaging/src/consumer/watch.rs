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
use platform::{Ops, Patience, clock};
use store::{Store, heartbeats};

use super::{
    Stall,
    probe::{Broker, Findings, Found},
    shared::Shared,
};

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
    /// For how long records wait, here or at the broker, and none is read or done; `None` when nothing
    /// waits. Those that fail alone have an end of their own.
    pub(super) idle: Option<Duration>,
    /// Since the client was polled.
    pub(super) unpolled: Duration,
    /// For how much of that the servers were there, to the last that is known of them: the broker, and
    /// whatever handlers wait for.
    pub(super) served: Duration,
}

/// Judges. Servers that are away are waited out, since a new process would not bring them back; and
/// once they are back there is the whole time again.
pub(super) fn judge(seen: Seen, rule: Stall) -> Judgement {
    if seen.unpolled >= rule.ends_after {
        return Judgement::Hopeless;
    }
    match seen.idle {
        Some(_) if seen.served >= rule.ends_after => Judgement::Hopeless,
        Some(idle) if idle >= rule.unready_after => Judgement::Stalled,
        Some(_) | None => Judgement::Fine,
    }
}

/// What the runner tells, and what was seen so far.
#[derive(Debug)]
pub(super) struct Progress {
    begun_at: Instant,
    /// Records were done.
    moved_at: Mutex<Instant>,
    /// Nothing that is known here waited.
    quiet_at: Mutex<Instant>,
    /// A server was away.
    away_at: Mutex<Instant>,
    findings: Mutex<Findings>,
    waits_since: Mutex<Option<Instant>>,
    /// Whether the database answers here.
    database: Mutex<Patience>,
    stuck: AtomicUsize,
}

impl Progress {
    /// Nothing was seen yet. A member that the database does not answer leaves after so long.
    pub(super) fn new(leaves_after: Duration) -> Self {
        let now = clock::monotonic();
        Self {
            begun_at: now,
            moved_at: Mutex::new(now),
            quiet_at: Mutex::new(now),
            away_at: Mutex::new(now),
            findings: Mutex::default(),
            waits_since: Mutex::new(None),
            database: Mutex::new(Patience::new(leaves_after, now)),
            stuck: AtomicUsize::new(0),
        }
    }

    /// Records were done; the database took part in it.
    pub(super) fn moved(&self) {
        let now = clock::monotonic();
        *lock(&self.moved_at) = now;
        lock(&self.database).note(true, now);
    }

    /// The database was asked for anything.
    fn asked(&self, answered: bool) {
        lock(&self.database).note(answered, clock::monotonic());
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

    /// The broker was asked at `at`, and this was found.
    pub(super) fn add_finding(&self, at: Instant, found: Found) {
        lock(&self.findings).add(at, found);
    }

    /// There is nothing to ask about.
    pub(super) fn forget_findings(&self) {
        *lock(&self.findings) = Findings::default();
    }

    /// How long ago the consumer began.
    pub(super) fn age(&self) -> Duration {
        self.begun_at.elapsed()
    }

    /// Since when records wait that only another client reads.
    fn unread_since(&self, shared: &Shared) -> Option<Instant> {
        let (reached, member) = (shared.reached(), shared.is_member());
        lock(&self.findings).waiting(|partition, from| match reached.get(&partition) {
            Some(reached) => reached.next <= from,
            None => !member,
        })
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
    let unread = progress.unread_since(shared);
    shared.is_member()
        && shared.polled_ago() < POLL_MAX
        && progress.waits_for() < WAIT_MAX
        && unread.is_none_or(|since| since.elapsed() < WAIT_MAX)
}

/// Whether records of this member are better handled by another. Not by what fails: a row that is
/// locked for long fails for whoever tries, and would drive one member out after the other.
fn gives_way(progress: &Progress) -> bool {
    lock(&progress.database).is_over(clock::monotonic())
}

fn see(shared: &Shared, progress: &Progress) -> Seen {
    let now = clock::monotonic();
    let waiting = shared.outstanding() > progress.stuck.load(Ordering::Relaxed);
    let known = waiting || shared.unread() > 0;
    if !known {
        *lock(&progress.quiet_at) = now;
    }
    let known = known.then(|| (*lock(&progress.moved_at)).max(*lock(&progress.quiet_at)));
    let unread = progress.unread_since(shared);
    let since = known.into_iter().chain(unread).min();
    let broker = lock(&progress.findings).broker(now);
    let (here, until) = match broker {
        Broker::Answered(at) => (true, at),
        Broker::Away => (false, now),
        Broker::Unasked => (shared.is_connected(), now),
    };
    let answered = progress.waits_for().is_zero() && lock(&progress.database).works();
    if !here || !answered {
        *lock(&progress.away_at) = now;
    }
    let served = since.map(|since| since.max(*lock(&progress.away_at)));
    Seen {
        idle: since.map(|since| now.saturating_duration_since(since)),
        unpolled: shared.polled_ago(),
        served: served
            .map(|since| until.saturating_duration_since(since))
            .unwrap_or_default(),
    }
}

/// Whether the consumer has joined its group, or readiness is not to wait for it any longer. The
/// API does not wait: it takes orders whether requests come by Kafka or not.
fn has_joined(consumer: ConsumerName, shared: &Shared, progress: &Progress) -> bool {
    consumer == ConsumerName::Order
        || shared.is_member()
        || shared.last_change() > 0
        || progress.age() > JOIN_MAX
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
    let detail = match (shared.is_out(), stalled, joined) {
        (true, ..) => "out of its group: the database does not answer",
        (false, true, _) => "lag without progress",
        (false, false, false) => "joining its group",
        (false, false, true) => "",
    };
    ops.set(condition(consumer), detail.is_empty(), detail);
    metrics::gauge!("consumer_stuck_events", "consumer" => consumer.as_str()).set(f64::from(
        u32::try_from(progress.stuck.load(Ordering::Relaxed)).unwrap_or(u32::MAX),
    ));
    if judgement == Judgement::Hopeless {
        return judgement;
    }
    let alive = !stalled && is_alive(shared, progress);
    // one that can't be written to answers all the same
    let answered = (alive && beat(consumer, store).await) || store.ping().await.is_ok();
    progress.asked(answered);
    shared.keep_out(gives_way(progress));
    judgement
}

/// Writes the life sign; whether it was written.
async fn beat(consumer: ConsumerName, store: &Store) -> bool {
    let beaten = match store.conn().await {
        Ok(mut conn) => heartbeats::beat(&mut conn, consumer.as_str()).await,
        Err(error) => Err(error),
    };
    if let Err(error) = &beaten {
        let error: &dyn std::error::Error = error;
        tracing::debug!(
            error,
            consumer = consumer.as_str(),
            "heartbeat was not written"
        );
    }
    beaten.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Stall = Stall {
        unready_after: Duration::from_secs(60),
        ends_after: Duration::from_secs(120),
    };

    /// Seconds.
    const LONG: u64 = 9_999;
    const LONG_ENOUGH: Duration = Duration::from_secs(LONG);

    /// Seconds: idle, unpolled, served.
    #[test]
    fn lag_without_progress_takes_readiness_and_then_the_process_but_not_while_a_server_is_away() {
        use Judgement::{Fine, Hopeless, Stalled};
        let cases = [
            // nothing waits
            (None, 0, 0, Fine),
            (Some(59), 0, 59, Fine),
            (Some(60), 0, 60, Stalled),
            (Some(119), 0, 119, Stalled),
            (Some(120), 0, 120, Hopeless),
            // a server is away, or was until a moment ago, or has not answered since
            (Some(59), 0, 0, Fine),
            (Some(LONG), 0, 0, Stalled),
            (Some(LONG), 0, 119, Stalled),
            (Some(LONG), 0, 120, Hopeless),
            // the thread that polls hangs, whatever else is seen
            (None, 119, 0, Fine),
            (None, 120, 0, Hopeless),
            (Some(LONG), 120, 0, Hopeless),
        ];
        for (idle, unpolled, served, expected) in cases {
            let seen = Seen {
                idle: idle.map(Duration::from_secs),
                unpolled: Duration::from_secs(unpolled),
                served: Duration::from_secs(served),
            };
            assert_eq!(judge(seen, RULE), expected, "{seen:?}");
        }
    }

    #[test]
    fn what_only_another_client_reads_is_lag_as_long_as_a_broker_answers() {
        let shared = Shared::new("a topic".to_owned());
        let progress = Progress::new(LONG_ENOUGH);
        progress.asked(true);
        let found = || Found::Records([(0, 7)].into());
        assert_eq!(see(&shared, &progress).idle, None);
        progress.add_finding(clock::monotonic(), found());
        let first = see(&shared, &progress);
        assert!(first.idle.is_some() && first.served.is_zero(), "{first:?}");
        let later = clock::monotonic() + Duration::from_secs(30);
        progress.add_finding(later, found());
        let served = see(&shared, &progress).served;
        assert!(served >= Duration::from_secs(29), "{served:?}");
        // a dependency is away, and back: the time begins anew
        progress.waits(true);
        see(&shared, &progress);
        progress.waits(false);
        assert!(see(&shared, &progress).served < served);
        // the database is away though nobody waits for it: the member may be out of its group
        let served = see(&shared, &progress).served;
        progress.asked(false);
        see(&shared, &progress);
        progress.asked(true);
        assert!(see(&shared, &progress).served < served);
        progress.add_finding(later, Found::Nobody);
        assert_eq!(see(&shared, &progress).idle, None);
    }
}
