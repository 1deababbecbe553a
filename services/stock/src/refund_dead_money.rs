//! Money whose news became a dead letter, or could never be sent, is asked back when its order has
//! ended without it (P9: what will never succeed also settles the business).
//!
//! Such news is not handled by anyone: payment knows of the capture, stock does not, the order
//! expires, and nothing else would look at the money again. If the news is handled after all, it meets
//! the refund and is recorded, never applied.
//!
//! 1. Beginning with the open dead letters of stock and with parked events, lock the payments that
//!    are captured and not applied, whose order has ended, and that have had no refund for a minute;
//!    those that another process has locked are left to it.
//! 2. Write the refunds and `REFUND_REQUESTED`, commit. *Dies before:* the next look finds them.
//!    *Dies after:* they are asked for like all others ([`crate::request_refunds`]).

use std::time::Duration;

use contracts::{RefundKey, events::NewEvent};
use store::{
    StoreError,
    refunds::{self, DeadMoney, RefundRow, RefundState},
};

use crate::{Stock, StockError, request_refunds::FIRST_WAIT, settle_orders::refund_requested};

/// News that comes late, but comes, is settlement's.
const SILENT_FOR: Duration = Duration::from_secs(60);

const BATCH: i64 = 200;

/// Asks back what nobody will; returns how many refunds that were.
///
/// # Errors
/// PostgreSQL is away; the rest is found by the next look.
pub async fn refund_dead_money(stock: &Stock) -> Result<usize, StockError> {
    let mut asked = 0;
    loop {
        let mut tx = stock.store.begin().await?;
        let found = refunds::lock_dead_money(&mut tx, SILENT_FOR.as_secs_f64(), BATCH).await?;
        if found.is_empty() {
            tx.rollback().await?;
            return Ok(asked);
        }
        let rows: Vec<RefundRow> = found.iter().map(refund).collect();
        let inserted = refunds::insert(&mut tx, &rows, FIRST_WAIT.as_secs_f64()).await?;
        if usize::try_from(inserted).ok() != Some(rows.len()) {
            tx.rollback().await?;
            return Err(StoreError::Mismatch {
                doing: "ask money back",
                expected: rows.len(),
                found: usize::try_from(inserted).unwrap_or(usize::MAX),
            }
            .into());
        }
        let events: Vec<NewEvent> = rows
            .iter()
            .zip(&found)
            .map(|(row, found)| refund_requested(row, found.order_version))
            .collect();
        store::outbox::insert(&mut tx, &events).await?;
        tx.commit().await?;
        asked += rows.len();
        for row in &rows {
            metrics::counter!("alarms_total", "kind" => "dead-money").increment(1);
            metrics::counter!("refunds_requested_total").increment(1);
            tracing::error!(
                payment.id = %row.payment_id,
                order.id = %row.order_id,
                "the news of a capture was never handled and its order has ended; it is refunded"
            );
        }
    }
}

fn refund(money: &DeadMoney) -> RefundRow {
    let reason = if money.paid_otherwise {
        "paid-twice"
    } else {
        "order-ended"
    };
    RefundRow {
        payment_id: money.payment_id.clone(),
        refund_key: RefundKey::of(&money.payment_id),
        order_id: money.order_id,
        amount: money.amount,
        reason: reason.to_owned(),
        state: RefundState::Requested,
    }
}
