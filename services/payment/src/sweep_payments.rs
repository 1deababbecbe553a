//! Resolves payments whose outcome is unknown, within the grace that expiry gives them (P5).
//! Guarantee: the gateway is asked by key before anything is done; an order that has ended or has
//! no time left is never charged by the sweep, and its key is canceled at the gateway for ever.
//!
//! Steps, for up to 64 due PENDING rows:
//! 1. Claim them for the length of a lease. Dies: they are due again after it.
//! 2. Ask the gateway by key. An outcome is recorded; none in time: asked again later.
//!    Dies: the same.
//! 3. Keys that the gateway never saw: read which of their orders still wait (P5's guarded read).
//! 4. Still waiting: charge with the same key. Else: cancel the key; if money was captured
//!    meanwhile, that is recorded and published, and stock asks for the refund (P6).
//!    Dies after either: the gateway gives the same result for the same key.

use std::collections::BTreeSet;

use contracts::OrderId;
use domain::deadline::MIN_LEFT_MAX;
use futures::StreamExt;
use store::{
    Store, StoreError,
    payments::{self, PendingPayment},
};

use crate::{LEASE, SWEEP_BATCH, SWEEP_CONCURRENCY, desk::Desk, gateway::PaymentGateway};

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
    let unseen: Vec<PendingPayment> = futures::stream::iter(due)
        .map(|payment| ask(desk.clone(), payment))
        .buffer_unordered(SWEEP_CONCURRENCY)
        .filter_map(std::future::ready)
        .collect()
        .await;
    if !unseen.is_empty() {
        let waiting = waiting_orders(store, &unseen).await?;
        futures::stream::iter(unseen)
            .for_each_concurrent(SWEEP_CONCURRENCY, |payment| {
                act(desk.clone(), waiting.contains(&payment.order_id), payment)
            })
            .await;
    }
    Ok(swept)
}

/// Asks for one payment; returns it when the gateway never saw its key.
async fn ask<G: PaymentGateway>(desk: Desk<G>, payment: PendingPayment) -> Option<PendingPayment> {
    let answer = match desk.gateway.find_charge(&payment.gateway_key).await {
        Ok(None) => return Some(payment),
        Ok(Some(charge)) => Ok(charge),
        Err(error) => Err(error),
    };
    desk.settle_charge(&payment, answer).await;
    None
}

async fn act<G: PaymentGateway>(desk: Desk<G>, order_waits: bool, payment: PendingPayment) {
    if order_waits {
        desk.charge(&payment).await;
    } else {
        desk.cancel(&payment).await;
    }
}

/// Which of their orders may still be charged. The locks end here: no call to the gateway is made
/// while a transaction is open, and an order that ends in between gets its money back (P6).
async fn waiting_orders(
    store: &Store,
    payments: &[PendingPayment],
) -> Result<BTreeSet<OrderId>, StoreError> {
    let orders: BTreeSet<OrderId> = payments.iter().map(|payment| payment.order_id).collect();
    let orders: Vec<OrderId> = orders.into_iter().collect();
    let mut tx = store.begin().await?;
    let waiting = payments::lock_waiting_orders(&mut tx, &orders, MIN_LEFT_MAX).await?;
    tx.commit().await?;
    Ok(waiting.into_iter().map(|order| order.order_id).collect())
}
