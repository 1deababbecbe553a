//! Events to be published, and what the relay reads (P8).
//!
//! The relay's rules, in terms of these functions: it reads with [`read`] (`high` = the greatest id
//! read, `gaps` = the ids missing below it). A gap that it sees in one batch is closed when its row
//! comes, or when a **later** batch has `xmin > fence`, where the fence came from [`begin_fence`]
//! called after the gap was seen. Why: whoever took that id had its xid before (never the first
//! writing statement), so it had ended when xmin passed the fence, and that batch's snapshot would
//! have shown its row.

use std::time::Duration;

use contracts::{Timestamp, events::NewEvent};
use uuid::Uuid;

use crate::{Conn, Store, Tx, error::Result};

/// The type of a row that stands for a dead letter: `event_id` is the dead letter's id, `topic` the
/// DLQ topic; key, value and headers are read with [`crate::dead_letters::get`].
pub const DEAD_LETTER: &str = "DEAD_LETTER";

/// A row of the outbox.
#[derive(Debug, Clone, PartialEq)]
pub struct OutboxRow {
    /// Its position.
    pub id: i64,
    /// `ce_id`.
    pub event_id: Uuid,
    /// The topic's name without suffix.
    pub topic: String,
    /// The record key.
    pub key: String,
    /// `ce_type`, or [`DEAD_LETTER`].
    pub event_type: String,
    /// `ce_source`.
    pub source: String,
    /// `ce_aggregateversion`.
    pub aggregate_version: i64,
    /// The record value.
    pub data: String,
    /// Extra headers: an object of names and texts (`traceparent`).
    pub headers: Option<serde_json::Value>,
    /// When it was written: `ce_time`.
    pub at: Timestamp,
}

/// What one read saw.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// By rising id.
    pub rows: Vec<OutboxRow>,
    /// Of this read's snapshot: every transaction with a smaller xid has ended.
    pub xmin: i64,
}

/// Writes events, in the order given. Never in the transaction's first writing statement (P8).
///
/// # Errors
/// No answer.
pub async fn insert(tx: &mut Tx, events: &[NewEvent]) -> Result<()> {
    let _ = (tx, events);
    todo!()
}

/// Rows above `high` (at most `limit`) and those of `gaps` that are there, of one snapshot.
///
/// # Errors
/// No answer.
pub async fn read(conn: &mut Conn, high: i64, gaps: &[i64], limit: i64) -> Result<Batch> {
    let _ = (conn, high, gaps, limit);
    todo!()
}

/// The xid of a transaction of its own, which has ended when this returns. Not to be called inside
/// a transaction.
///
/// # Errors
/// No answer.
pub async fn begin_fence(conn: &mut Conn) -> Result<i64> {
    let _ = conn;
    todo!()
}

/// Where a new leader starts: everything up to it is acknowledged, parked or a closed gap.
///
/// # Errors
/// No answer.
pub async fn watermark(conn: &mut Conn) -> Result<i64> {
    let _ = conn;
    todo!()
}

/// Moves the watermark forward; on the connection that holds the leader's lock.
///
/// # Errors
/// No answer.
pub async fn move_watermark(conn: &mut Conn, low: i64) -> Result<()> {
    let _ = (conn, low);
    todo!()
}

/// Sets a row aside that can never be sent.
///
/// # Errors
/// No answer.
pub async fn park(conn: &mut Conn, id: i64, event_id: Uuid, reason: &str) -> Result<()> {
    let _ = (conn, id, event_id, reason);
    todo!()
}

/// The age of the oldest row above the watermark; `None` when all is published.
///
/// # Errors
/// No answer.
pub async fn oldest_unpublished_age(store: &Store) -> Result<Option<Duration>> {
    let _ = store;
    todo!()
}

/// Makes partitions until `ahead` ids are covered; returns how many.
///
/// # Errors
/// The role is not the owner.
pub async fn make_partitions(conn: &mut Conn, ahead: i64) -> Result<i32> {
    let _ = (conn, ahead);
    todo!()
}

/// Drops partitions that are wholly published and whose newest row is older than `age`; returns
/// how many.
///
/// # Errors
/// The role is not the owner.
pub async fn drop_partitions(conn: &mut Conn, age: Duration) -> Result<i32> {
    let _ = (conn, age);
    todo!()
}
