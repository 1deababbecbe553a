//! Resolves payments whose outcome is unknown, within the grace that expiry gives them (P5).
//! Guarantee: the gateway is asked by key before anything is done; an order that has ended or has
//! no time left is never charged by the sweep, and the key of one that has ended is canceled at the
//! gateway for ever (P6), also while the gateway still executes it.
//!
//! Steps, for up to 64 due PENDING rows:
//! 1. Claim them for the length of a lease. Dies: they are due again after it.
//! 2. Ask the gateway by key. An outcome is recorded; no answer: asked again later.
//!    Dies: the same.
//! 3. Keys that the gateway never saw, or still executes: read how their orders stand, which wait
//!    with time left (P5's guarded read), which have none, and which have ended.
//! 4. The order waits: charge what was never seen, with the same key; what is executed is asked for
//!    later. No time left: asked again later, since an outage of ours that stock has yet to notice
//!    may give it time, and a canceled key could never use it; else expiry ends it within the grace.
//!    Ended: cancel the key; if money was captured meanwhile, that is recorded and published, and
//!    stock asks for the refund (P6).
//!    Dies after any: the gateway gives the same result for the same key.

use std::collections::{BTreeMap, BTreeSet};

use contracts::OrderId;
use domain::{OrderStatus, deadline::MIN_LEFT_MAX};
use futures::StreamExt;
use store::{
    Store, StoreError, orders,
    payments::{self, PendingPayment},
};

use crate::{
    LEASE, SWEEP_BATCH, SWEEP_CONCURRENCY,
    desk::Desk,
    gateway::{ChargeOutcome, PaymentGateway},
};

/// What the gateway knows of a charge without an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// It never saw the key.
    Unseen,
    /// It executes it.
    Executed,
}

/// How an order stands towards its charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// RESERVED, with time left.
    Waits,
    /// RESERVED, and too late for a charge.
    Late,
    /// Ended, or not there.
    Ended,
}

/// One pass; returns how many rows were due.
///
/// # Errors
/// The database. What the gateway does is no error: the rows stay due.
pub async fn sweep_payments<G: PaymentGateway>(
    store: &Store,
    desk: &Desk<G>,
) -> Result<usize, StoreError> {
    let mut tx = store.begin().await?;
    let due = payments::claim_due(&mut tx, SWEEP_BATCH, LEASE).await?;
    if due.is_empty() {
        tx.rollback().await?;
        return Ok(0);
    }
    tx.commit().await?;
    metrics::counter!("payments_swept_total").increment(u64::try_from(due.len()).unwrap_or(0));
    let swept = due.len();
    let open: Vec<(PendingPayment, Progress)> = futures::stream::iter(due)
        .map(|payment| ask(desk.clone(), payment))
        .buffer_unordered(SWEEP_CONCURRENCY)
        .filter_map(std::future::ready)
        .collect()
        .await;
    if !open.is_empty() {
        let orders: BTreeSet<OrderId> = open.iter().map(|(payment, _)| payment.order_id).collect();
        let standing = standing(store, orders).await?;
        futures::stream::iter(open)
            .for_each_concurrent(SWEEP_CONCURRENCY, |(payment, progress)| {
                let standing = standing.get(&payment.order_id);
                let standing = standing.copied().unwrap_or(Standing::Ended);
                act(desk.clone(), standing, progress, payment)
            })
            .await;
    }
    Ok(swept)
}

/// Asks for one payment; returns it when the gateway has no outcome and will not have one unasked.
async fn ask<G: PaymentGateway>(
    desk: Desk<G>,
    payment: PendingPayment,
) -> Option<(PendingPayment, Progress)> {
    let answer = match desk.gateway.find_charge(&payment.gateway_key).await {
        Ok(None) => return Some((payment, Progress::Unseen)),
        Ok(Some(charge)) if charge.outcome == ChargeOutcome::Pending => {
            return Some((payment, Progress::Executed));
        }
        Ok(Some(charge)) => Ok(charge),
        Err(error) => Err(error),
    };
    desk.settle_charge(&payment, answer).await;
    None
}

async fn act<G: PaymentGateway>(
    desk: Desk<G>,
    standing: Standing,
    progress: Progress,
    payment: PendingPayment,
) {
    match (standing, progress) {
        (Standing::Waits, Progress::Unseen) => desk.charge(&payment).await,
        (Standing::Waits, Progress::Executed)
        | (Standing::Late, Progress::Unseen | Progress::Executed) => desk.postpone(&payment).await,
        (Standing::Ended, Progress::Unseen | Progress::Executed) => desk.cancel(&payment).await,
    }
}

/// How these orders stand; those that are not there are absent. The locks end here: no call to the
/// gateway is made while a transaction is open, and an order that ends in between gets its money
/// back (P6).
async fn standing(
    store: &Store,
    orders: BTreeSet<OrderId>,
) -> Result<BTreeMap<OrderId, Standing>, StoreError> {
    let ids: Vec<OrderId> = orders.into_iter().collect();
    let mut tx = store.begin().await?;
    let waiting = payments::lock_waiting_orders(&mut tx, &ids, MIN_LEFT_MAX).await?;
    let mut standing: BTreeMap<OrderId, Standing> = waiting
        .into_iter()
        .map(|order| (order.order_id, Standing::Waits))
        .collect();
    let others: Vec<OrderId> = ids
        .into_iter()
        .filter(|id| !standing.contains_key(id))
        .collect();
    if !others.is_empty() {
        for order in orders::find_many(&mut tx, &others).await? {
            let late = order.status == OrderStatus::Reserved;
            let how = if late {
                Standing::Late
            } else {
                Standing::Ended
            };
            standing.insert(order.id, how);
        }
    }
    tx.commit().await?;
    Ok(standing)
}
