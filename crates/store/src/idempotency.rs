//! One row per used key; its primary key decides between twins (P1, P11). A refusal by HTTP stores
//! nothing; one by Kafka is stored, so that a replay of the topic repeats it.

use std::collections::HashMap;

use contracts::{Code, HoldId, OrderId, Timestamp};

use crate::{Conn, Tx, error::Result};

/// A key that is to be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The hash of scope, route and key.
    pub hold_id: HoldId,
    /// SHA-256 of the canonical body.
    pub fingerprint: [u8; 32],
    /// The id that the order gets.
    pub order_id: OrderId,
    /// The moment after which it is not taken any more, in PostgreSQL's clock.
    pub deadline: Timestamp,
}

/// What a key stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRow {
    /// SHA-256 of the canonical body.
    pub fingerprint: [u8; 32],
    /// What was answered.
    pub answer: Answer,
}

/// What was answered to a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// This order.
    Accepted(OrderId),
    /// A refusal of a request by Kafka.
    Rejected {
        /// As in HTTP.
        code: Code,
        /// For people.
        detail: String,
    },
}

/// Takes keys whose deadline has not passed. Waits for a twin in flight, for `lock_timeout` at
/// most. Returns the keys that are now this transaction's; the others are there already or late.
///
/// # Errors
/// 55P03 when a twin takes longer: run the batch again.
pub async fn claim(tx: &mut Tx, claims: &[Claim], by_kafka: bool) -> Result<Vec<HoldId>> {
    let _ = (tx, claims, by_kafka);
    todo!()
}

/// What keys stand for; a key without a row is absent.
///
/// # Errors
/// No answer.
pub async fn find(conn: &mut Conn, holds: &[HoldId]) -> Result<HashMap<HoldId, KeyRow>> {
    let _ = (conn, holds);
    todo!()
}

/// Gives keys back that this transaction has taken: a refusal stores nothing.
/// [`crate::orders::insert_accepted`] does it in its one statement.
///
/// # Errors
/// A row was not there.
pub async fn unclaim(tx: &mut Tx, holds: &[HoldId]) -> Result<()> {
    let _ = (tx, holds);
    todo!()
}

/// Turns keys that this transaction has taken by Kafka into stored refusals.
///
/// # Errors
/// A row was not there, or was not taken by Kafka.
pub async fn reject(tx: &mut Tx, refusals: &[(HoldId, Code, String)]) -> Result<()> {
    let _ = (tx, refusals);
    todo!()
}

/// Deletes at most `limit` rows whose order ended 25 h ago, never of a RESERVED one; rows of
/// requests by Kafka live 30 days. Returns how many.
///
/// # Errors
/// No answer.
pub async fn prune(conn: &mut Conn, limit: i64) -> Result<u64> {
    let _ = (conn, limit);
    todo!()
}
