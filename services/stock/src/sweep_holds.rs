//! The due sweep: each hold at the gate is asked about in PostgreSQL, first 5 s after its reserve
//! and then every 30 s (P5). Leads to the units of an orphan being free within 7 s, and heals a
//! crash between the database and the gate.
//!
//! 1. Read due holds of a shard. *Dies here:* they stay due.
//! 2. One query by key. A hold without an order is released: no accept can start 5 s after the
//!    reserve. *Dies here:* they stay due.
//! 3. `keep`, `commit` or `release` each, which takes it off the list or puts its next check 30 s
//!    on. *Dies here:* the rest stays due; every call may be repeated, by another process too.

use std::collections::BTreeMap;

use contracts::HoldId;
use domain::{Hold, HoldState, HoldView, Shard};
use reservations::{DueState, SyncReport};

use crate::{RepairDrift, Stock, StockError, sync_gate::sync_views};

/// Holds that one round looks at.
const ROUND: usize = 500;

/// Rounds of one sweep of a shard; what is left is due at the next tick.
const ROUNDS: usize = 20;

/// What a sweep found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Holds that were due.
    pub due: usize,
    /// Those whose orders live.
    pub kept: usize,
    /// Those whose orders are confirmed.
    pub committed: usize,
    /// Those whose orders were canceled or expired.
    pub released: usize,
    /// Those that never had an order.
    pub orphaned: usize,
    /// Those that can't be read: the shard needs a rebuild.
    pub damaged: usize,
}

/// Sweeps all shards, and has the drift check look at once where it met damage: a sweep that fails
/// on a key of a wrong type fails until the shard is rebuilt.
///
/// # Errors
/// As [`sweep_holds`].
pub async fn sweep_or_doubt(stock: &Stock, drift: &RepairDrift) -> Result<Swept, StockError> {
    let swept = sweep_holds(stock).await;
    let damaged = match &swept {
        Ok(swept) => swept.damaged > 0,
        Err(StockError::Gate(error)) => !error.is_transient(),
        Err(StockError::Store(_)) => false,
    };
    if damaged {
        drift.doubt();
    }
    swept
}

/// Sweeps all shards.
///
/// # Errors
/// A store is away; what was not looked at stays due.
pub async fn sweep_holds(stock: &Stock) -> Result<Swept, StockError> {
    let mut total = Swept::default();
    for shard in store::sweep::shards(&stock.store).await? {
        for _ in 0..ROUNDS {
            let swept = sweep_once(stock, shard).await?;
            total.due += swept.due;
            total.kept += swept.kept;
            total.committed += swept.committed;
            total.released += swept.released;
            total.orphaned += swept.orphaned;
            total.damaged += swept.damaged;
            if swept.due < ROUND {
                break;
            }
        }
    }
    Ok(total)
}

async fn sweep_once(stock: &Stock, shard: Shard) -> Result<Swept, StockError> {
    let mut swept = Swept::default();
    let mut held: BTreeMap<HoldId, Hold> = BTreeMap::new();
    for due in stock.gate.due(shard, ROUND).await? {
        swept.due += 1;
        match due.state {
            DueState::Held(stored) => {
                held.insert(due.hold_id, stored.hold);
            }
            DueState::Damaged => swept.damaged += 1,
        }
    }
    if !held.is_empty() {
        platform::crash_point!("cp7", err => return Err(store::StoreError::no_connection().into()));
        let (views, orphaned) = ask(stock, shard, held).await?;
        swept.orphaned = orphaned;
        for view in &views {
            match view.state {
                HoldState::Live => swept.kept += 1,
                HoldState::Committed => swept.committed += 1,
                HoldState::Released => swept.released += 1,
            }
        }
        swept.released -= orphaned;
        let report = sync_views(stock, BTreeMap::from([(shard, views)])).await?;
        note(shard, report);
    }
    count(swept);
    Ok(swept)
}

/// What PostgreSQL says of holds of a shard, and how many have no order.
pub(crate) async fn ask(
    stock: &Stock,
    shard: Shard,
    held: BTreeMap<HoldId, Hold>,
) -> Result<(Vec<HoldView>, usize), StockError> {
    let ids: Vec<HoldId> = held.keys().copied().collect();
    let known = store::holds::by_hold(&stock.store, &ids).await?;
    let mut orphaned = 0;
    let views = held
        .into_iter()
        .map(|(id, hold)| {
            let here = known
                .get(&id)
                .and_then(|views| views.iter().find(|(at, _)| *at == shard));
            if let Some((_, view)) = here {
                return view.clone();
            }
            orphaned += 1;
            HoldView {
                hold,
                state: HoldState::Released,
            }
        })
        .collect();
    Ok((views, orphaned))
}

fn note(shard: Shard, report: SyncReport) {
    if report.added > 0 || report.damaged > 0 {
        tracing::warn!(
            shard = shard.0,
            holds.added = report.added,
            holds.damaged = report.damaged,
            "the sweep met holds that were not as they should be"
        );
    }
}

fn count(swept: Swept) {
    for (outcome, count) in [
        ("kept", swept.kept),
        ("committed", swept.committed),
        ("released", swept.released),
        ("orphaned", swept.orphaned),
        ("damaged", swept.damaged),
    ] {
        if count > 0 {
            metrics::counter!("holds_swept_total", "outcome" => outcome)
                .increment(u64::try_from(count).unwrap_or(u64::MAX));
        }
    }
}
