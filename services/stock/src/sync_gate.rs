//! `sync`: makes the gate match what PostgreSQL says of orders and SKUs (P7).
//!
//! It ignores why it is called, so it may be called late, twice or never: the due sweep and the
//! drift check are the nets.
//!
//! 1. Read what is to become of the orders' holds. *Dies here:* nothing has happened.
//! 2. Read the registers of what has ended, after the holds: a register is never older than the order
//!    that it is sent with. Live holds take none along: it may say what a settlement has sold whose
//!    holds are still to go, and the gate would count those units twice. *Dies here:* nothing has
//!    happened.
//! 3. `commit`, `release` and `keep` per shard. *Dies here:* some holds match and some do not; each
//!    call is idempotent, and the sweep looks at every hold every 30 s.
//! 4. Where a `keep` added a hold: 1 to 3 once more. Its order may have ended after it was read, and
//!    its own sync have come before the `keep`, which then brings the hold back. *Dies here:* the
//!    sweep releases it within 30 s.

use std::collections::{BTreeMap, BTreeSet};

use contracts::{HoldId, OrderId, Sku};
use domain::{HoldState, HoldView, Register, Shard};
use reservations::{RegisterOutcome, SyncReport};

use crate::{Stock, StockError};

/// Makes the holds of these orders match their orders.
///
/// # Errors
/// A store is away; part of it may have been done.
pub async fn sync_orders(stock: &Stock, orders: &[OrderId]) -> Result<SyncReport, StockError> {
    if orders.is_empty() {
        return Ok(SyncReport::default());
    }
    let mut views: BTreeMap<Shard, Vec<HoldView>> = BTreeMap::new();
    for (shard, view) in store::holds::of_orders(&stock.store, orders).await? {
        views.entry(shard).or_default().push(view);
    }
    sync_views(stock, views).await
}

/// Tells the gate what PostgreSQL says of these SKUs.
///
/// # Errors
/// A store is away; part of it may have been done.
pub async fn sync_skus(stock: &Stock, skus: &[Sku]) -> Result<Vec<RegisterOutcome>, StockError> {
    let mut outcomes = Vec::with_capacity(skus.len());
    for (shard, registers) in registers_by_shard(stock, skus).await? {
        outcomes.extend(stock.gate.put_registers(shard, &registers).await?);
    }
    Ok(outcomes)
}

/// Makes holds match what was read of them, which may be old by now.
///
/// # Errors
/// A store is away; part of it may have been done.
pub async fn sync_views(
    stock: &Stock,
    views: BTreeMap<Shard, Vec<HoldView>>,
) -> Result<SyncReport, StockError> {
    let mut total = tell(stock, &views).await?;
    if total.added > 0 {
        let ended = ended_since(stock, &views).await?;
        add(&mut total, tell(stock, &ended).await?);
    }
    Ok(total)
}

/// Of what was read as live, what is not any more.
async fn ended_since(
    stock: &Stock,
    views: &BTreeMap<Shard, Vec<HoldView>>,
) -> Result<BTreeMap<Shard, Vec<HoldView>>, StockError> {
    let live: Vec<HoldId> = views
        .values()
        .flatten()
        .filter(|view| view.state == HoldState::Live)
        .map(|view| view.hold.hold_id)
        .collect();
    let mut ended: BTreeMap<Shard, Vec<HoldView>> = BTreeMap::new();
    let known = store::holds::by_hold(&stock.store, &live).await?;
    for (shard, view) in known.into_values().flatten() {
        if view.state != HoldState::Live {
            ended.entry(shard).or_default().push(view);
        }
    }
    Ok(ended)
}

/// Steps 2 and 3.
async fn tell(
    stock: &Stock,
    views: &BTreeMap<Shard, Vec<HoldView>>,
) -> Result<SyncReport, StockError> {
    let skus: BTreeSet<Sku> = views
        .values()
        .flatten()
        .filter(|view| view.state != HoldState::Live)
        .flat_map(|view| view.hold.lines.iter().map(|line| line.sku.clone()))
        .collect();
    let skus: Vec<Sku> = skus.into_iter().collect();
    let registers = registers_by_shard(stock, &skus).await?;
    let mut total = SyncReport::default();
    for (shard, views) in views {
        let known = registers.get(shard).map_or(&[][..], Vec::as_slice);
        add(&mut total, stock.gate.sync(*shard, views, known).await?);
    }
    Ok(total)
}

async fn registers_by_shard(
    stock: &Stock,
    skus: &[Sku],
) -> Result<BTreeMap<Shard, Vec<Register>>, StockError> {
    let mut by_shard: BTreeMap<Shard, Vec<Register>> = BTreeMap::new();
    if skus.is_empty() {
        return Ok(by_shard);
    }
    for (shard, register) in store::skus::registers(&stock.store, skus).await? {
        by_shard.entry(shard).or_default().push(register);
    }
    Ok(by_shard)
}

fn add(total: &mut SyncReport, part: SyncReport) {
    total.added += part.added;
    total.kept += part.kept;
    total.ended += part.ended;
    total.absent += part.absent;
    total.no_gate += part.no_gate;
    total.damaged += part.damaged;
}
