//! Refunds that were asked for and not answered are asked for again (P6): the same `refund_key`, a
//! new event id, 2 s after the first time and then ever more rarely, at most a minute apart.
//!
//! 1. Lock due refunds; those that another process has locked are left to it.
//! 2. Note the ask and the next one, write `REFUND_REQUESTED`, commit. *Dies before:* they stay
//!    due. *Dies after:* they are asked for; whoever refunds does it once per `refund_key`.

use std::time::Duration;

use contracts::{PaymentId, events::NewEvent};

use crate::{Stock, StockError, settle_orders::refund_requested};

/// How long the first ask is waited for.
pub const FIRST_WAIT: Duration = Duration::from_secs(2);

/// The longest wait between two asks.
pub const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// An ask that was repeated so often is an alarm: nobody executes refunds.
const ALARMING_ASKS: i32 = 8;

const BATCH: i64 = 200;

/// Asks again for what is due; returns how many were asked for.
///
/// # Errors
/// PostgreSQL is away; what was not asked for stays due.
pub async fn request_refunds(stock: &Stock) -> Result<usize, StockError> {
    let mut asked = 0;
    loop {
        let mut tx = stock.store.begin().await?;
        let due = store::refunds::lock_due(&mut tx, BATCH).await?;
        if due.is_empty() {
            tx.rollback().await?;
            return Ok(asked);
        }
        let payments: Vec<PaymentId> = due
            .iter()
            .map(|due| due.refund.payment_id.clone())
            .collect();
        store::refunds::note_asked(
            &mut tx,
            &payments,
            FIRST_WAIT.as_secs_f64(),
            LONGEST_WAIT.as_secs_f64(),
        )
        .await?;
        let events: Vec<NewEvent> = due
            .iter()
            .map(|due| refund_requested(&due.refund, due.order_version))
            .collect();
        store::outbox::insert(&mut tx, &events).await?;
        tx.commit().await?;
        asked += due.len();
        metrics::counter!("refunds_requested_total")
            .increment(u64::try_from(due.len()).unwrap_or(u64::MAX));
        for late in due.iter().filter(|due| due.asks == ALARMING_ASKS) {
            metrics::counter!("alarms_total", "kind" => "refund-unanswered").increment(1);
            tracing::error!(
                payment.id = %late.refund.payment_id,
                order.id = %late.refund.order_id,
                asks = late.asks,
                "a refund was asked for many times and is not answered"
            );
        }
    }
}
