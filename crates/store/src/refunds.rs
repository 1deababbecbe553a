//! Money that is to go back: one row per payment, asked for until it is closed (P6).
//!
//! Lock order: after payments, before buyer units and stock; sorted by payment.

use contracts::{Money, OrderId, PaymentId, RefundKey};

use crate::{
    Tx,
    error::{Bounded, Result, StoreError},
    settlement::payment_id,
    text,
};

/// Where a refund stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefundState {
    /// Asked for, and asked for again until it is answered.
    Requested,
    /// The money went back.
    Closed,
    /// The money went back and nobody had asked for it.
    External,
}

impl RefundState {
    /// The word in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Requested => "REQUESTED",
            Self::Closed => "CLOSED",
            Self::External => "EXTERNAL",
        }
    }

    /// The state of a word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Requested, Self::Closed, Self::External]
            .into_iter()
            .find(|state| state.as_str() == word)
    }
}

/// A refund.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefundRow {
    /// The payment; it has at most one refund.
    pub payment_id: PaymentId,
    /// At most one refund is executed per key.
    pub refund_key: RefundKey,
    /// The order that the payment names.
    pub order_id: OrderId,
    /// How much.
    pub amount: Money,
    /// Why, as a slug.
    pub reason: String,
    /// Where it stands.
    pub state: RefundState,
}

/// A refund that is to be asked for again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueRefund {
    /// The refund.
    pub refund: RefundRow,
    /// How often it was asked for.
    pub asks: i32,
    /// The version of its order; 1 when there is no such order.
    pub order_version: i64,
}

/// Captured money of an order that ended without it, and that nobody has asked back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadMoney {
    /// The payment.
    pub payment_id: PaymentId,
    /// The order that it names.
    pub order_id: OrderId,
    /// What is left of it.
    pub amount: Money,
    /// Whether the order was confirmed, by another payment.
    pub paid_otherwise: bool,
    /// The version of its order.
    pub order_version: i64,
}

/// Locks payments whose news can't arrive, because it is an open dead letter of stock or was parked:
/// captured, not applied to their order, which has ended, and without a refund for
/// `older_than_seconds`. What another process has locked is left to it.
///
/// The record's key is its order's id; a key that is none finds nothing.
///
/// # Errors
/// The database, or a row that breaks the contract.
pub async fn lock_dead_money(
    tx: &mut Tx,
    older_than_seconds: f64,
    limit: i64,
) -> Result<Vec<DeadMoney>> {
    let rows = sqlx::query!(
        r#"with keys as (
               select encode(d.key, 'escape') as key
               from dead_letters d
               where d.consumer = 'stock' and d.state = 'OPEN'
               union
               select o.key
               from parked_events k
                        join outbox o on o.id = k.id
               where o.source = '/holdfast/payment'),
           named as materialized (
               select case when k.key ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
                           then k.key::uuid end as order_id
               from keys k)
           select p.id, p.order_id, p.captured_minor - p.refunded_minor as "left!", p.currency,
                  o.status = 'CONFIRMED' as "confirmed!", o.version
           from named n
                    join orders o on o.id = n.order_id
                    join payments p on p.order_id = o.id
           where o.status <> 'RESERVED'
             and p.state = 'COMPLETED'
             and not p.applied
             and p.captured_minor > p.refunded_minor
             and p.updated_at < clock_timestamp() - make_interval(secs => $1)
             and not exists (select from refunds r where r.payment_id = p.id)
           order by p.id
           limit $2
           for no key update of p skip locked"#,
        older_than_seconds,
        limit
    )
    .fetch_all(&mut **tx)
    .answer("lock money that nobody asked back")
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(DeadMoney {
                payment_id: payment_id(&row.id)?,
                order_id: OrderId(row.order_id),
                amount: text::money(row.left, &row.currency)?,
                paid_otherwise: row.confirmed,
                order_version: row.version,
            })
        })
        .collect()
}

/// Locks and reads the refunds of payments, and those that have one of the keys.
///
/// # Errors
/// The database, or a row that breaks the contract.
pub async fn lock(
    tx: &mut Tx,
    payments: &[PaymentId],
    keys: &[RefundKey],
) -> Result<Vec<RefundRow>> {
    let payments: Vec<String> = payments.iter().map(ToString::to_string).collect();
    let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
    let rows = sqlx::query_as!(
        RawRefund,
        r#"select payment_id, refund_key, order_id, amount_minor, currency, reason, state
           from refunds
           where payment_id = any($1) or refund_key = any($2)
           order by payment_id
           for no key update"#,
        &payments,
        &keys
    )
    .fetch_all(&mut **tx)
    .answer("lock refunds")
    .await?;
    rows.into_iter().map(RawRefund::read).collect()
}

/// Inserts refunds that were unknown when the batch locked its rows; a requested one is asked for
/// again `first_wait_seconds` from now. Returns how many: fewer than given means that another
/// transaction was faster, and the batch must be run again.
///
/// # Errors
/// The database.
pub async fn insert(tx: &mut Tx, rows: &[RefundRow], first_wait_seconds: f64) -> Result<u64> {
    if rows.is_empty() {
        return Ok(0);
    }
    let payments: Vec<String> = rows.iter().map(|r| r.payment_id.to_string()).collect();
    let keys: Vec<String> = rows.iter().map(|r| r.refund_key.to_string()).collect();
    let orders: Vec<uuid::Uuid> = rows.iter().map(|r| r.order_id.0).collect();
    let amounts: Vec<i64> = rows.iter().map(|r| r.amount.amount_minor).collect();
    let currencies: Vec<String> = rows.iter().map(|r| r.amount.currency.to_string()).collect();
    let reasons: Vec<String> = rows.iter().map(|r| r.reason.clone()).collect();
    let states: Vec<String> = rows.iter().map(|r| r.state.as_str().to_owned()).collect();
    let done = sqlx::query!(
        r#"insert into refunds (payment_id, refund_key, order_id, amount_minor, currency, reason,
                                state, next_ask_at, closed_at)
           select n.payment_id, n.refund_key, n.order_id, n.amount_minor, n.currency, n.reason,
                  n.state,
                  case when n.state = 'REQUESTED'
                       then clock_timestamp() + make_interval(secs => $8) end,
                  case when n.state <> 'REQUESTED' then clock_timestamp() end
           from unnest($1::text[], $2::text[], $3::uuid[], $4::bigint[], $5::text[], $6::text[],
                       $7::text[])
                    as n(payment_id, refund_key, order_id, amount_minor, currency, reason, state)
           on conflict do nothing"#,
        &payments,
        &keys,
        &orders,
        &amounts,
        &currencies,
        &reasons,
        &states,
        first_wait_seconds
    )
    .execute(&mut **tx)
    .answer("insert refunds")
    .await?;
    Ok(done.rows_affected())
}

/// Closes refunds that [`lock`] has locked.
///
/// # Errors
/// The database.
pub async fn close(tx: &mut Tx, payments: &[PaymentId]) -> Result<()> {
    if payments.is_empty() {
        return Ok(());
    }
    let payments: Vec<String> = payments.iter().map(ToString::to_string).collect();
    sqlx::query!(
        r#"update refunds
           set state = 'CLOSED', next_ask_at = null, closed_at = clock_timestamp()
           where payment_id = any($1) and state = 'REQUESTED'"#,
        &payments
    )
    .execute(&mut **tx)
    .answer("close refunds")
    .await?;
    Ok(())
}

/// Turns external refunds, of a part, into requested ones of the rest. [`lock`] has locked them.
///
/// # Errors
/// The database.
pub async fn ask_for_the_rest(
    tx: &mut Tx,
    rows: &[RefundRow],
    first_wait_seconds: f64,
) -> Result<()> {
    for row in rows {
        sqlx::query!(
            r#"update refunds
               set refund_key = $2, amount_minor = $3, reason = $4, state = 'REQUESTED',
                   asks = 1, closed_at = null,
                   next_ask_at = clock_timestamp() + make_interval(secs => $5)
               where payment_id = $1"#,
            row.payment_id.to_string(),
            row.refund_key.to_string(),
            row.amount.amount_minor,
            row.reason,
            first_wait_seconds,
        )
        .execute(&mut **tx)
        .answer("ask for the rest of a payment")
        .await?;
    }
    Ok(())
}

/// Locks refunds that are due to be asked for again; those that another process has locked are
/// left to it.
///
/// # Errors
/// The database, or a row that breaks the contract.
pub async fn lock_due(tx: &mut Tx, limit: i64) -> Result<Vec<DueRefund>> {
    let rows = sqlx::query!(
        r#"select r.payment_id, r.refund_key, r.order_id, r.amount_minor, r.currency, r.reason,
                  r.state, r.asks, coalesce(o.version, 1) as "order_version!"
           from refunds r
                    left join orders o on o.id = r.order_id
           where r.state = 'REQUESTED' and r.next_ask_at <= now()
           order by r.next_ask_at
           limit $1
           for no key update of r skip locked"#,
        limit
    )
    .fetch_all(&mut **tx)
    .answer("lock due refunds")
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(DueRefund {
                asks: row.asks,
                order_version: row.order_version,
                refund: RawRefund {
                    payment_id: row.payment_id,
                    refund_key: row.refund_key,
                    order_id: row.order_id,
                    amount_minor: row.amount_minor,
                    currency: row.currency,
                    reason: row.reason,
                    state: row.state,
                }
                .read()?,
            })
        })
        .collect()
}

/// Notes that refunds were asked for: the next time is `first_wait_seconds`, doubled per ask, at
/// most `longest_wait_seconds` from now.
///
/// # Errors
/// The database.
pub async fn note_asked(
    tx: &mut Tx,
    payments: &[PaymentId],
    first_wait_seconds: f64,
    longest_wait_seconds: f64,
) -> Result<()> {
    let payments: Vec<String> = payments.iter().map(ToString::to_string).collect();
    sqlx::query!(
        r#"update refunds
           set asks = asks + 1,
               next_ask_at = clock_timestamp()
                   + make_interval(secs => least($2 * 2 ^ least(asks, 30), $3))
           where payment_id = any($1) and state = 'REQUESTED'"#,
        &payments,
        first_wait_seconds,
        longest_wait_seconds
    )
    .execute(&mut **tx)
    .answer("note asked refunds")
    .await?;
    Ok(())
}

struct RawRefund {
    payment_id: String,
    refund_key: String,
    order_id: uuid::Uuid,
    amount_minor: i64,
    currency: String,
    reason: String,
    state: String,
}

impl RawRefund {
    fn read(self) -> Result<RefundRow> {
        let malformed = |column, value: &str| StoreError::Malformed {
            column,
            value: value.to_owned(),
        };
        Ok(RefundRow {
            payment_id: payment_id(&self.payment_id)?,
            refund_key: RefundKey::parse(&self.refund_key)
                .map_err(|_| malformed("refund_key", &self.refund_key))?,
            order_id: OrderId(self.order_id),
            amount: text::money(self.amount_minor, &self.currency)?,
            state: RefundState::parse(&self.state)
                .ok_or_else(|| malformed("refunds.state", &self.state))?,
            reason: self.reason,
        })
    }
}
