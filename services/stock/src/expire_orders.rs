//! Overdue orders expire, decided in PostgreSQL alone (P5).
//!
//! A batch is one transaction:
//! 1. Take the expiry lock; another process that has it does the work. Clocks that disagree hold
//!    everything.
//! 2. Judge the signals ([`crate::pause`]): an outage of ours is opened, lasts, or is over, which
//!    moves the next deadlines by what was lost, and closes it when all have moved; only when nothing
//!    is wrong does the batch go on. *Dies before the commit:* nothing has happened; the next tick
//!    judges again, and no deadline moves twice ([`store::outages::close`]).
//! 3. Statement 1 locks overdue orders without looking at payments; statement 2, with a new
//!    snapshot, drops those with a payment in flight.
//! 4. The rest ends: stock, history, events. Commit. *Dies before:* the locks go, nothing expired.
//! 5. `sync`. *Dies before:* the due sweep releases the holds within 32 s.
//!
//! An order that can't be ended, because its SKU's stock holds less than it says, takes no place of
//! others: a batch that fails because of a row is made smaller until the one that fails is alone,
//! which is passed over, alarmed about, and tried again by the next tick. Whatever else fails, a
//! time-out above all, would fail with fewer orders as well: it ends the pass.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use contracts::{OrderId, Timestamp, envelope::source};
use domain::{EndReason, OrderStatus, deadline::PAYMENT_GRACE};
use store::{
    Tx, expiry,
    expiry::Cursor,
    orders::{Ending, Transitioned, transition},
    outages::{self, Closing, Outage},
};
use uuid::Uuid;

use crate::{
    Stock, StockError,
    clock_check::{ClockCheck, Clocks},
    pause::{Judgement, judge},
    sync_gate::sync_orders,
};

/// Orders that one transaction looks at.
pub const BATCH: i64 = 500;

/// Orders whose deadlines one transaction moves.
pub const MOVED_AT_ONCE: i64 = 2_000;

/// Transactions that move deadlines in one tick: a second's work or two, so that a process that is
/// to end does not wait for all of them.
const MOVES_OF_A_TICK: usize = 20;

/// How much smaller a batch becomes that fails, and how much larger one that succeeds.
const SMALLER: i64 = 4;

/// How expiry behaves.
#[derive(Debug)]
pub struct ExpireOrders {
    stock: Stock,
    /// Consumers without which nobody's order expires.
    required: Vec<&'static str>,
    payment_grace: Duration,
    clocks: Mutex<ClockCheck>,
    /// Orders that the last pass could not end.
    stuck: AtomicUsize,
    moved_at_once: i64,
    /// Which outage is being closed, and up to which deadline.
    moved_upto: Mutex<Option<(Uuid, Cursor)>>,
}

/// What a tick did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expired {
    /// These orders expired; none other is due.
    Orders(Vec<OrderId>),
    /// Another process expires.
    Elsewhere,
    /// An outage of ours lasts, or not all deadlines have moved by one that is over.
    Paused,
    /// The clocks disagree by so much.
    Held(Duration),
}

/// What one transaction did.
enum Batch {
    Elsewhere,
    Paused,
    Held(Duration),
    Opened {
        reason: String,
        since: Timestamp,
    },
    /// Some deadlines have moved, up to there.
    Moved(Uuid, Cursor),
    /// All deadlines have moved, so the pass begins anew.
    Resumed {
        outage: Outage,
        ended_at: Timestamp,
        moved: i64,
    },
    Orders {
        expired: Vec<OrderId>,
        next: Option<Cursor>,
    },
    /// One of the orders can't be ended, and so none of them was.
    Refused(StockError),
}

impl Batch {
    /// Whether there is anything to be made lasting.
    fn wrote(&self) -> bool {
        match self {
            Self::Elsewhere | Self::Paused | Self::Held(_) | Self::Refused(_) => false,
            Self::Opened { .. } | Self::Moved(..) | Self::Resumed { .. } | Self::Orders { .. } => {
                true
            }
        }
    }
}

impl ExpireOrders {
    /// Expiry that pauses while one of the `required` consumers is silent.
    #[must_use]
    pub fn new(stock: Stock, required: Vec<&'static str>) -> Self {
        Self {
            stock,
            required,
            payment_grace: PAYMENT_GRACE,
            clocks: Mutex::default(),
            stuck: AtomicUsize::new(0),
            moved_at_once: MOVED_AT_ONCE,
            moved_upto: Mutex::default(),
        }
    }

    /// Another number of deadlines that one transaction moves: for tests.
    #[must_use]
    pub fn with_moved_at_once(mut self, orders: i64) -> Self {
        self.moved_at_once = orders;
        self
    }

    /// Another time for which a payment in flight protects its order: for tests.
    #[must_use]
    pub fn with_payment_grace(mut self, grace: Duration) -> Self {
        self.payment_grace = grace;
        self
    }

    /// Expires all that is due.
    ///
    /// # Errors
    /// PostgreSQL is away, or fails whatever it is asked. What had expired before has.
    pub async fn expire_due_orders(&self) -> Result<Expired, StockError> {
        let (mut all, mut stuck, mut moves) = (Vec::new(), 0, 0);
        let (mut from, mut size) = (Cursor::START, BATCH);
        loop {
            match self.batch(from, size).await? {
                Batch::Elsewhere => return Ok(Expired::Elsewhere),
                Batch::Paused | Batch::Opened { .. } => return Ok(Expired::Paused),
                Batch::Held(by) => return Ok(Expired::Held(by)),
                Batch::Moved(..) => {
                    moves += 1;
                    if moves == MOVES_OF_A_TICK {
                        return Ok(Expired::Paused);
                    }
                }
                Batch::Resumed { .. } => from = Cursor::START,
                Batch::Refused(_) if size > 1 => size = (size / SMALLER).max(1),
                Batch::Refused(error) => {
                    let Some(next) = self.first_due(from).await? else {
                        return Err(error);
                    };
                    self.note_stuck(next.order_id, &error);
                    stuck += 1;
                    from = next;
                }
                Batch::Orders { expired, next } => {
                    self.finish(&expired).await;
                    all.extend(expired);
                    size = size.saturating_mul(SMALLER).min(BATCH);
                    match next {
                        Some(next) => from = next,
                        None => break,
                    }
                }
            }
        }
        self.stuck.store(stuck, Ordering::Relaxed);
        metrics::gauge!("orders_that_cannot_expire")
            .set(f64::from(u32::try_from(stuck).unwrap_or(u32::MAX)));
        Ok(Expired::Orders(all))
    }

    /// The first overdue order after the cursor, to be passed over.
    async fn first_due(&self, after: Cursor) -> Result<Option<Cursor>, StockError> {
        let mut tx = self.stock.store.begin().await?;
        let due = expiry::lock_due(&mut tx, after, 1).await?;
        tx.rollback().await?;
        Ok(due.first().copied())
    }

    /// Says it when it is new: each tick tries again.
    fn note_stuck(&self, order: OrderId, error: &StockError) {
        metrics::counter!("alarms_total", "kind" => "order-cannot-expire").increment(1);
        if self.stuck.load(Ordering::Relaxed) == 0 {
            tracing::error!(
                order.id = %order,
                error = error as &dyn std::error::Error,
                "an overdue order can't be ended; it is passed over and tried again"
            );
        }
    }

    async fn finish(&self, expired: &[OrderId]) {
        if expired.is_empty() {
            return;
        }
        metrics::counter!("orders_expired_total")
            .increment(u64::try_from(expired.len()).unwrap_or(u64::MAX));
        if let Err(error) = sync_orders(&self.stock, expired).await {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "expired orders are not synced; the sweep will find them"
            );
        }
    }

    /// One transaction, ended whatever comes of it: dropped, it would hold the expiry lock until its
    /// connection is used again.
    async fn batch(&self, from: Cursor, size: i64) -> Result<Batch, StockError> {
        let mut tx = self.stock.store.begin().await?;
        let done = self.step(&mut tx, from, size).await;
        match &done {
            Ok(batch) if batch.wrote() => tx.commit().await?,
            Ok(_) | Err(_) => tx.rollback().await?,
        }
        let batch = done?;
        self.note(&batch);
        Ok(batch)
    }

    /// Steps 1 to 4.
    async fn step(&self, tx: &mut Tx, from: Cursor, size: i64) -> Result<Batch, StockError> {
        if !expiry::try_lock(tx).await? {
            return Ok(Batch::Elsewhere);
        }
        let signals = outages::signals(tx, &self.required).await?;
        let clocks = self
            .clocks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .compare(signals.now, platform::clock::monotonic());
        if let Clocks::Disagree(by) = clocks {
            return Ok(Batch::Held(by));
        }
        match judge(&signals) {
            Judgement::Run => {}
            Judgement::Pause => return Ok(Batch::Paused),
            Judgement::Open { reason, since } => {
                outages::open(tx, &reason, since).await?;
                return Ok(Batch::Opened { reason, since });
            }
            Judgement::Close { at, again } => {
                return match signals.open {
                    Some(outage) => self.give_back(tx, outage, at, again).await,
                    None => Ok(Batch::Paused),
                };
            }
        }
        match self.expire_batch(tx, from, size).await {
            Ok((expired, next)) => Ok(Batch::Orders { expired, next }),
            Err(error) if error.may_be_of_a_row() => Ok(Batch::Refused(error)),
            Err(error) => Err(error),
        }
    }

    /// Moves the next deadlines by an outage that has ended.
    async fn give_back(
        &self,
        tx: &mut Tx,
        outage: Outage,
        ended_at: Timestamp,
        again: Option<Timestamp>,
    ) -> Result<Batch, StockError> {
        let upto = *self
            .moved_upto
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let after = upto
            .filter(|(id, _)| *id == outage.id)
            .map_or(Cursor::START, |(_, place)| place);
        let count = self.moved_at_once;
        let closing = outages::close(tx, outage.id, ended_at, again, after, count).await?;
        Ok(match closing {
            Closing::Upto(place) => Batch::Moved(outage.id, place),
            Closing::Closed(moved) => Batch::Resumed {
                outage,
                ended_at,
                moved,
            },
        })
    }

    /// What is lasting is remembered and said.
    fn note(&self, batch: &Batch) {
        match batch {
            Batch::Held(_) => {
                metrics::counter!("alarms_total", "kind" => "clocks-disagree").increment(1);
            }
            Batch::Opened { reason, since } => {
                metrics::counter!("alarms_total", "kind" => "outage").increment(1);
                tracing::warn!(reason, since = %since, "expiry pauses because of an outage of ours");
            }
            Batch::Moved(outage, place) => {
                *self
                    .moved_upto
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner) = Some((*outage, *place));
            }
            Batch::Resumed {
                outage,
                ended_at,
                moved,
            } => tracing::info!(
                reason = outage.reason,
                orders.moved = moved,
                downtime_seconds = (*ended_at - outage.opened_at).num_seconds(),
                "expiry goes on; deadlines have moved by the outage"
            ),
            Batch::Elsewhere | Batch::Paused | Batch::Orders { .. } | Batch::Refused(_) => {}
        }
    }

    /// Steps 3 and 4; the orders that expired, and where the next batch begins.
    async fn expire_batch(
        &self,
        tx: &mut Tx,
        from: Cursor,
        size: i64,
    ) -> Result<(Vec<OrderId>, Option<Cursor>), StockError> {
        let due = expiry::lock_due(tx, from, size).await?;
        let full = i64::try_from(due.len()).is_ok_and(|count| count == size);
        let next = due.last().copied().filter(|_| full);
        let locked: Vec<OrderId> = due.iter().map(|cursor| cursor.order_id).collect();
        let free = expiry::without_payment(tx, &locked, self.payment_grace.as_secs_f64()).await?;
        if free.is_empty() {
            return Ok((Vec::new(), next));
        }
        platform::crash_point!("cp25", err => return Err(store::StoreError::no_connection().into()));
        let orders = store::orders::lock(tx, &free).await?;
        let endings: Vec<Ending<'_>> = orders
            .iter()
            .map(|order| Ending {
                order,
                to: OrderStatus::Expired,
                cause: "deadline".to_owned(),
                reason: EndReason::DeadlinePassed.as_str().to_owned(),
            })
            .collect();
        let now = store::settlement::now(tx).await?;
        let outcomes = transition(tx, &endings, now, source::STOCK).await?;
        let expired = outcomes
            .into_iter()
            .filter_map(|outcome| match outcome {
                Transitioned::Applied(order) => Some(order.id),
                Transitioned::Stale(_) => None,
            })
            .collect();
        Ok((expired, next))
    }
}
