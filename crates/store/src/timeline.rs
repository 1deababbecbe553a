//! The story of one order, for people: history, payments, refunds and events by time.

use contracts::{OrderId, Timestamp};

use crate::{Store, error::Result};

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// When.
    pub at: Timestamp,
    /// What: `RESERVED -> CONFIRMED`, `payment COMPLETED`, `ORDER_CONFIRMED`.
    pub what: String,
    /// Where: the table, or the topic of an event.
    pub place: String,
    /// Who: the cause, or the source of an event.
    pub by: String,
    /// Of the order or the event.
    pub version: Option<i64>,
    /// Of an event: its position in the outbox, and its id.
    pub event: Option<(i64, uuid::Uuid)>,
}

/// All steps of an order, by time; empty when there is no such order.
///
/// # Errors
/// No answer.
pub async fn of_order(store: &Store, id: OrderId) -> Result<Vec<Step>> {
    let _ = (store, id);
    todo!()
}
