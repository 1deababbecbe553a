//! Records that a consumer set aside: the truth, of which the DLQ topic is a copy (P9).

use contracts::Timestamp;
use uuid::Uuid;

use crate::{Conn, Tx, error::Result};

/// Record headers: names and values, which need not be text and may be null.
pub type Headers = Vec<(String, Option<Vec<u8>>)>;

/// A record to be set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDeadLetter {
    /// The consumer's name (not its group).
    pub consumer: String,
    /// Without suffix.
    pub topic: String,
    /// Where it was read.
    pub partition: i32,
    /// Where it was read.
    pub offset: i64,
    /// The record's.
    pub key: Option<Vec<u8>>,
    /// `ce_type`, when readable.
    pub event_type: Option<String>,
    /// `ce_source`, when readable.
    pub source: Option<String>,
    /// `ce_id`, when readable.
    pub event_id: Option<String>,
    /// The record's value.
    pub payload: Option<Vec<u8>>,
    /// The record's.
    pub headers: Headers,
    /// Why, for people.
    pub reason: String,
    /// `permanent` or `unclassified`.
    pub class: String,
    /// How often it was tried.
    pub attempts: i32,
    /// When it was tried first.
    pub first_seen: Timestamp,
    /// The DLQ topic that gets the copy, without suffix.
    pub dlq_topic: String,
}

/// A record that was set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its id.
    pub id: Uuid,
    /// What was set aside.
    pub letter: NewDeadLetter,
    /// When.
    pub at: Timestamp,
    /// Whether it was handled again since.
    pub redriven: bool,
}

/// Sets records aside and writes their copies to the outbox; a record that is there already (same
/// consumer, place and payload) is left as it is. Returns how many are new.
///
/// # Errors
/// No answer.
pub async fn insert(tx: &mut Tx, letters: &[NewDeadLetter]) -> Result<usize> {
    let _ = (tx, letters);
    todo!()
}

/// Dead letters in order of their id, after `after`, at most `limit`; the open ones only, or all.
///
/// # Errors
/// No answer.
pub async fn list(
    conn: &mut Conn,
    open_only: bool,
    after: Option<Uuid>,
    limit: i64,
) -> Result<Vec<DeadLetter>> {
    let _ = (conn, open_only, after, limit);
    todo!()
}

/// One dead letter.
///
/// # Errors
/// No answer.
pub async fn get(conn: &mut Conn, id: Uuid) -> Result<Option<DeadLetter>> {
    let _ = (conn, id);
    todo!()
}

/// Locks one open dead letter for a redrive; `None` when there is none or it was redriven.
///
/// # Errors
/// 55P03 when another redrive has it.
pub async fn lock_open(tx: &mut Tx, id: Uuid) -> Result<Option<DeadLetter>> {
    let _ = (tx, id);
    todo!()
}

/// Marks a dead letter as handled again.
///
/// # Errors
/// No answer.
pub async fn mark_redriven(tx: &mut Tx, id: Uuid) -> Result<()> {
    let _ = (tx, id);
    todo!()
}
