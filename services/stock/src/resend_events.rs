//! Events that Kafka has lost are sent again (I18): published, and their consumer has caught up with
//! its topic and has neither handled them nor set them aside; what the relay has parked was never
//! sent, and can't be. A topic that was recreated empty, a
//! broker that was set back, a database that was restored and has forgotten what its consumers did.
//!
//! 1. Compare outbox and inbox, page by page: the newest rows first, then all that are kept. *Dies
//!    here:* nothing has happened.
//! 2. What is still not handled at a later look, of a consumer that has caught up, is written to the
//!    outbox again, with the same event id, in one transaction. *Dies here:* it is sent or not; if
//!    not, the next look does it. Who has handled it meanwhile drops it.
//!
//! Bounded: some at a time, each at most once a minute and ever more rarely.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use contracts::ConsumerName;
use store::audit::{Auditor, Undelivered};
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::{Stock, StockError, audit::pace::Pace};

/// Rows of the outbox that one look compares.
const PAGE: i64 = 2_000;

/// The newest rows, that a new leader compares first.
const NEWEST: i64 = 20_000;

/// Events that are sent again at once.
const BATCH: usize = 1_000;

/// Events that are remembered as lost; the look goes on when there are fewer.
const REMEMBERED: usize = 10_000;

/// An event is lost when it was not handled for so long after it was first missed.
const MISSED_FOR: Duration = Duration::from_secs(5);

/// When an event that was sent again is sent again; doubled each time.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// The longest wait between two sendings.
const AGAIN_AT_MOST: Duration = Duration::from_secs(3_600);

/// Events that a log line names.
const NAMED: usize = 5;

#[derive(Debug)]
struct Missed {
    event: Undelivered,
    since: Instant,
    seen_again: bool,
    sent: u32,
    next: Instant,
}

#[derive(Debug)]
struct State {
    pace: Pace,
    newest: Option<i64>,
    /// The walk over older rows: where it is, and where the newest began.
    older: (i64, i64),
    /// By event: a copy that was sent again is a row of its own, and no other event.
    missed: BTreeMap<Uuid, Missed>,
}

/// The look and what it remembers.
#[derive(Debug)]
pub struct ResendEvents {
    stock: Stock,
    auditor: Auditor,
    consumers: Vec<ConsumerName>,
    state: Mutex<State>,
}

impl ResendEvents {
    /// Watches over what these consumers must handle.
    #[must_use]
    pub fn new(stock: Stock, auditor: Auditor, consumers: Vec<ConsumerName>) -> Self {
        Self {
            stock,
            auditor,
            consumers,
            state: Mutex::new(State {
                pace: Pace::new(Duration::from_secs(1), Duration::from_secs(5), 3),
                newest: None,
                older: (0, 0),
                missed: BTreeMap::new(),
            }),
        }
    }

    /// Compares some of the outbox with the inbox; call it every second.
    ///
    /// # Errors
    /// PostgreSQL is away.
    pub async fn look(&self) -> Result<(), StockError> {
        let mut state = self.state.lock().await;
        let began = platform::clock::monotonic();
        if !state.pace.is_due(began) {
            return Ok(());
        }
        self.look_again(&mut state).await?;
        if state.missed.len() < REMEMBERED {
            self.look_on(&mut state).await?;
        }
        state.pace.ran(began, platform::clock::monotonic());
        Ok(())
    }

    /// What was missed at two looks at least, as `ID: what`.
    pub async fn lost(&self) -> Vec<String> {
        let state = self.state.lock().await;
        state
            .missed
            .values()
            .filter(|missed| missed.seen_again)
            .map(|missed| {
                let event = &missed.event;
                format!(
                    "event {}: {} not handled by {}",
                    event.event_id, event.about, event.consumer
                )
            })
            .collect()
    }

    /// Consumers that have missed something for long enough.
    pub async fn waiting(&self) -> Vec<ConsumerName> {
        let now = platform::clock::monotonic();
        let state = self.state.lock().await;
        let waits = |consumer: &ConsumerName| {
            let mut missed = state.missed.values();
            missed.any(|one| one.is_due(now) && one.event.consumer == consumer.as_str())
        };
        self.consumers.iter().copied().filter(waits).collect()
    }

    /// Sends again what these consumers, which have caught up, have missed; how much that was.
    ///
    /// # Errors
    /// PostgreSQL is away.
    pub async fn resend(&self, caught_up: &[ConsumerName]) -> Result<usize, StockError> {
        let now = platform::clock::monotonic();
        let mut state = self.state.lock().await;
        let due: Vec<(Uuid, i64)> = state
            .missed
            .iter()
            .filter(|(_, missed)| {
                let of = |name: &ConsumerName| missed.event.consumer == name.as_str();
                missed.is_due(now) && caught_up.iter().any(of)
            })
            .take(BATCH)
            .map(|(event, missed)| (*event, missed.event.id))
            .collect();
        if due.is_empty() {
            return Ok(0);
        }
        let ids: Vec<i64> = due.iter().map(|(_, id)| *id).collect();
        let mut tx = self.stock.store.begin().await?;
        store::outbox::send_again(&mut tx, &ids).await?;
        tx.commit().await?;
        let mut named = Vec::new();
        for (event, _) in &due {
            if let Some(missed) = state.missed.get_mut(event) {
                let wait = AGAIN_AFTER.saturating_mul(1 << missed.sent.min(6));
                missed.next = now + wait.min(AGAIN_AT_MOST);
                missed.sent += 1;
                if named.len() < NAMED {
                    named.push(event.to_string());
                }
            }
        }
        let count = due.len();
        metrics::counter!("alarms_total", "kind" => "events-lost").increment(1);
        metrics::counter!("events_sent_again_total")
            .increment(u64::try_from(count).unwrap_or(u64::MAX));
        tracing::error!(
            count,
            events = named.join("; "),
            "events that were published never reached their consumer and are sent again"
        );
        Ok(count)
    }

    /// Forgets what was handled by now.
    async fn look_again(&self, state: &mut State) -> Result<(), StockError> {
        if state.missed.is_empty() {
            return Ok(());
        }
        let asked: Vec<Undelivered> = state
            .missed
            .values()
            .map(|missed| missed.event.clone())
            .collect();
        let still = self.auditor.still_lost(&asked).await?;
        let still: BTreeSet<i64> = still.into_iter().collect();
        state.missed.retain(|_, one| still.contains(&one.event.id));
        for missed in state.missed.values_mut() {
            missed.seen_again = true;
        }
        Ok(())
    }

    /// The next rows, of the newest and of the older ones.
    async fn look_on(&self, state: &mut State) -> Result<(), StockError> {
        let newest = match state.newest {
            Some(newest) => newest,
            None => {
                let mut conn = self.stock.store.conn().await?;
                let low = store::outbox::watermark(&mut conn).await?;
                let begin = (low - NEWEST).max(0);
                state.older = (0, begin);
                begin
            }
        };
        state.newest = Some(self.page(state, newest).await?);
        let (older, end) = state.older;
        if older < end {
            let last = self.page(state, older).await?;
            // Rows of dropped partitions are no rows: a page without any is the end.
            state.older.0 = if last == older { end } else { last };
        }
        Ok(())
    }

    async fn page(&self, state: &mut State, after: i64) -> Result<i64, StockError> {
        let names: Vec<&str> = self.consumers.iter().map(|name| name.as_str()).collect();
        let seen = self.auditor.deliveries(after, PAGE, &names).await?;
        let now = platform::clock::monotonic();
        for event in seen.lost {
            state.missed.entry(event.event_id).or_insert(Missed {
                event,
                since: now,
                seen_again: false,
                sent: 0,
                next: now + MISSED_FOR,
            });
        }
        Ok(seen.last.unwrap_or(after))
    }
}

impl Missed {
    fn is_due(&self, now: Instant) -> bool {
        let missed_for = now.saturating_duration_since(self.since);
        self.seen_again && self.next <= now && missed_for >= MISSED_FOR
    }
}
