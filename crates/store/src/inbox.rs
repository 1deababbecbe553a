//! Which events a consumer has handled. A row is written in the transaction of the event's effect.

use std::collections::HashSet;

use contracts::ConsumerName;

use crate::{Conn, Tx, error::Result};

/// An event: (`ce_source`, `ce_id`).
pub type EventKey = (String, String);

/// Records events as handled, sorted; returns those that were not yet. Waits for a twin in flight.
///
/// # Errors
/// 55P03 when a twin takes longer.
pub async fn insert(
    tx: &mut Tx,
    consumer: ConsumerName,
    events: &[EventKey],
) -> Result<HashSet<EventKey>> {
    let _ = (tx, consumer, events);
    todo!()
}

/// Forgets events, so that they can be handled again by a redrive.
///
/// # Errors
/// No answer.
pub async fn forget(tx: &mut Tx, consumer: ConsumerName, events: &[EventKey]) -> Result<u64> {
    let _ = (tx, consumer, events);
    todo!()
}

/// Deletes at most `limit` rows older than `age`; returns how many.
///
/// # Errors
/// No answer.
pub async fn prune(conn: &mut Conn, age: std::time::Duration, limit: i64) -> Result<u64> {
    let _ = (conn, age, limit);
    todo!()
}
