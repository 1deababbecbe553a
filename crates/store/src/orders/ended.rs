//! The end of orders: the shared piece of settle, cancel and expiry. A conditional update on
//! (id, version) decides; stock, buyers' units, history and events follow from what it changed.

use contracts::{OrderId, Timestamp};
use domain::OrderStatus;

use super::Order;
use crate::{Tx, error::Result};

/// An order that is to end.
#[derive(Debug, Clone)]
pub struct Ending<'a> {
    /// As it was read; its version guards the update.
    pub order: &'a Order,
    /// CONFIRMED, CANCELED or EXPIRED.
    pub to: OrderStatus,
    /// For the history: `payment:ID`, `payment-failed:ID`, `cancel`, `deadline`.
    pub cause: String,
    /// For people and events.
    pub reason: String,
}

/// What became of an [`Ending`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transitioned {
    /// The order as it is now.
    Applied(Order),
    /// It had moved since it was read: read it again and decide again.
    Stale(OrderId),
}

/// Ends orders, in this lock order: orders (the caller has locked them with [`super::lock`]), buyers'
/// units, stock, then history and outbox. One `STOCK_COMMITTED` or `STOCK_RELEASED` per SKU and
/// kind. `source` is the `ce_source` of the events. Returns one outcome per ending, in their order.
///
/// # Errors
/// [`crate::StoreError::Mismatch`] or `StockBounds` when stock does not hold what the orders say:
/// nothing may be committed. [`crate::StoreError::CatalogueMoved`]: run it again.
pub async fn transition(
    tx: &mut Tx,
    endings: &[Ending<'_>],
    now: Timestamp,
    source: &'static str,
) -> Result<Vec<Transitioned>> {
    let _ = (tx, endings, now, source);
    todo!()
}
