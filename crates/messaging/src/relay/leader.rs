//! One leadership: steps of read, send, collect and move.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use platform::{Patience, clock};
use store::{
    Lease, dead_letters,
    lease::HEARTBEAT_EVERY,
    outbox::{self, OutboxRow},
};
use uuid::Uuid;

use super::{
    RelayConfig, RelayError,
    cursor::Cursor,
    record::{self, Outgoing, Unsendable},
    sender::{Blame, Handed, Report, Sender, blame},
};
use crate::backoff::Backoff;

/// The name of the lock.
pub(super) const LEASE: &str = "holdfast.relay";
/// Rows of one read.
const READ: i64 = 1000;
/// Records that are sent and not yet acknowledged, at most.
const IN_FLIGHT_MAX: usize = 5000;
/// How often the watermark moves while records flow.
const MOVE_EVERY: Duration = Duration::from_millis(100);
/// How long the last records may take at shutdown.
const FLUSH: Duration = Duration::from_secs(3);
/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Rows read.
    pub read: usize,
    /// Records acknowledged.
    pub acknowledged: usize,
    /// Records sent or to be sent, and not acknowledged.
    pub in_flight: usize,
    /// Ids that may still appear below what was read.
    pub gaps: usize,
    /// The watermark.
    pub low: i64,
    /// Whether more rows are there to be read at once.
    pub more: bool,
}

impl Step {
    /// Whether it found nothing to do and nothing is under way.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.read == 0 && self.acknowledged == 0 && self.in_flight == 0
    }
}

/// A record on its way.
pub(super) struct Flight {
    pub(super) event_id: Uuid,
    /// Nothing else was under way when it was sent, so a failure is its own.
    pub(super) alone: bool,
}

/// Something stops a record, from its first failure until the watermark has passed it.
pub(super) struct Outage {
    pub(super) failed: i64,
    pub(super) retry_at: Instant,
}

/// A leading relay.
pub struct Relay {
    pub(super) config: RelayConfig,
    pub(super) lease: Lease,
    pub(super) sender: Sender,
    pub(super) cursor: Cursor,
    /// Read, not yet handed over; by rising id, but for rows of closed gaps.
    pub(super) pending: VecDeque<OutboxRow>,
    pub(super) in_flight: BTreeMap<i64, Flight>,
    /// A report that [`Relay::reported`] took.
    pub(super) early: Option<Report>,
    /// The watermark as stored.
    pub(super) low: i64,
    /// What counts as published, as stored.
    pub(super) sent: i64,
    /// What lies up to it was published before and is sent once more, as far as is known: an event
    /// that came late while nobody led is among it, and counts as published too early.
    pub(super) repeats: i64,
    /// Up to this id records are sent one at a time: one of them failed in a batch, and it is to be
    /// seen which.
    pub(super) alone_until: i64,
    pub(super) outage: Option<Outage>,
    pub(super) backoff: Backoff,
    spoke_at: Instant,
    moved_at: Instant,
    pub(super) measured_at: Option<Instant>,
    pub(super) partitions_at: Option<Instant>,
    /// Whether what is to be sent is acknowledged.
    pub(super) patience: Patience,
    pub(super) silent: bool,
    /// This process gave way before, and nothing was acknowledged to it since.
    pub(super) gave_way: bool,
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay")
            .field("low", &self.low)
            .field("cursor", &self.cursor)
            .field("in_flight", &self.in_flight.len())
            .finish_non_exhaustive()
    }
}

impl Relay {
    /// Takes the lease; `None` when another process leads.
    ///
    /// # Errors
    /// The database is away, or no producer can be made.
    pub async fn lead(config: RelayConfig) -> Result<Option<Self>, RelayError> {
        let Some(mut lease) = Lease::try_acquire(&config.options, LEASE).await? else {
            return Ok(None);
        };
        let low = outbox::watermark(lease.conn()).await?;
        let sent = outbox::sent(lease.conn()).await?;
        let sender =
            Sender::new(&config.brokers, &config.instance).map_err(RelayError::Producer)?;
        let now = clock::monotonic();
        let patience = Patience::new(config.silence_max, now);
        Ok(Some(Self {
            config,
            lease,
            sender,
            cursor: Cursor::new(low),
            pending: VecDeque::new(),
            in_flight: BTreeMap::new(),
            early: None,
            low,
            sent,
            repeats: sent,
            alone_until: low,
            outage: None,
            backoff: Backoff::new(Duration::from_millis(100), Duration::from_secs(5)),
            spoke_at: now,
            moved_at: now,
            measured_at: None,
            partitions_at: None,
            patience,
            silent: false,
            gave_way: false,
        }))
    }

    /// The watermark as stored.
    #[must_use]
    pub fn low(&self) -> i64 {
        self.low
    }

    /// One step: collects what was acknowledged, reads, hands over, moves the watermark, speaks on
    /// the lease. Waits for no acknowledgement, so it takes as long as its statements.
    ///
    /// # Errors
    /// The lease or its connection is lost: nothing more may be done under it.
    pub async fn step(&mut self) -> Result<Step, RelayError> {
        let acknowledged = self.collect().await?;
        let mut read = 0;
        let now = clock::monotonic();
        if self
            .outage
            .as_ref()
            .is_none_or(|outage| outage.retry_at <= now)
        {
            if self.pending.is_empty() && self.in_flight.len() + 1000 <= IN_FLIGHT_MAX {
                read = self.read().await?;
            }
            platform::crash_point!(
                "cp13",
                if !self.pending.is_empty(),
                err => return Err(store::StoreError::no_connection().into())
            );
            self.hand_over().await?;
        }
        self.move_watermark(false).await?;
        self.upkeep().await;
        self.speak().await?;
        let more = i64::try_from(read).is_ok_and(|read| read >= READ)
            && self.pending.is_empty()
            && self.in_flight.len() + 1000 <= IN_FLIGHT_MAX;
        let in_flight = self.in_flight.len() + self.pending.len();
        Ok(Step {
            read,
            acknowledged,
            in_flight,
            gaps: self.cursor.gaps().len(),
            low: self.low,
            more,
        })
    }

    /// Whether rows wait for records to be acknowledged before they may be handed over.
    pub(super) fn is_held_up(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns when something may be collected; for ever when nothing is under way.
    pub(super) async fn reported(&mut self) {
        if self.early.is_none() {
            match self.sender.report().await {
                Some(report) => self.early = Some(report),
                None => std::future::pending().await,
            }
        }
    }

    /// Ends the leadership: waits a moment for what is under way, moves the watermark, gives the
    /// lease back.
    pub async fn stand_down(mut self) {
        let start = clock::monotonic();
        let ended = async {
            while !self.in_flight.is_empty() && self.outage.is_none() && start.elapsed() < FLUSH {
                let _ = tokio::time::timeout(Duration::from_millis(100), self.reported()).await;
                self.collect().await?;
                self.speak().await?;
            }
            self.move_watermark(true).await
        };
        if let Err(error) = ended.await {
            let error: &dyn std::error::Error = &error;
            tracing::warn!(error, "relay could not move its watermark at the end");
        }
        self.lease.release().await;
    }

    /// Whether there has been something to send for too long without any acknowledgement.
    pub(super) fn is_in_vain(&self) -> bool {
        self.patience.is_over(clock::monotonic())
    }

    /// Ends the leadership at once: nothing that is under way is waited for.
    pub(super) async fn give_back(self) {
        self.lease.release().await;
    }

    /// Reads rows in one statement, and gives new gaps their fence.
    async fn read(&mut self) -> Result<usize, RelayError> {
        let (gaps, high) = (self.cursor.gaps(), self.cursor.high());
        let batch = outbox::read(self.lease.conn(), high, &gaps, READ).await?;
        self.spoke_at = clock::monotonic();
        let ids: Vec<i64> = batch.rows.iter().map(|row| row.id).collect();
        let xmin = u64::try_from(batch.xmin).unwrap_or(0);
        platform::crash_point!(
            "cp10",
            if !ids.is_empty(),
            err => return Err(store::StoreError::no_connection().into())
        );
        let taken = self.cursor.take(&ids, xmin);
        self.pending.extend(batch.rows.into_iter().take(taken));
        // Of a gap: what is there for the first time is no repeat.
        if let Some(late) = ids.first().filter(|id| **id <= high) {
            self.repeats = self.repeats.min(late - 1);
        }
        if self.cursor.needs_fence() {
            let xid = outbox::begin_fence(self.lease.conn()).await?;
            self.cursor.fence(u64::try_from(xid).unwrap_or(u64::MAX));
        }
        Ok(taken)
    }

    /// Hands rows over in their order until the queue is full.
    async fn hand_over(&mut self) -> Result<(), RelayError> {
        while let Some(row) = self.pending.front() {
            let (id, event_id) = (row.id, row.event_id);
            let alone = id <= self.alone_until;
            let limit = if alone { 1 } else { IN_FLIGHT_MAX };
            // what goes alone must not be joined in its batch by what follows, either
            let goes_alone = self
                .in_flight
                .values()
                .next()
                .is_some_and(|flight| flight.alone);
            if goes_alone || self.in_flight.len() >= limit {
                return Ok(());
            }
            let handed = match self.outgoing().await? {
                Ok(record) => self.sender.hand(id, &record),
                Err(fault) => {
                    self.pending.pop_front();
                    self.park(id, event_id, &fault.to_string()).await?;
                    continue;
                }
            };
            match handed {
                Handed::Sent => {
                    self.pending.pop_front();
                    self.in_flight.insert(id, Flight { event_id, alone });
                }
                Handed::Full => return Ok(()),
                Handed::Failed(code) if blame(code) == Blame::Record => {
                    self.pending.pop_front();
                    self.park(id, event_id, &code.to_string()).await?;
                }
                Handed::Failed(code) => return self.begin_again(id, &code.to_string()),
            }
        }
        Ok(())
    }

    /// The record of the row in front.
    async fn outgoing(&mut self) -> Result<Result<Outgoing, Unsendable>, RelayError> {
        let Some(row) = self.pending.front() else {
            return Ok(Err(Unsendable::NoDeadLetter));
        };
        if row.event_type != outbox::DEAD_LETTER {
            return Ok(record::event(row, &self.config.names));
        }
        let found = dead_letters::get(self.lease.conn(), row.event_id).await?;
        Ok(match found {
            Some(dead) => record::dead_letter(row, &dead, &self.config.names),
            None => Err(Unsendable::NoDeadLetter),
        })
    }

    /// Sets a row aside, visibly, and passes it.
    pub(super) async fn park(
        &mut self,
        id: i64,
        event_id: Uuid,
        reason: &str,
    ) -> Result<(), RelayError> {
        outbox::park(self.lease.conn(), id, event_id, reason).await?;
        metrics::counter!("relay_parked_total").increment(1);
        metrics::counter!("alarms_total", "kind" => "event-parked").increment(1);
        tracing::error!(event.id = %event_id, outbox.id = id, reason, "event parked: it can never be sent");
        Ok(())
    }

    /// Everything up to it is acknowledged, parked or a closed gap.
    pub(super) fn floor(&self) -> i64 {
        let sent = self.in_flight.first_key_value().map(|(id, _)| id - 1);
        let waiting = self.pending.iter().map(|row| row.id - 1).min();
        [Some(self.cursor.floor()), sent, waiting]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(self.low)
    }

    /// Everything up to it that was seen is acknowledged or parked, whatever may appear below it.
    pub(super) fn sent(&self) -> i64 {
        let unsent = self.in_flight.range(self.repeats + 1..).next();
        let waiting = self.pending.iter().map(|row| row.id);
        let waiting = waiting.filter(|id| *id > self.repeats).min();
        let first = unsent.map(|(id, _)| *id).into_iter().chain(waiting).min();
        first.map_or_else(|| self.cursor.high().max(self.repeats), |first| first - 1)
    }

    async fn move_watermark(&mut self, now: bool) -> Result<(), RelayError> {
        let (floor, sent) = (self.floor(), self.sent());
        let due = now || self.in_flight.is_empty() || self.moved_at.elapsed() >= MOVE_EVERY;
        if (floor > self.low || sent != self.sent) && due {
            platform::crash_point!(
                "cp12",
                if self.in_flight.is_empty(),
                err => return Err(store::StoreError::no_connection().into())
            );
            outbox::move_watermark(self.lease.conn(), floor, sent).await?;
            (self.low, self.sent) = (floor, sent);
            self.moved_at = clock::monotonic();
            self.spoke_at = self.moved_at;
        }
        Ok(())
    }

    /// Keeps the lease alive when nothing else was said on its connection.
    async fn speak(&mut self) -> Result<(), RelayError> {
        if self.spoke_at.elapsed() >= HEARTBEAT_EVERY {
            self.lease.heartbeat().await?;
            self.spoke_at = clock::monotonic();
        }
        Ok(())
    }
}
