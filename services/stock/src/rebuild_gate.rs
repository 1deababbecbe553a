//! A shard of the gate that lost its keys is rebuilt from PostgreSQL while orders keep coming (P10).
//!
//! 1. Begin a new epoch, closed: all keys are new and empty, and `reserve` says `NO_GATE`, so that
//!    orders go on without the gate and `keep` themselves after their commit. *Dies here:* the epoch
//!    stays closed; the next look finds it closed and begins another.
//! 2. Registers of all SKUs, then the holds of all live orders, page by page, by `keep`. `held` is
//!    exact because only `keep` raises it, when it adds a hold. *Dies here:* as above.
//! 3. Units that buyers own of SKUs with a limit: holds can't say what is sold. *Dies here:* as
//!    above.
//! 4. Open the epoch, unless it is no longer the newest. *Dies here:* the gate works; old keys lie
//!    about until the next look.
//! 5. Unlink the keys of older epochs.
//!
//! Two that do this at once spoil nothing: the one whose epoch is not the newest does nothing more.

use contracts::Sku;
use domain::{HoldView, Register, Shard};
use futures::{
    StreamExt, TryStreamExt,
    future::{join_all, try_join_all},
    stream,
};
use reservations::{BuyerUnits, EpochOutcome, Gate};
use store::skus::SkuRow;
use tokio::try_join;

use crate::{Stock, StockError, sync_gate::sync_skus};

const PAGE: i64 = 1_000;

/// Holds of a page that are sent together; the calls of a page are on their way at the same time.
const CALL: usize = 128;

/// SKUs with a limit whose buyers are compared at the same time.
const AT_ONCE: usize = 4;

/// What a look at a shard's epoch led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rebuilt {
    /// Its epoch is open.
    Healthy,
    /// It was rebuilt.
    Rebuilt {
        /// The epoch that is open now.
        epoch: String,
        /// Holds that were put in.
        holds: usize,
    },
    /// Another process is rebuilding it, or has.
    Superseded,
}

/// Rebuilds a shard whose epoch is missing, or was begun and never opened.
///
/// # Errors
/// A store is away; the epoch stays closed, and the next look begins another.
pub async fn rebuild_if_lost(stock: &Stock, shard: Shard) -> Result<Rebuilt, StockError> {
    match stock.gate.current_epoch(shard).await? {
        Some(state) if state.open => Ok(Rebuilt::Healthy),
        Some(state) => rebuild(stock, shard, Some(&state.epoch)).await,
        None => rebuild(stock, shard, None).await,
    }
}

/// Looks at all shards, and rebuilds those that are lost at the same time.
///
/// # Errors
/// A store is away; the shards that could be rebuilt are.
pub async fn rebuild_lost_shards(stock: &Stock) -> Result<(), StockError> {
    let shards = store::sweep::shards(&stock.store).await?;
    let looked = join_all(
        shards
            .into_iter()
            .map(|shard| rebuild_if_lost(stock, shard)),
    )
    .await;
    looked.into_iter().try_for_each(|one| one.map(|_| ()))
}

/// Replaces the epoch of a shard, lost or not.
///
/// # Errors
/// A store is away; the epoch stays closed, and the next look begins another.
pub async fn rebuild(
    stock: &Stock,
    shard: Shard,
    replaces: Option<&str>,
) -> Result<Rebuilt, StockError> {
    let epoch = Gate::new_epoch_id();
    match stock.gate.begin_epoch(shard, &epoch, replaces).await? {
        EpochOutcome::Begun => {}
        EpochOutcome::Opened | EpochOutcome::Superseded => return Ok(Rebuilt::Superseded),
    }
    let begun = platform::clock::monotonic();
    let limited = put_registers(stock, shard).await?;
    let holds = put_holds(stock, shard).await?;
    stream::iter(limited)
        .map(|sku| async move { put_buyers(stock, shard, &sku).await })
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<usize>>()
        .await?;
    match stock.gate.open_epoch(shard, &epoch).await? {
        EpochOutcome::Opened => {}
        EpochOutcome::Begun | EpochOutcome::Superseded => return Ok(Rebuilt::Superseded),
    }
    metrics::counter!("gate_rebuilds_total").increment(1);
    tracing::info!(
        shard = shard.0,
        epoch,
        holds,
        duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        "gate of a shard was rebuilt"
    );
    drop_old_epochs(stock, shard).await?;
    Ok(Rebuilt::Rebuilt { epoch, holds })
}

/// Unlinks what older epochs have left.
///
/// # Errors
/// Redis is away; the next look does it.
pub async fn drop_old_epochs(stock: &Stock, shard: Shard) -> Result<(), StockError> {
    for old in stock.gate.old_epochs(shard).await? {
        stock.gate.drop_epoch(shard, &old).await?;
    }
    Ok(())
}

/// Tells the gate of every SKU; those that have a per-customer limit.
async fn put_registers(stock: &Stock, shard: Shard) -> Result<Vec<Sku>, StockError> {
    let mut limited = Vec::new();
    let mut after: Option<Sku> = None;
    loop {
        let page = store::skus::page(&stock.store, Some(shard), after.as_ref(), PAGE).await?;
        let Some(last) = page.last() else {
            return Ok(limited);
        };
        after = Some(last.sku.clone());
        let registers: Vec<Register> = page.iter().map(SkuRow::register).collect();
        stock.gate.put_registers(shard, &registers).await?;
        limited.extend(
            page.into_iter()
                .filter(|row| row.per_customer_limit.is_some())
                .map(|row| row.sku),
        );
    }
}

/// Puts in the holds of all live orders, each page while the next one is read; how many there are.
async fn put_holds(stock: &Stock, shard: Shard) -> Result<usize, StockError> {
    let mut page = store::holds::live_page(&stock.store, shard, None, PAGE).await?;
    let mut count = 0;
    loop {
        count += page.holds.len();
        let Some(after) = page.next else {
            keep_page(stock, shard, &page.holds).await?;
            return Ok(count);
        };
        let read = async {
            let read = store::holds::live_page(&stock.store, shard, Some(after), PAGE).await;
            read.map_err(StockError::from)
        };
        let ((), next) = try_join!(keep_page(stock, shard, &page.holds), read)?;
        page = next;
    }
}

async fn keep_page(stock: &Stock, shard: Shard, views: &[HoldView]) -> Result<(), StockError> {
    if views.is_empty() {
        return Ok(());
    }
    platform::crash_point!("cp26", err => return Err(store::StoreError::no_connection().into()));
    let mut calls = Vec::with_capacity(views.len() / CALL + 1);
    for some in views.chunks(CALL) {
        calls.push(keep(stock, shard, some));
    }
    try_join_all(calls).await.map(|_| ())
}

/// A SKU that was made after its page was read has no gate yet: it gets one, and its holds are
/// kept again.
async fn keep(stock: &Stock, shard: Shard, views: &[HoldView]) -> Result<(), StockError> {
    let report = stock.gate.sync(shard, views, &[]).await?;
    if report.no_gate == 0 {
        return Ok(());
    }
    let skus: Vec<Sku> = views
        .iter()
        .flat_map(|view| view.hold.lines.iter().map(|line| line.sku.clone()))
        .collect();
    sync_skus(stock, &skus).await?;
    stock.gate.sync(shard, views, &[]).await?;
    Ok(())
}

/// Brings the buyers of a SKU with a limit in line with PostgreSQL; how many were not.
///
/// # Errors
/// A store is away; part of it may have been done.
pub async fn put_buyers(stock: &Stock, shard: Shard, sku: &Sku) -> Result<usize, StockError> {
    let mut right = std::collections::BTreeMap::new();
    let mut after = None;
    loop {
        let page = store::buyer_units::page(&stock.store, sku, after.as_ref(), PAGE).await?;
        let Some((last, _)) = page.last() else { break };
        after = Some(last.clone());
        right.extend(page);
    }
    let seen = stock.gate.read_buyers(shard, sku).await?;
    let mut wrong = Vec::new();
    for (buyer, &units) in &right {
        let there = seen.get(buyer).copied().unwrap_or(0);
        if there != units {
            wrong.push(BuyerUnits {
                buyer: buyer.clone(),
                seen: there,
                units,
            });
        }
    }
    for (buyer, &there) in &seen {
        if !right.contains_key(buyer) && there != 0 {
            wrong.push(BuyerUnits {
                buyer: buyer.clone(),
                seen: there,
                units: 0,
            });
        }
    }
    if !wrong.is_empty() {
        stock.gate.correct_buyers(shard, sku, &wrong).await?;
    }
    Ok(wrong.len())
}
