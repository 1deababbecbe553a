//! Payments that our payment service makes: guarded before the charge (P5), recorded after it.
//! What upstream events say of payments, and which one is applied, is in [`crate::settlement`].
//!
//! Lock order: after the orders, before refund executions; sorted by id.

mod journal;
mod waiting;

use std::time::Duration;

use contracts::{Money, OrderId, PaymentId, PaymentMethod, RefundKey};

use crate::{
    Conn, Tx,
    error::{Bounded, Result, StoreError, expect_rows},
    settlement::{PaymentState, payment_id},
    text,
};

pub use journal::{adopt, by_gateway_keys};
pub use waiting::{WaitingOrder, lock_waiting_orders, orders_without};

/// A payment whose outcome is not known yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingPayment {
    /// Which.
    pub id: PaymentId,
    /// The order that it is to pay.
    pub order_id: OrderId,
    /// The idempotency key at the gateway; constant for the order.
    pub gateway_key: String,
    /// What is to be captured.
    pub amount: Money,
    /// How.
    pub method: PaymentMethod,
    /// How often the gateway was asked without an outcome.
    pub attempts: i32,
}

/// A payment as it is recorded, locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedPayment {
    /// Which.
    pub id: PaymentId,
    /// The order that it names.
    pub order_id: OrderId,
    /// Its key at our gateway; `None`: not a payment of ours.
    pub gateway_key: Option<String>,
    /// Where it stands.
    pub state: PaymentState,
    /// What was to be captured.
    pub amount: Money,
    /// How.
    pub method: PaymentMethod,
    /// What was captured, in minor units of `amount.currency`.
    pub captured_minor: i64,
    /// What went back.
    pub refunded_minor: i64,
    /// Why it failed, or what was strange about it.
    pub reason_code: Option<String>,
    /// Rises with each change; `ce_aggregateversion` of its events.
    pub version: i64,
}

/// Inserts PENDING payments, sorted by gateway key; those whose key is there already are left as
/// they are. The sweep looks at them `lease` from now. Returns how many were new.
///
/// # Errors
/// The database.
pub async fn insert_pending(
    tx: &mut Tx,
    payments: &[PendingPayment],
    lease: Duration,
) -> Result<u64> {
    if payments.is_empty() {
        return Ok(0);
    }
    let ids: Vec<String> = payments.iter().map(|p| p.id.to_string()).collect();
    let orders: Vec<uuid::Uuid> = payments.iter().map(|p| p.order_id.0).collect();
    let keys: Vec<String> = payments.iter().map(|p| p.gateway_key.clone()).collect();
    let amounts: Vec<i64> = payments.iter().map(|p| p.amount.amount_minor).collect();
    let currencies: Vec<String> = payments
        .iter()
        .map(|p| p.amount.currency.to_string())
        .collect();
    let methods: Vec<String> = payments.iter().map(|p| p.method.to_string()).collect();
    let done = sqlx::query!(
        r#"insert into payments (id, order_id, gateway_key, state, amount_minor, currency, method,
                                 next_attempt_at)
           select n.id, n.order_id, n.gateway_key, 'PENDING', n.amount_minor, n.currency, n.method,
                  clock_timestamp() + make_interval(secs => $7)
           from unnest($1::text[], $2::uuid[], $3::text[], $4::bigint[], $5::text[], $6::text[])
                    as n(id, order_id, gateway_key, amount_minor, currency, method)
           order by n.gateway_key collate "C"
           on conflict (gateway_key) do nothing"#,
        &ids,
        &orders,
        &keys,
        &amounts,
        &currencies,
        &methods,
        lease.as_secs_f64()
    )
    .execute(&mut **tx)
    .answer("insert pending payments")
    .await?;
    Ok(done.rows_affected())
}

/// The payments of these orders that nobody has tried yet and that the sweep does not look at yet:
/// what is to be charged right after the commit.
///
/// # Errors
/// The database, or a row that breaks the contract.
pub async fn untried(conn: &mut Conn, orders: &[OrderId]) -> Result<Vec<PendingPayment>> {
    let ids: Vec<uuid::Uuid> = orders.iter().map(|id| id.0).collect();
    let rows = sqlx::query_as!(
        RawPending,
        r#"select id, order_id, gateway_key as "gateway_key!", amount_minor, currency, method,
                  attempts
           from payments
           where order_id = any($1) and gateway_key is not null
             and state = 'PENDING' and attempts = 0 and next_attempt_at > clock_timestamp()
           order by id"#,
        &ids
    )
    .fetch_all(conn)
    .answer("read untried payments")
    .await?;
    rows.into_iter().map(RawPending::read).collect()
}

/// Takes at most `limit` PENDING payments that are due, so that no other sweep looks at them for
/// `lease`.
///
/// # Errors
/// The database, or a row that breaks the contract.
pub async fn claim_due(tx: &mut Tx, limit: i64, lease: Duration) -> Result<Vec<PendingPayment>> {
    let rows = sqlx::query_as!(
        RawPending,
        r#"with due as materialized (
               select id
               from payments
               where state = 'PENDING' and next_attempt_at <= clock_timestamp()
               order by next_attempt_at
               limit $1
               for no key update skip locked)
           update payments p
           set next_attempt_at = clock_timestamp() + make_interval(secs => $2),
               updated_at = clock_timestamp()
           from due
           where p.id = due.id and p.gateway_key is not null
           returning p.id, p.order_id, p.gateway_key as "gateway_key!", p.amount_minor, p.currency,
                     p.method, p.attempts"#,
        limit,
        lease.as_secs_f64()
    )
    .fetch_all(&mut **tx)
    .answer("claim due payments")
    .await?;
    rows.into_iter().map(RawPending::read).collect()
}

/// Locks the payments with one of these gateway keys or with a refund that has one of these keys.
///
/// # Errors
/// The database, or a row that breaks the contract.
pub async fn lock_for_results(
    tx: &mut Tx,
    gateway_keys: &[String],
    refund_keys: &[RefundKey],
) -> Result<Vec<RecordedPayment>> {
    let refund_keys: Vec<String> = refund_keys.iter().map(ToString::to_string).collect();
    let rows = sqlx::query_as!(
        RawRecorded,
        r#"select id, order_id, gateway_key, state, amount_minor, currency, method,
                  captured_minor, refunded_minor, reason_code, version
           from payments
           where gateway_key = any($1)
              or id = any(array(select payment_id from refund_executions
                                where refund_key = any($2)))
           order by id
           for no key update"#,
        gateway_keys,
        &refund_keys
    )
    .fetch_all(&mut **tx)
    .answer("lock payments for their results")
    .await?;
    rows.into_iter().map(RawRecorded::read).collect()
}

/// Locks payments by id. Unknown ids are absent.
///
/// # Errors
/// The database, or a row that breaks the contract.
pub async fn lock(tx: &mut Tx, ids: &[PaymentId]) -> Result<Vec<RecordedPayment>> {
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    let rows = sqlx::query_as!(
        RawRecorded,
        r#"select id, order_id, gateway_key, state, amount_minor, currency, method,
                  captured_minor, refunded_minor, reason_code, version
           from payments
           where id = any($1)
           order by id
           for no key update"#,
        &ids
    )
    .fetch_all(&mut **tx)
    .answer("lock payments of refunds")
    .await?;
    rows.into_iter().map(RawRecorded::read).collect()
}

/// Writes payments that were locked: state, money, reason and version. One that is not PENDING any
/// more is no longer scheduled.
///
/// # Errors
/// The database, or [`StoreError::Mismatch`].
pub async fn update(tx: &mut Tx, payments: &[&RecordedPayment]) -> Result<()> {
    if payments.is_empty() {
        return Ok(());
    }
    let ids: Vec<String> = payments.iter().map(|p| p.id.to_string()).collect();
    let states: Vec<String> = payments
        .iter()
        .map(|p| p.state.as_str().to_owned())
        .collect();
    let currencies: Vec<String> = payments
        .iter()
        .map(|p| p.amount.currency.to_string())
        .collect();
    let captured: Vec<i64> = payments.iter().map(|p| p.captured_minor).collect();
    let refunded: Vec<i64> = payments.iter().map(|p| p.refunded_minor).collect();
    let reasons: Vec<Option<String>> = payments.iter().map(|p| p.reason_code.clone()).collect();
    let versions: Vec<i64> = payments.iter().map(|p| p.version).collect();
    let done = sqlx::query!(
        r#"update payments p
           set (state, currency, captured_minor, refunded_minor, reason_code, version,
                next_attempt_at)
                   = (select ($2::text[])[k.i], ($3::text[])[k.i], ($4::bigint[])[k.i],
                             ($5::bigint[])[k.i], ($6::text[])[k.i], ($7::bigint[])[k.i],
                             case ($2::text[])[k.i] when 'PENDING' then p.next_attempt_at end
                      -- the place is looked for once per row; without the offset once per column
                      from (select array_position($1::text[], p.id) as i offset 0) k),
               updated_at = clock_timestamp()
           where p.id = any($1::text[])"#,
        &ids,
        &states,
        &currencies,
        &captured,
        &refunded,
        &reasons as &[Option<String>],
        &versions
    )
    .execute(&mut **tx)
    .answer("record payments")
    .await?;
    expect_rows("record payments", payments.len(), done.rows_affected())
}

/// Counts an attempt without an outcome and asks again after the seconds given, one per key.
/// Payments that were locked by [`lock_for_results`] or that nobody else touches.
///
/// # Errors
/// The database.
pub async fn postpone(tx: &mut Tx, ids: &[PaymentId], seconds: &[f64]) -> Result<()> {
    if ids.is_empty() {
        return Ok(());
    }
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    sqlx::query!(
        r#"update payments p
           set attempts = p.attempts + 1,
               next_attempt_at = clock_timestamp()
                   + make_interval(secs => ($2::float8[])[array_position($1, p.id)]),
               updated_at = clock_timestamp()
           where p.id = any($1::text[]) and p.state = 'PENDING'"#,
        &ids,
        seconds
    )
    .execute(&mut **tx)
    .answer("postpone payments")
    .await?;
    Ok(())
}

struct RawPending {
    id: String,
    order_id: uuid::Uuid,
    gateway_key: String,
    amount_minor: i64,
    currency: String,
    method: String,
    attempts: i32,
}

impl RawPending {
    fn read(self) -> Result<PendingPayment> {
        Ok(PendingPayment {
            id: payment_id(&self.id)?,
            order_id: OrderId(self.order_id),
            gateway_key: self.gateway_key,
            amount: text::money(self.amount_minor, &self.currency)?,
            method: text::payment_method(&self.method)?,
            attempts: self.attempts,
        })
    }
}

struct RawRecorded {
    id: String,
    order_id: uuid::Uuid,
    gateway_key: Option<String>,
    state: String,
    amount_minor: i64,
    currency: String,
    method: String,
    captured_minor: i64,
    refunded_minor: i64,
    reason_code: Option<String>,
    version: i64,
}

impl RawRecorded {
    fn read(self) -> Result<RecordedPayment> {
        Ok(RecordedPayment {
            id: payment_id(&self.id)?,
            order_id: OrderId(self.order_id),
            gateway_key: self.gateway_key,
            state: PaymentState::parse(&self.state).ok_or_else(|| StoreError::Malformed {
                column: "payments.state",
                value: self.state.clone(),
            })?,
            amount: text::money(self.amount_minor, &self.currency)?,
            method: text::payment_method(&self.method)?,
            captured_minor: self.captured_minor,
            refunded_minor: self.refunded_minor,
            reason_code: self.reason_code,
            version: self.version,
        })
    }
}
