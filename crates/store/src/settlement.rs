//! Payments as settlement sees them. Our payment service writes state and captures of its own
//! rows; this file records what upstream events say and which payment was applied (P6).
//!
//! Lock order: after the orders, before refunds, buyer units and stock; sorted by id.

use std::collections::BTreeMap;

use contracts::{Money, OrderId, PaymentId, PaymentMethod, Timestamp};

use crate::{
    Tx,
    error::{Bounded, Result, StoreError, expect_rows},
    text,
};

/// Where a payment stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PaymentState {
    /// A charge may be on its way.
    Pending,
    /// Captured.
    Completed,
    /// Not captured.
    Failed,
    /// Canceled at the gateway before it was captured.
    Voided,
}

impl PaymentState {
    /// The word in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Voided => "VOIDED",
        }
    }

    /// The state of a word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Pending, Self::Completed, Self::Failed, Self::Voided]
            .into_iter()
            .find(|state| state.as_str() == word)
    }
}

/// A payment as it is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PaymentRow {
    /// Named by whoever charges.
    pub id: PaymentId,
    /// The order that it names; it may not exist.
    pub order_id: OrderId,
    /// Where it stands.
    pub state: PaymentState,
    /// What was to be captured, or was.
    pub amount: Money,
    /// How.
    pub method: PaymentMethod,
    /// What was captured, in minor units of `amount.currency`.
    pub captured_minor: i64,
    /// What went back; never more than was captured.
    pub refunded_minor: i64,
    /// Whether it confirmed its order.
    pub applied: bool,
    /// Why it failed, as its gateway says.
    pub reason_code: Option<String>,
    /// Why people must look at it; the first reason stays.
    pub flagged: Option<String>,
}

/// PostgreSQL's clock, read after the locks: when what this transaction decides happens.
///
/// # Errors
/// No answer.
pub async fn now(tx: &mut Tx) -> Result<Timestamp> {
    sqlx::query_scalar!(r#"select clock_timestamp() as "now!""#)
        .fetch_one(&mut **tx)
        .answer("read the clock")
        .await
}

/// Locks and reads payments. Unknown ids are absent.
///
/// # Errors
/// The database, or a row that breaks the contract.
pub async fn lock_payments(tx: &mut Tx, ids: &[PaymentId]) -> Result<Vec<PaymentRow>> {
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    let rows = sqlx::query!(
        r#"select id, order_id, state, amount_minor, currency, method, captured_minor,
                  refunded_minor, applied, reason_code, flagged
           from payments
           where id = any($1)
           order by id
           for no key update"#,
        &ids
    )
    .fetch_all(&mut **tx)
    .answer("lock payments")
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(PaymentRow {
                state: PaymentState::parse(&row.state).ok_or_else(|| StoreError::Malformed {
                    column: "payments.state",
                    value: row.state.clone(),
                })?,
                amount: text::money(row.amount_minor, &row.currency)?,
                method: text::payment_method(&row.method)?,
                id: payment_id(&row.id)?,
                order_id: OrderId(row.order_id),
                captured_minor: row.captured_minor,
                refunded_minor: row.refunded_minor,
                applied: row.applied,
                reason_code: row.reason_code,
                flagged: row.flagged,
            })
        })
        .collect()
}

/// Which payment confirmed each order.
///
/// # Errors
/// The database, or a row that breaks the contract.
pub async fn applied_payments(
    tx: &mut Tx,
    orders: &[OrderId],
) -> Result<BTreeMap<OrderId, PaymentId>> {
    let ids: Vec<uuid::Uuid> = orders.iter().map(|id| id.0).collect();
    let rows = sqlx::query!(
        "select order_id, id from payments where order_id = any($1) and applied",
        &ids
    )
    .fetch_all(&mut **tx)
    .answer("read applied payments")
    .await?;
    rows.into_iter()
        .map(|row| Ok((OrderId(row.order_id), payment_id(&row.id)?)))
        .collect()
}

/// Inserts payments that were unknown when the batch locked its rows. Returns how many: fewer than
/// given means that another transaction has recorded one meanwhile, and the batch must be run again.
///
/// # Errors
/// The database.
pub async fn insert_payments(tx: &mut Tx, rows: &[PaymentRow]) -> Result<u64> {
    if rows.is_empty() {
        return Ok(0);
    }
    let c = Columns::of(rows);
    let done = sqlx::query!(
        r#"insert into payments (id, order_id, state, amount_minor, currency, method,
                                 captured_minor, refunded_minor, applied, reason_code, flagged)
           select * from unnest($1::text[], $2::uuid[], $3::text[], $4::bigint[], $5::text[],
                                $6::text[], $7::bigint[], $8::bigint[], $9::boolean[],
                                $10::text[], $11::text[])
           on conflict (id) do nothing"#,
        &c.ids,
        &c.orders,
        &c.states,
        &c.amounts,
        &c.currencies,
        &c.methods,
        &c.captured,
        &c.refunded,
        &c.applied,
        &c.reasons as &[Option<String>],
        &c.flags as &[Option<String>]
    )
    .execute(&mut **tx)
    .answer("insert payments")
    .await?;
    Ok(done.rows_affected())
}

/// Writes payments that [`lock_payments`] has locked. A payment that stops being PENDING is no
/// longer scheduled.
///
/// # Errors
/// The database.
pub async fn update_payments(tx: &mut Tx, rows: &[PaymentRow]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let c = Columns::of(rows);
    let done = sqlx::query!(
        r#"update payments p
           set (state, amount_minor, currency, method, captured_minor, refunded_minor, applied,
                reason_code, flagged, next_attempt_at)
                   = (select ($2::text[])[k.i], ($3::bigint[])[k.i], ($4::text[])[k.i],
                             ($5::text[])[k.i], ($6::bigint[])[k.i], ($7::bigint[])[k.i],
                             ($8::boolean[])[k.i], ($9::text[])[k.i], ($10::text[])[k.i],
                             case ($2::text[])[k.i] when 'PENDING' then p.next_attempt_at end
                      -- the place is looked for once per row; without the offset once per column
                      from (select array_position($1::text[], p.id) as i offset 0) k),
               version = p.version + 1,
               updated_at = clock_timestamp()
           where p.id = any($1::text[])"#,
        &c.ids,
        &c.states,
        &c.amounts,
        &c.currencies,
        &c.methods,
        &c.captured,
        &c.refunded,
        &c.applied,
        &c.reasons as &[Option<String>],
        &c.flags as &[Option<String>]
    )
    .execute(&mut **tx)
    .answer("update payments")
    .await?;
    expect_rows("update payments", rows.len(), done.rows_affected())
}

#[derive(Default)]
struct Columns {
    ids: Vec<String>,
    orders: Vec<uuid::Uuid>,
    states: Vec<String>,
    amounts: Vec<i64>,
    currencies: Vec<String>,
    methods: Vec<String>,
    captured: Vec<i64>,
    refunded: Vec<i64>,
    applied: Vec<bool>,
    reasons: Vec<Option<String>>,
    flags: Vec<Option<String>>,
}

impl Columns {
    fn of(rows: &[PaymentRow]) -> Self {
        let mut c = Self::default();
        for row in rows {
            c.ids.push(row.id.to_string());
            c.orders.push(row.order_id.0);
            c.states.push(row.state.as_str().to_owned());
            c.amounts.push(row.amount.amount_minor);
            c.currencies.push(row.amount.currency.to_string());
            c.methods.push(row.method.to_string());
            c.captured.push(row.captured_minor);
            c.refunded.push(row.refunded_minor);
            c.applied.push(row.applied);
            c.reasons.push(row.reason_code.clone());
            c.flags.push(row.flagged.clone());
        }
        c
    }
}

pub(crate) fn payment_id(id: &str) -> Result<PaymentId> {
    PaymentId::parse(id).map_err(|_| StoreError::Malformed {
        column: "payment_id",
        value: id.to_owned(),
    })
}
