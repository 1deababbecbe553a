//! Rows that have served their time go, in bounded batches off the hot path; partitions of the
//! outbox are made ahead and dropped behind (P8, P9, P11).
//!
//! Each batch is a statement of its own. *Dies anywhere:* the rest goes next time. Keys are looked
//! through by place, round and round; a process that begins, begins a round.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use crate::{Stock, StockError};

/// An inbox row outlives the retention of its topic (7 days) and the redrive horizon.
const INBOX_AGE: Duration = Duration::from_secs(30 * 24 * 3_600);

/// A dead letter that was redriven is kept as long as the key of its event.
const DEAD_LETTER_AGE: Duration = INBOX_AGE;

/// An outbox row outlives the retention of its topic, so that lost events can be sent again.
const OUTBOX_AGE: Duration = Duration::from_secs(8 * 24 * 3_600);

/// Ids that outbox partitions must cover ahead.
const AHEAD: i64 = 2_000_000;

const BATCH: i64 = 2_000;

/// Batches of one kind in one call; the rest goes next time.
const BATCHES: usize = 50;

/// Steps of a round through the keys in one call: 100,000 pages, a second or two of reading.
const KEY_STEPS: usize = 400;

/// What a call removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Inbox rows.
    pub inbox: u64,
    /// Keys of orders that ended 25 h ago or earlier.
    pub keys: u64,
    /// Dead letters that were redriven.
    pub dead_letters: u64,
    /// Outbox partitions.
    pub partitions: i32,
}

/// The pruner of one process.
#[derive(Debug, Default)]
pub struct PruneRows {
    /// The page of the keys where the next call goes on.
    keys_from: AtomicI64,
}

impl PruneRows {
    /// Prunes inbox, keys, dead letters and outbox.
    ///
    /// # Errors
    /// PostgreSQL is away.
    pub async fn prune(&self, stock: &Stock) -> Result<Pruned, StockError> {
        let mut conn = stock.store.conn().await?;
        let mut pruned = Pruned::default();
        for _ in 0..BATCHES {
            let gone = store::inbox::prune(&mut conn, INBOX_AGE, BATCH).await?;
            pruned.inbox += gone;
            if gone == 0 {
                break;
            }
        }
        for _ in 0..KEY_STEPS {
            let from = self.keys_from.load(Ordering::Relaxed);
            let step = store::idempotency::prune(&mut conn, from).await?;
            pruned.keys += step.gone;
            self.keys_from
                .store(step.next.unwrap_or(0), Ordering::Relaxed);
            if step.next.is_none() {
                break;
            }
        }
        for _ in 0..BATCHES {
            let gone = store::dead_letters::prune(&mut conn, DEAD_LETTER_AGE, BATCH).await?;
            pruned.dead_letters += gone;
            if gone == 0 {
                break;
            }
        }
        pruned.partitions = store::outbox::drop_partitions(&mut conn, OUTBOX_AGE).await?;
        Ok(pruned)
    }
}

/// Makes the outbox partitions that will be needed next; how many were missing.
///
/// # Errors
/// PostgreSQL is away.
pub async fn make_partitions(stock: &Stock) -> Result<i32, StockError> {
    let mut conn = stock.store.conn().await?;
    Ok(store::outbox::make_partitions(&mut conn, AHEAD).await?)
}
