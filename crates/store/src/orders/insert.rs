//! The accept's one statement: orders, lines, history and outbox appear together, and the keys of
//! the refused go (P1 step 6).

use contracts::{HoldId, Timestamp};
use domain::{Accepted, OrderRequest};

use super::Order;
use crate::{Tx, error::Result};

/// An order that is to be written.
#[derive(Debug, Clone, Copy)]
pub struct NewOrder<'a> {
    /// Who asks and for what.
    pub request: &'a OrderRequest,
    /// What was decided.
    pub accepted: &'a Accepted,
    /// W3C trace context for its event, when sampled.
    pub traceparent: Option<&'a str>,
}

/// Writes accepted orders with lines, history and `ORDER_RESERVED`, and deletes the keys of the
/// refused. `now` is [`crate::stock::AcceptView::now`]: creation, deadline and event agree on it.
/// Returns the orders in the order given.
///
/// # Errors
/// [`crate::StoreError::Mismatch`] when a refused key was not this transaction's.
pub async fn insert_accepted(
    tx: &mut Tx,
    orders: &[NewOrder<'_>],
    refused: &[HoldId],
    now: Timestamp,
) -> Result<Vec<Order>> {
    let _ = (tx, orders, refused, now);
    todo!()
}
