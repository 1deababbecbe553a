//! FAST, DIRECT or CLOSED, and every threshold between them (P10, P13).
//!
//! | mode | means | enters when |
//! |---|---|---|
//! | FAST | the gate refuses the crowd, PostgreSQL decides the rest | the gate answers |
//! | DIRECT | PostgreSQL decides all | a reserve failed or took longer than `HOLDFAST_GATE_TIMEOUT_MS` (50 ms); the breaker then spares the wait and tries Redis every 250 ms. Single orders are DIRECT when their shard has no epoch or their SKUs lie in several |
//! | CLOSED | 503 with Retry-After at once | PostgreSQL gives no sign of life or takes no writes |
//!
//! Single orders are 503 in any mode when a queue is full ([`QUEUE_MAX`]), no connection is free
//! within [`POOL_WAIT`], they are older than 2 s, or the outbox is so late that expiry would eat
//! their time ([`Backlog`]). No failure of a server is ever a 410.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use platform::{Shutdown, periodic};
use reservations::Gate;
use store::{Probe, Store, probe::Sign};

/// The most orders that wait before a stage; more are 503.
pub(crate) const QUEUE_MAX: usize = 4_096;

/// How long a connection of the pool is waited for (F35).
pub(crate) const POOL_WAIT: Duration = Duration::from_millis(200);

/// How often PostgreSQL is asked for a sign of life, while it is there and while it is not: an
/// order that comes in between waits so long at most before it is refused (T14).
const PROBE_EVERY: Duration = Duration::from_millis(50);

/// From this age of the oldest unpublished event on expiry calls it an outage of ours; what is
/// younger is a busy relay.
const OUTAGE_FROM_MS: u64 = 5_000;

/// How orders are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Through the gate.
    Fast,
    /// Without the gate.
    Direct,
    /// Not at all.
    Closed,
}

impl Mode {
    /// As in metrics and logs.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Direct => "direct",
            Self::Closed => "closed",
        }
    }

    /// The value of the gauge `mode`.
    fn number(self) -> f64 {
        match self {
            Self::Fast => 0.0,
            Self::Direct => 1.0,
            Self::Closed => 2.0,
        }
    }

    /// What two signs mean together.
    fn of(database_is_away: bool, gate_answers: bool) -> Self {
        match (database_is_away, gate_answers) {
            (true, _) => Self::Closed,
            (false, true) => Self::Fast,
            (false, false) => Self::Direct,
        }
    }
}

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

    pub(crate) fn set(&self, age: Duration) {
        self.age_ms.store(
            u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
    }
}

/// Keeps the mode true until shutdown: has the stores know whether PostgreSQL is away, so that
/// nobody waits for it.
pub(crate) fn start(probe: Probe, stores: Vec<Store>, gate: Gate, tasks: &Shutdown) {
    let state = Arc::new((tokio::sync::Mutex::new(probe), stores, gate));
    let shown = Arc::new(Mutex::new(None));
    periodic::spawn(tasks, PROBE_EVERY, move || {
        let (state, shown) = (Arc::clone(&state), Arc::clone(&shown));
        async move {
            let (probe, stores, gate) = &*state;
            let away = match probe.lock().await.ask().await {
                Ok(Sign { read_only, .. }) => Some(read_only),
                Err(error) if error.is_absence() => Some(true),
                // All connections are taken, say: that is no absence, nor the end of one.
                Err(_) => None,
            };
            if let Some(away) = away {
                stores.iter().for_each(|store| store.set_away(away));
            }
            let is_away = stores.iter().any(Store::is_away);
            show(Mode::of(is_away, gate.is_available()), &shown);
        }
    });
}

fn show(mode: Mode, shown: &Mutex<Option<Mode>>) {
    metrics::gauge!("mode").set(mode.number());
    let before = shown
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .replace(mode);
    if before == Some(mode) {
        return;
    }
    metrics::counter!("mode_changes_total", "to" => mode.as_str()).increment(1);
    let from = before.map_or("none", Mode::as_str);
    if mode == Mode::Fast {
        tracing::info!(from, to = mode.as_str(), "the mode of serving changed");
    } else {
        tracing::warn!(from, to = mode.as_str(), "the mode of serving changed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postgres_closes_and_the_gate_alone_never_does() {
        assert_eq!(Mode::of(false, true), Mode::Fast);
        assert_eq!(Mode::of(false, false), Mode::Direct);
        assert_eq!(Mode::of(true, true), Mode::Closed);
        assert_eq!(Mode::of(true, false), Mode::Closed);
    }

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
