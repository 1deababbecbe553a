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

use crate::{
    Conn, Store, Tx,
    error::{Bounded, Result, expect_rows},
};

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
    if events.is_empty() {
        return Ok(());
    }
    let text = |of: fn(&NewEvent) -> &str| events.iter().map(of).collect::<Vec<&str>>();
    let done =
        sqlx::query!(
        "insert into outbox (event_id, topic, key, type, source, aggregate_version, data, headers)
         select e.event_id, e.topic, e.key, e.type, e.source, e.version, e.data,
                case when e.traceparent is not null
                    then jsonb_build_object('traceparent', e.traceparent) end
         from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[],
                     $7::text[], $8::text[])
                  with ordinality
                  as e (event_id, topic, key, type, source, version, data, traceparent, position)
         order by e.position",
        &events.iter().map(|event| event.event_id).collect::<Vec<_>>(),
        &text(|event| event.topic.as_str()) as &[&str],
        &text(|event| event.key.as_str()) as &[&str],
        &text(|event| event.event_type.as_str()) as &[&str],
        &text(|event| event.source) as &[&str],
        &events.iter().map(|event| event.aggregate_version).collect::<Vec<_>>(),
        &text(|event| event.data.as_str()) as &[&str],
        &events.iter().map(|event| event.traceparent.as_deref()).collect::<Vec<_>>()
            as &[Option<&str>],
    )
        .execute(&mut **tx)
        .answer("write events to the outbox")
        .await?;
    expect_rows(
        "write events to the outbox",
        events.len(),
        done.rows_affected(),
    )
}

/// Writes a row that stands for a dead letter: the relay copies the letter to `dlq_topic`.
pub(crate) async fn insert_copy(tx: &mut Tx, letter: Uuid, dlq_topic: &str) -> Result<()> {
    sqlx::query!(
        "insert into outbox (event_id, topic, key, type, source, aggregate_version, data)
         values ($1, $2, '', $3, '', 1, '')",
        letter,
        dlq_topic,
        DEAD_LETTER,
    )
    .execute(&mut **tx)
    .answer("write a dead letter to the outbox")
    .await
    .map(|_| ())
}

/// Writes rows of the outbox once more, in their order: the same event ids, so that whoever has
/// handled them drops them. Returns how many were still there.
///
/// # Errors
/// No answer.
pub async fn send_again(tx: &mut Tx, ids: &[i64]) -> Result<u64> {
    // An xid before the first id of the outbox is taken (P8).
    begin_fence(tx).await?;
    let done = sqlx::query!(
        "insert into outbox (event_id, topic, key, type, source, aggregate_version, data, headers)
         select event_id, topic, key, type, source, aggregate_version, data, headers
         from outbox where id = any($1) order by id",
        ids,
    )
    .execute(&mut **tx)
    .answer("write events to the outbox again")
    .await?;
    Ok(done.rows_affected())
}

/// Rows above `high` (at most `limit`) and those of `gaps` that are there, of one snapshot.
///
/// # Errors
/// No answer.
pub async fn read(conn: &mut Conn, high: i64, gaps: &[i64], limit: i64) -> Result<Batch> {
    // Two index scans of one snapshot: an `or` would scan from the first row.
    let rows = sqlx::query!(
        r#"select pg_snapshot_xmin(pg_current_snapshot())::text::bigint as "xmin!",
                  o.id as "id?", o.event_id as "event_id?", o.topic as "topic?", o.key as "key?",
                  o.type as "event_type?", o.source as "source?",
                  o.aggregate_version as "aggregate_version?", o.data as "data?",
                  o.headers as "headers?", o.at as "at?"
           from (values (1)) as one
                    left join (
               (select * from outbox where id > $1 order by id limit $3)
               union all
               (select * from outbox where id = any($2))) o on true
           order by o.id"#,
        high,
        gaps,
        limit,
    )
    .fetch_all(conn)
    .answer("read the outbox")
    .await?;
    let xmin = rows.first().map(|row| row.xmin).unwrap_or_default();
    let rows = rows
        .into_iter()
        .filter_map(|row| {
            Some(OutboxRow {
                id: row.id?,
                event_id: row.event_id?,
                topic: row.topic?,
                key: row.key?,
                event_type: row.event_type?,
                source: row.source?,
                aggregate_version: row.aggregate_version?,
                data: row.data?,
                headers: row.headers,
                at: row.at?,
            })
        })
        .collect();
    Ok(Batch { rows, xmin })
}

/// The xid of a transaction of its own, which has ended when this returns. Not to be called inside
/// a transaction.
///
/// # Errors
/// No answer.
pub async fn begin_fence(conn: &mut Conn) -> Result<i64> {
    sqlx::query_scalar!(r#"select pg_current_xact_id()::text::bigint as "xid!""#)
        .fetch_one(conn)
        .answer("take a fence for gaps")
        .await
}

/// Where a new leader starts: everything up to it is acknowledged, parked or a closed gap.
///
/// # Errors
/// No answer.
pub async fn watermark(conn: &mut Conn) -> Result<i64> {
    sqlx::query_scalar!("select low from relay_watermark where name = 'outbox'")
        .fetch_one(conn)
        .answer("read the watermark")
        .await
}

/// What counts as published: every row up to it that a relay has seen is acknowledged or parked. At
/// or above the watermark, which gaps hold back.
///
/// # Errors
/// No answer.
pub async fn sent(conn: &mut Conn) -> Result<i64> {
    sqlx::query_scalar!(
        r#"select greatest(low, sent) as "sent!" from relay_watermark where name = 'outbox'"#
    )
    .fetch_one(conn)
    .answer("read what is published")
    .await
}

/// Moves the watermark forward and says what counts as published, which a row that appears late may
/// set back; on the connection that holds the leader's lock.
///
/// # Errors
/// [`crate::StoreError::Mismatch`] when it is further already: another leader has moved it.
pub async fn move_watermark(conn: &mut Conn, low: i64, sent: i64) -> Result<()> {
    let done = sqlx::query!(
        "update relay_watermark set low = $1, sent = $2, moved_at = clock_timestamp()
         where name = 'outbox' and low <= $1",
        low,
        sent,
    )
    .execute(conn)
    .answer("move the watermark")
    .await?;
    expect_rows("move the watermark", 1, done.rows_affected())
}

/// Sets a row aside that can never be sent.
///
/// # Errors
/// No answer.
pub async fn park(conn: &mut Conn, id: i64, event_id: Uuid, reason: &str) -> Result<()> {
    sqlx::query!(
        "insert into parked_events (id, event_id, reason) values ($1, $2, $3)
         on conflict do nothing",
        id,
        event_id,
        reason,
    )
    .execute(conn)
    .answer("park an event")
    .await
    .map(|_| ())
}

/// The age of the oldest row above what counts as published; `None` when all is.
///
/// # Errors
/// No answer.
pub async fn oldest_unpublished_age(store: &Store) -> Result<Option<Duration>> {
    let mut conn = store.conn().await?;
    let age = sqlx::query_scalar!(
        r#"select extract(epoch from clock_timestamp() - at)::double precision as "age!"
           from outbox
           where id > (select greatest(low, sent) from relay_watermark where name = 'outbox')
           order by id
           limit 1"#
    )
    .fetch_optional(&mut *conn)
    .answer("read the age of the outbox")
    .await?;
    Ok(age.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default()))
}

/// Makes partitions until `ahead` ids are covered; returns how many.
///
/// # Errors
/// The role is not the owner.
pub async fn make_partitions(conn: &mut Conn, ahead: i64) -> Result<i32> {
    sqlx::query_scalar!(r#"select outbox_make_partitions($1) as "made!""#, ahead)
        .fetch_one(conn)
        .slowly("make outbox partitions")
        .await
}

/// Drops partitions that are wholly published and whose newest row is older than `age`; returns
/// how many.
///
/// # Errors
/// The role is not the owner.
pub async fn drop_partitions(conn: &mut Conn, age: Duration) -> Result<i32> {
    sqlx::query_scalar!(
        r#"select outbox_drop_partitions(make_interval(secs => $1)) as "dropped!""#,
        age.as_secs_f64(),
    )
    .fetch_one(conn)
    .slowly("drop outbox partitions")
    .await
}
