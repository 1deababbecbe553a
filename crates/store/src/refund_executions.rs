//! Refunds that our payment service executes: one row per `refund_key`, DONE at most once.
//!
//! Lock order: after payments; sorted by key.

use std::{collections::BTreeSet, time::Duration};

use contracts::{Money, OrderId, PaymentId, RefundKey};

use crate::{
    Conn, Tx,
    error::{Bounded, Result, StoreError, expect_rows},
    settlement::payment_id,
    text,
};

/// Where an execution stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecutionState {
    /// The gateway may be executing it.
    Pending,
    /// The money went back.
    Done,
    /// It can't be executed as it is asked for; a slug says why.
    Refused(String),
}

impl ExecutionState {
    /// The word in the database.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Done => "DONE",
            Self::Refused(_) => "REFUSED",
        }
    }

    fn read(word: &str, reason: Option<String>) -> Result<Self> {
        match (word, reason) {
            ("PENDING", _) => Ok(Self::Pending),
            ("DONE", _) => Ok(Self::Done),
            ("REFUSED", Some(reason)) => Ok(Self::Refused(reason)),
            _ => Err(StoreError::Malformed {
                column: "refund_executions.state",
                value: word.to_owned(),
            }),
        }
    }

    fn reason(&self) -> Option<String> {
        match self {
            Self::Pending | Self::Done => None,
            Self::Refused(reason) => Some(reason.clone()),
        }
    }
}

/// An execution, locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Execution {
    /// At most one refund is executed per key.
    pub refund_key: RefundKey,
    /// The payment.
    pub payment_id: PaymentId,
    /// The order that it names.
    pub order_id: OrderId,
    /// How much is to go back.
    pub amount: Money,
    /// Where it stands.
    pub state: ExecutionState,
}

/// An execution that is to be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingRefund {
    /// The idempotency key at the gateway.
    pub refund_key: RefundKey,
    /// The key of the charge that is refunded.
    pub charge_key: String,
    /// How much.
    pub amount: Money,
    /// How often the gateway was asked without an outcome.
    pub attempts: i32,
}

/// Locks executions. Unknown keys are absent.
///
/// # Errors
/// The database, or a row that breaks the contract.
pub async fn lock(tx: &mut Tx, keys: &[RefundKey]) -> Result<Vec<Execution>> {
    let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
    let rows = sqlx::query!(
        r#"select refund_key, payment_id, order_id, amount_minor, currency, state, reason_code
           from refund_executions
           where refund_key = any($1)
           order by refund_key
           for no key update"#,
        &keys
    )
    .fetch_all(&mut **tx)
    .answer("lock refund executions")
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(Execution {
                refund_key: refund_key(&row.refund_key)?,
                payment_id: payment_id(&row.payment_id)?,
                order_id: OrderId(row.order_id),
                amount: text::money(row.amount_minor, &row.currency)?,
                state: ExecutionState::read(&row.state, row.reason_code)?,
            })
        })
        .collect()
}

/// Writes executions as they are now: new ones, and refused ones that were examined anew. A PENDING
/// one is looked at by the sweep `lease` from now. One that is DONE is never touched.
///
/// # Errors
/// The database.
pub async fn put(tx: &mut Tx, executions: &[Execution], lease: Duration) -> Result<()> {
    if executions.is_empty() {
        return Ok(());
    }
    let keys: Vec<String> = executions
        .iter()
        .map(|e| e.refund_key.to_string())
        .collect();
    let payments: Vec<String> = executions
        .iter()
        .map(|e| e.payment_id.to_string())
        .collect();
    let orders: Vec<uuid::Uuid> = executions.iter().map(|e| e.order_id.0).collect();
    let amounts: Vec<i64> = executions.iter().map(|e| e.amount.amount_minor).collect();
    let currencies: Vec<String> = executions
        .iter()
        .map(|e| e.amount.currency.to_string())
        .collect();
    let states: Vec<String> = executions
        .iter()
        .map(|e| e.state.as_str().to_owned())
        .collect();
    let reasons: Vec<Option<String>> = executions.iter().map(|e| e.state.reason()).collect();
    sqlx::query!(
        r#"insert into refund_executions as e (refund_key, payment_id, order_id, amount_minor,
                                               currency, state, reason_code, next_attempt_at)
           select n.refund_key, n.payment_id, n.order_id, n.amount_minor, n.currency, n.state,
                  n.reason_code,
                  case n.state when 'PENDING'
                       then clock_timestamp() + make_interval(secs => $8) end
           from unnest($1::text[], $2::text[], $3::uuid[], $4::bigint[], $5::text[], $6::text[],
                       $7::text[])
                    as n(refund_key, payment_id, order_id, amount_minor, currency, state,
                         reason_code)
           order by n.refund_key collate "C"
           on conflict (refund_key) do update
               set payment_id = excluded.payment_id,
                   order_id = excluded.order_id,
                   amount_minor = excluded.amount_minor,
                   currency = excluded.currency,
                   state = excluded.state,
                   reason_code = excluded.reason_code,
                   attempts = 0,
                   next_attempt_at = excluded.next_attempt_at,
                   updated_at = clock_timestamp()
               where e.state = 'REFUSED'"#,
        &keys,
        &payments,
        &orders,
        &amounts,
        &currencies,
        &states,
        &reasons as &[Option<String>],
        lease.as_secs_f64()
    )
    .execute(&mut **tx)
    .answer("write refund executions")
    .await?;
    Ok(())
}

/// Of these keys, the executions that nobody has tried yet and that the sweep does not look at yet.
///
/// # Errors
/// The database, or a row that breaks the contract.
pub async fn untried(conn: &mut Conn, keys: &[RefundKey]) -> Result<Vec<PendingRefund>> {
    let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
    let rows = sqlx::query_as!(
        RawPending,
        r#"select e.refund_key, p.gateway_key as "charge_key!", e.amount_minor, e.currency,
                  e.attempts
           from refund_executions e
                    join payments p on p.id = e.payment_id
           where e.refund_key = any($1) and p.gateway_key is not null
             and e.state = 'PENDING' and e.attempts = 0 and e.next_attempt_at > clock_timestamp()
           order by e.refund_key"#,
        &keys
    )
    .fetch_all(conn)
    .answer("read untried refunds")
    .await?;
    rows.into_iter().map(RawPending::read).collect()
}

/// Those of these keys whose money has gone back, without a lock.
///
/// # Errors
/// The database, or a row that breaks the contract.
pub async fn done(conn: &mut Conn, keys: &[RefundKey]) -> Result<BTreeSet<RefundKey>> {
    let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
    let done = sqlx::query_scalar!(
        "select refund_key from refund_executions where refund_key = any($1) and state = 'DONE'",
        &keys
    )
    .fetch_all(conn)
    .answer("read executed refunds")
    .await?;
    done.iter().map(|key| refund_key(key)).collect()
}

/// Takes at most `limit` PENDING executions that are due, so that no other sweep looks at them for
/// `lease`.
///
/// # Errors
/// The database, or a row that breaks the contract.
pub async fn claim_due(tx: &mut Tx, limit: i64, lease: Duration) -> Result<Vec<PendingRefund>> {
    let rows = sqlx::query_as!(
        RawPending,
        r#"with due as materialized (
               select refund_key
               from refund_executions
               where state = 'PENDING' and next_attempt_at <= clock_timestamp()
               order by next_attempt_at
               limit $1
               for no key update skip locked)
           update refund_executions e
           set next_attempt_at = clock_timestamp() + make_interval(secs => $2),
               updated_at = clock_timestamp()
           from due, payments p
           where e.refund_key = due.refund_key and p.id = e.payment_id
             and p.gateway_key is not null
           returning e.refund_key, p.gateway_key as "charge_key!", e.amount_minor, e.currency,
                     e.attempts"#,
        limit,
        lease.as_secs_f64()
    )
    .fetch_all(&mut **tx)
    .answer("claim due refunds")
    .await?;
    rows.into_iter().map(RawPending::read).collect()
}

/// Writes the state of executions that were locked.
///
/// # Errors
/// The database, or [`StoreError::Mismatch`].
pub async fn update(tx: &mut Tx, executions: &[&Execution]) -> Result<()> {
    if executions.is_empty() {
        return Ok(());
    }
    let keys: Vec<String> = executions
        .iter()
        .map(|e| e.refund_key.to_string())
        .collect();
    let states: Vec<String> = executions
        .iter()
        .map(|e| e.state.as_str().to_owned())
        .collect();
    let reasons: Vec<Option<String>> = executions.iter().map(|e| e.state.reason()).collect();
    let done = sqlx::query!(
        r#"update refund_executions e
           set state = ($2::text[])[array_position($1, e.refund_key)],
               reason_code = ($3::text[])[array_position($1, e.refund_key)],
               next_attempt_at = case ($2::text[])[array_position($1, e.refund_key)]
                                     when 'PENDING' then e.next_attempt_at end,
               updated_at = clock_timestamp()
           where e.refund_key = any($1::text[])"#,
        &keys,
        &states,
        &reasons as &[Option<String>]
    )
    .execute(&mut **tx)
    .answer("record refund executions")
    .await?;
    expect_rows(
        "record refund executions",
        executions.len(),
        done.rows_affected(),
    )
}

/// Counts an attempt without an outcome and tries again after the seconds given, one per key.
///
/// # Errors
/// The database.
pub async fn postpone(tx: &mut Tx, keys: &[RefundKey], seconds: &[f64]) -> Result<()> {
    if keys.is_empty() {
        return Ok(());
    }
    let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
    sqlx::query!(
        r#"update refund_executions e
           set attempts = e.attempts + 1,
               next_attempt_at = clock_timestamp()
                   + make_interval(secs => ($2::float8[])[array_position($1, e.refund_key)]),
               updated_at = clock_timestamp()
           where e.refund_key = any($1::text[]) and e.state = 'PENDING'"#,
        &keys,
        seconds
    )
    .execute(&mut **tx)
    .answer("postpone refunds")
    .await?;
    Ok(())
}

struct RawPending {
    refund_key: String,
    charge_key: String,
    amount_minor: i64,
    currency: String,
    attempts: i32,
}

impl RawPending {
    fn read(self) -> Result<PendingRefund> {
        Ok(PendingRefund {
            refund_key: refund_key(&self.refund_key)?,
            charge_key: self.charge_key,
            amount: text::money(self.amount_minor, &self.currency)?,
            attempts: self.attempts,
        })
    }
}

fn refund_key(text: &str) -> Result<RefundKey> {
    RefundKey::parse(text).map_err(|_| StoreError::Malformed {
        column: "refund_key",
        value: text.to_owned(),
    })
}
