//! Records that a consumer set aside: the truth, of which the DLQ topic is a copy (P9).

use contracts::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::{
    Conn, Tx,
    error::{Bounded, Result, StoreError, expect_rows},
    outbox,
};

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
    let mut new = 0;
    // One by one: dead letters are rare, and each has a copy of its own.
    for letter in letters {
        if let Some(id) = insert_one(tx, letter).await? {
            outbox::insert_copy(tx, id, &letter.dlq_topic).await?;
            new += 1;
        }
    }
    Ok(new)
}

async fn insert_one(tx: &mut Tx, letter: &NewDeadLetter) -> Result<Option<Uuid>> {
    let digest = Sha256::digest(letter.payload.as_deref().unwrap_or_default());
    sqlx::query_scalar!(
        r#"insert into dead_letters
               (id, consumer, topic, partition, "offset", key, type, source, event_id, payload,
                payload_sha256, headers, reason, class, attempts, first_seen, dlq_topic)
           values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
           on conflict do nothing
           returning id"#,
        contracts::ids::generate(),
        letter.consumer,
        letter.topic,
        letter.partition,
        letter.offset,
        letter.key.as_deref(),
        letter.event_type,
        letter.source,
        letter.event_id,
        letter.payload.as_deref(),
        &digest[..],
        headers_to_json(&letter.headers),
        letter.reason,
        letter.class,
        letter.attempts,
        letter.first_seen,
        letter.dlq_topic,
    )
    .fetch_optional(&mut **tx)
    .answer("set a record aside")
    .await
}

/// `[[name, value], ...]`; a value is null, a text, or `{"hex": "..."}` when it is not a text that
/// PostgreSQL can hold.
fn headers_to_json(headers: &Headers) -> Value {
    let value = |bytes: &Option<Vec<u8>>| match bytes {
        None => Value::Null,
        Some(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => text.into(),
            _ => json!({ "hex": hex::encode(bytes) }),
        },
    };
    headers
        .iter()
        .map(|(name, bytes)| json!([name.replace('\0', "\u{fffd}"), value(bytes)]))
        .collect()
}

fn headers_from_json(stored: &Value) -> Result<Headers> {
    let malformed = || StoreError::Malformed {
        column: "dead_letters.headers",
        value: stored.to_string(),
    };
    stored
        .as_array()
        .ok_or_else(malformed)?
        .iter()
        .map(|pair| {
            let name = pair.get(0).and_then(Value::as_str).ok_or_else(malformed)?;
            let value = match pair.get(1).ok_or_else(malformed)? {
                Value::Null => None,
                Value::String(text) => Some(text.clone().into_bytes()),
                other => {
                    let digits = other
                        .get("hex")
                        .and_then(Value::as_str)
                        .ok_or_else(malformed)?;
                    Some(hex::decode(digits).map_err(|_| malformed())?)
                }
            };
            Ok((name.to_owned(), value))
        })
        .collect()
}

struct Row {
    id: Uuid,
    consumer: String,
    topic: String,
    partition: i32,
    offset: i64,
    key: Option<Vec<u8>>,
    event_type: Option<String>,
    source: Option<String>,
    event_id: Option<String>,
    payload: Option<Vec<u8>>,
    headers: Value,
    reason: String,
    class: String,
    attempts: i32,
    first_seen: Timestamp,
    dlq_topic: String,
    at: Timestamp,
    state: String,
}

impl TryFrom<Row> for DeadLetter {
    type Error = StoreError;
    fn try_from(row: Row) -> Result<Self> {
        Ok(Self {
            id: row.id,
            at: row.at,
            redriven: row.state == "REDRIVEN",
            letter: NewDeadLetter {
                headers: headers_from_json(&row.headers)?,
                consumer: row.consumer,
                topic: row.topic,
                partition: row.partition,
                offset: row.offset,
                key: row.key,
                event_type: row.event_type,
                source: row.source,
                event_id: row.event_id,
                payload: row.payload,
                reason: row.reason,
                class: row.class,
                attempts: row.attempts,
                first_seen: row.first_seen,
                dlq_topic: row.dlq_topic,
            },
        })
    }
}

/// Dead letters, for any condition on `d`.
macro_rules! letters {
    ($condition:tt, $($bind:expr),*) => {
        sqlx::query_as!(
            Row,
            "select d.id, d.consumer, d.topic, d.partition, d.\"offset\", d.key,
                    d.type as event_type, d.source, d.event_id, d.payload, d.headers, d.reason,
                    d.class, d.attempts, d.first_seen, d.dlq_topic, d.at, d.state
             from dead_letters d "
                + $condition,
            $($bind),*
        )
    };
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
    let rows = letters!(
        "where d.id > $1 and (not $2 or d.state = 'OPEN') order by d.id limit $3",
        after.unwrap_or_default(),
        open_only,
        limit
    )
    .fetch_all(conn)
    .answer("list dead letters")
    .await?;
    rows.into_iter().map(DeadLetter::try_from).collect()
}

/// One dead letter.
///
/// # Errors
/// No answer.
pub async fn get(conn: &mut Conn, id: Uuid) -> Result<Option<DeadLetter>> {
    let row = letters!("where d.id = $1", id)
        .fetch_optional(conn)
        .answer("read a dead letter")
        .await?;
    row.map(DeadLetter::try_from).transpose()
}

/// Locks one open dead letter for a redrive; `None` when there is none or it was redriven.
///
/// # Errors
/// 55P03 when another redrive has it.
pub async fn lock_open(tx: &mut Tx, id: Uuid) -> Result<Option<DeadLetter>> {
    let row = letters!("where d.id = $1 and d.state = 'OPEN' for no key update", id)
        .fetch_optional(&mut **tx)
        .answer("lock a dead letter")
        .await?;
    row.map(DeadLetter::try_from).transpose()
}

/// Marks a dead letter as handled again.
///
/// # Errors
/// No answer.
pub async fn mark_redriven(tx: &mut Tx, id: Uuid) -> Result<()> {
    let done = sqlx::query!(
        "update dead_letters set state = 'REDRIVEN' where id = $1",
        id
    )
    .execute(&mut **tx)
    .answer("mark a dead letter as redriven")
    .await?;
    expect_rows("mark a dead letter as redriven", 1, done.rows_affected())
}

/// Deletes at most `limit` dead letters that were redriven and are older than `age`; returns how
/// many. Open ones stay until somebody has seen to them.
///
/// # Errors
/// No answer.
pub async fn prune(conn: &mut Conn, age: std::time::Duration, limit: i64) -> Result<u64> {
    let done = sqlx::query!(
        "delete from dead_letters
         where id = any (array(
             select id from dead_letters
             where state = 'REDRIVEN' and at < now() - make_interval(secs => $1) limit $2))",
        age.as_secs_f64(),
        limit,
    )
    .execute(conn)
    .slowly("prune dead letters")
    .await?;
    Ok(done.rows_affected())
}
