//! What PostgreSQL says of holds at the gate: for sync, sweep and rebuild (P5, P7, P10). An order
//! whose SKUs lie in several shards is one view per shard, each with that shard's lines.

use std::collections::HashMap;

use contracts::{HoldId, OrderId, Timestamp};
use domain::{HoldView, Shard};

use crate::{Store, error::Result};

/// Where a page of live holds ended. The deadline moves forward only, so that no order that lives
/// all the while is missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveCursor {
    reserved_until: Timestamp,
    id: OrderId,
}

/// Some holds of live orders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LivePage {
    /// The holds.
    pub holds: Vec<HoldView>,
    /// Where the next page begins; `None` when this is the last.
    pub next: Option<LiveCursor>,
}

/// What is to become of the holds of these orders; unknown orders are absent.
///
/// # Errors
/// No answer.
pub async fn of_orders(store: &Store, ids: &[OrderId]) -> Result<Vec<(Shard, HoldView)>> {
    let _ = (store, ids);
    todo!()
}

/// What is to become of these holds, by key; a hold without an order is absent: it is released.
///
/// # Errors
/// No answer.
pub async fn by_hold(
    store: &Store,
    holds: &[HoldId],
) -> Result<HashMap<HoldId, Vec<(Shard, HoldView)>>> {
    let _ = (store, holds);
    todo!()
}

/// Holds of RESERVED orders of a shard, by deadline.
///
/// # Errors
/// No answer.
pub async fn live_page(
    store: &Store,
    shard: Shard,
    after: Option<LiveCursor>,
    limit: i64,
) -> Result<LivePage> {
    let _ = (store, shard, after, limit);
    todo!()
}
