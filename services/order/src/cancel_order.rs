//! Cancels an order that still waits for its payment. A repeat answers as the first did; an order
//! that has ended otherwise stays as it is.
//!
//! Steps: lock the order, ask the state machine, end it (stock, buyers' units, history and events in
//! the same transaction), commit, make the gate match.
//! When the process dies: before the commit nothing happened; after it the order is canceled, its
//! event is in the outbox, a repeat answers 200, and the sweep releases the hold within 32 s. Money
//! that arrives late is refunded by settlement.

use contracts::{OrderId, Shop, envelope::source};
use domain::{Transition, Trigger, order::apply};
use store::{
    Order, Store, StoreError,
    orders::{self, Ending, Transitioned},
};

use crate::{
    rerun::{self, GivenUp},
    sync_gate::SyncGate,
};

/// What became of a request to cancel.
#[derive(Debug, Clone)]
pub(crate) enum Canceled {
    /// It is canceled, now or before.
    Done(Order),
    /// It has ended otherwise.
    AlreadySettled(Order),
    /// There is no such order, or it is another shop's.
    NotFound,
}

/// Cancels an order of a shop (of any, for operators).
///
/// # Errors
/// The database.
pub(crate) async fn cancel(
    store: &Store,
    sync: &SyncGate,
    id: OrderId,
    shop: Option<&Shop>,
    reason: String,
) -> Result<Canceled, StoreError> {
    let canceled =
        rerun::until_known(|run| transact(store.clone(), id, shop.cloned(), reason.clone(), run))
            .await?;
    if let Canceled::Done(order) = &canceled {
        sync.hold_now(order.hold()).await;
    }
    Ok(canceled)
}

async fn transact(
    store: Store,
    id: OrderId,
    shop: Option<Shop>,
    reason: String,
    run: GivenUp,
) -> Result<Canceled, StoreError> {
    let now = store.clock().await?;
    let mut tx = store.begin().await?;
    let locked = orders::lock(&mut tx, &[id]).await?;
    let mine = |order: &Order| shop.as_ref().is_none_or(|shop| order.buyer.shop == *shop);
    let Some(order) = locked.into_iter().find(mine) else {
        tx.rollback().await?;
        return Ok(Canceled::NotFound);
    };
    let to = match apply(order.status, Trigger::CancelRequested) {
        Transition::To(status) => status,
        Transition::AlreadyThere => {
            tx.rollback().await?;
            return Ok(Canceled::Done(order));
        }
        Transition::Settled => {
            tx.rollback().await?;
            return Ok(Canceled::AlreadySettled(order));
        }
    };
    let ending = Ending {
        order: &order,
        to,
        cause: "cancel".to_owned(),
        reason,
    };
    let outcome = orders::transition(&mut tx, &[ending], now, source::ORDER).await?;
    match outcome.into_iter().next() {
        Some(Transitioned::Applied(order)) => {
            run.commit(tx).await?;
            Ok(Canceled::Done(order))
        }
        // Can't be while it is locked; if it were, nothing of this transaction may stay.
        Some(Transitioned::Stale(_)) | None => {
            tx.rollback().await?;
            Err(StoreError::Mismatch {
                doing: "cancel a locked order",
                expected: 1,
                found: 0,
            })
        }
    }
}
