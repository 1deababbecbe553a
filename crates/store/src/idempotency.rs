//! One row per used key; its primary key decides between twins (P1, P11). A refusal by HTTP stores
//! nothing; one by Kafka is stored, so that a replay of the topic repeats it.

use std::collections::HashMap;

use contracts::{Code, HoldId, OrderId, Timestamp};
use uuid::Uuid;

use crate::{
    Conn, Tx,
    error::{Bounded, Result, StoreError, expect_rows},
    text::{self, uuids},
};

/// [`domain::deadline::KEY_LIVES_HOURS`], as SQL takes it.
const KEY_LIVES_HOURS: i32 = 25;
const _: () = assert!(KEY_LIVES_HOURS as i64 == domain::deadline::KEY_LIVES_HOURS);

/// Keys of requests by Kafka outlive the topic's retention.
const KAFKA_KEY_LIVES_DAYS: i32 = 30;

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
    let holds: Vec<Uuid> = claims.iter().map(|claim| claim.hold_id.0).collect();
    let fingerprints: Vec<&[u8]> = claims.iter().map(|claim| &claim.fingerprint[..]).collect();
    let orders: Vec<Uuid> = claims.iter().map(|claim| claim.order_id.0).collect();
    let deadlines: Vec<Timestamp> = claims.iter().map(|claim| claim.deadline).collect();
    let taken = sqlx::query_scalar!(
        "insert into idempotency (hold_id, fingerprint, order_id, by_kafka)
         select c.hold_id, c.fingerprint, c.order_id, $5
         from unnest($1::uuid[], $2::bytea[], $3::uuid[], $4::timestamptz[])
                  as c (hold_id, fingerprint, order_id, deadline)
         where c.deadline > clock_timestamp()
         order by c.hold_id
         on conflict do nothing
         returning hold_id",
        &holds,
        &fingerprints as &[&[u8]],
        &orders,
        &deadlines,
        by_kafka,
    )
    .fetch_all(&mut **tx)
    .answer("claim keys")
    .await?;
    Ok(taken.into_iter().map(HoldId).collect())
}

/// What keys stand for; a key without a row is absent.
///
/// # Errors
/// No answer.
pub async fn find(conn: &mut Conn, holds: &[HoldId]) -> Result<HashMap<HoldId, KeyRow>> {
    let rows = sqlx::query!(
        "select hold_id, fingerprint, order_id, rejected, detail
         from idempotency where hold_id = any($1)",
        &uuids(holds),
    )
    .fetch_all(conn)
    .answer("look keys up")
    .await?;
    rows.into_iter()
        .map(|row| {
            let answer = match (row.order_id, row.rejected) {
                (Some(id), _) => Answer::Accepted(OrderId(id)),
                (None, slug) => {
                    let slug = slug.unwrap_or_default();
                    let code = Code::parse(&slug).ok_or(StoreError::Malformed {
                        column: "idempotency.rejected",
                        value: slug,
                    })?;
                    Answer::Rejected {
                        code,
                        detail: row.detail.unwrap_or_default(),
                    }
                }
            };
            let fingerprint = text::fingerprint(&row.fingerprint)?;
            Ok((
                HoldId(row.hold_id),
                KeyRow {
                    fingerprint,
                    answer,
                },
            ))
        })
        .collect()
}

/// Gives keys back that this transaction has taken: a refusal stores nothing.
/// [`crate::orders::insert_accepted`] does it in its one statement.
///
/// # Errors
/// A row was not there.
pub async fn unclaim(tx: &mut Tx, holds: &[HoldId]) -> Result<()> {
    let done = sqlx::query!(
        "delete from idempotency where hold_id = any($1)",
        &uuids(holds)
    )
    .execute(&mut **tx)
    .answer("give keys back")
    .await?;
    expect_rows("give keys back", holds.len(), done.rows_affected())
}

/// Turns keys that this transaction has taken by Kafka into stored refusals.
///
/// # Errors
/// A row was not there, or was not taken by Kafka.
pub async fn reject(tx: &mut Tx, refusals: &[(HoldId, Code, String)]) -> Result<()> {
    let holds: Vec<Uuid> = refusals.iter().map(|(hold, _, _)| hold.0).collect();
    let codes: Vec<&str> = refusals.iter().map(|(_, code, _)| code.as_str()).collect();
    let details: Vec<&str> = refusals
        .iter()
        .map(|(_, _, detail)| detail.as_str())
        .collect();
    let done = sqlx::query!(
        "update idempotency
         set order_id = null,
             rejected = ($2::text[])[array_position($1::uuid[], hold_id)],
             detail   = ($3::text[])[array_position($1::uuid[], hold_id)]
         where hold_id = any($1) and by_kafka",
        &holds,
        &codes as &[&str],
        &details as &[&str],
    )
    .execute(&mut **tx)
    .answer("store refusals")
    .await?;
    expect_rows("store refusals", holds.len(), done.rows_affected())
}

/// Pages of the table that one step of a round reads: some ten thousand keys.
pub const PRUNE_PAGES: i64 = 256;

/// What a step of a round has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PruneStep {
    /// Rows that it deleted.
    pub gone: u64,
    /// The page where the next step begins; `None` when the round is at its end.
    pub next: Option<i64>,
}

/// One step of a round through the table, from the page `from` (0 begins a round) on: deletes rows
/// whose order ended 25 h ago, never of a RESERVED one; rows of requests by Kafka live 30 days.
///
/// By place and not by age: rows that may not go yet would be found again by each search for old
/// ones, and an index that tells them apart would cost every accept. So a step costs the same however
/// many rows there are, and an old row goes with the next round.
///
/// # Errors
/// No answer.
pub async fn prune(conn: &mut Conn, from: i64) -> Result<PruneStep> {
    let until = from.saturating_add(PRUNE_PAGES);
    // A subquery per row in place of a join: the planner can't take the whole of `orders` for it.
    let done = sqlx::query!(
        r#"with gone as (
               delete from idempotency i
               where i.ctid >= format('(%s,0)', $1::bigint)::tid
                 and i.ctid < format('(%s,0)', $2::bigint)::tid
                 and i.created_at < now() - make_interval(hours => $3)
                 and (not i.by_kafka or i.created_at < now() - make_interval(days => $4))
                 and coalesce((select coalesce(o.ended_at < now() - make_interval(hours => $3), false)
                               from orders o
                               where o.id = i.order_id), true)
               returning 1)
           select (select count(*) from gone) as "gone!",
                  pg_relation_size('idempotency') > $2 * current_setting('block_size')::bigint
                      as "more!""#,
        from,
        until,
        KEY_LIVES_HOURS,
        KAFKA_KEY_LIVES_DAYS,
    )
    .fetch_one(conn)
    .slowly("prune keys")
    .await?;
    Ok(PruneStep {
        gone: u64::try_from(done.gone).unwrap_or(0),
        next: done.more.then_some(until),
    })
}
