//! Executes refunds that stock asks for. Guarantee: at most one refund per `refund_key`, never
//! more than was captured, and each request is answered: by the first `PAYMENT_REFUNDED`, or by
//! another one (new event id) when it is asked again after the execution.
//!
//! Steps:
//! 1. In the transaction of the inbox ([`take_requests`]): lock the payments, then the executions;
//!    new requests become PENDING, or REFUSED with a reason when they are not a capture of ours;
//!    requests that are DONE are answered again. Dies: nothing is written; the batch comes again.
//! 2. After the commit the pool refunds, key = `refund_key`. Dies: PENDING; the sweep asks by key.
//! 3. The result is recorded with its event ([`crate::record_results`]). Dies before: the sweep
//!    asks by key and meets the executed refund.
//!
//! Sweep ([`sweep_refunds`]), for up to 64 due PENDING rows: claim, ask by key, refund what the
//! gateway never saw. Dies anywhere: due again after the lease, same key.

use std::collections::{BTreeMap, BTreeSet};

use contracts::{
    PaymentId, RefundKey,
    events::{NewEvent, RefundRequested},
};
use futures::StreamExt;
use store::{
    Store, StoreError, Tx,
    payments::{self, RecordedPayment},
    refund_executions::{self, Execution, ExecutionState, PendingRefund},
};

use crate::{
    LEASE, SWEEP_BATCH, SWEEP_CONCURRENCY, desk::Desk, gateway::PaymentGateway,
    record_results::refunded,
};

/// Notes requests in the transaction of the inbox; returns the events that answer those that were
/// executed already.
///
/// # Errors
/// The database.
pub async fn take_requests(
    tx: &mut Tx,
    requests: &[&RefundRequested],
) -> Result<Vec<NewEvent>, StoreError> {
    if requests.is_empty() {
        return Ok(Vec::new());
    }
    let by_key: BTreeMap<&RefundKey, &RefundRequested> = requests
        .iter()
        .map(|request| (&request.refund_key, *request))
        .collect();
    let ids: Vec<PaymentId> = requests
        .iter()
        .map(|request| request.payment_id.clone())
        .collect();
    let keys: Vec<RefundKey> = by_key.keys().map(|key| (*key).clone()).collect();
    let mut payments: BTreeMap<PaymentId, RecordedPayment> = payments::lock(tx, &ids)
        .await?
        .into_iter()
        .map(|payment| (payment.id.clone(), payment))
        .collect();
    let known: BTreeMap<RefundKey, Execution> = refund_executions::lock(tx, &keys)
        .await?
        .into_iter()
        .map(|execution| (execution.refund_key.clone(), execution))
        .collect();
    let mut told = Vec::new();
    let mut told_payments = BTreeSet::new();
    let mut written = Vec::new();
    for (key, request) in by_key {
        match known
            .get(key)
            .map(|execution| (execution, &execution.state))
        {
            Some((execution, ExecutionState::Done)) => {
                if let Some(payment) = payments.get_mut(&execution.payment_id) {
                    told.push(refunded(payment, execution));
                    told_payments.insert(execution.payment_id.clone());
                }
            }
            Some((_, ExecutionState::Pending)) => {}
            Some((_, ExecutionState::Refused(_))) | None => {
                written.push(examined(request, payments.get(&request.payment_id)));
            }
        }
    }
    let told_payments: Vec<&RecordedPayment> = told_payments
        .iter()
        .filter_map(|id| payments.get(id))
        .collect();
    payments::update(tx, &told_payments).await?;
    refund_executions::put(tx, &written, LEASE).await?;
    Ok(told)
}

/// A request as it is to be executed, or refused with a reason.
fn examined(request: &RefundRequested, payment: Option<&RecordedPayment>) -> Execution {
    let state = match objection(request, payment) {
        None => ExecutionState::Pending,
        Some(reason) => {
            metrics::counter!("refunds_refused_total").increment(1);
            tracing::error!(
                refund.key = %request.refund_key,
                payment.id = %request.payment_id,
                reason_code = reason,
                "a refund request is refused"
            );
            ExecutionState::Refused(reason.to_owned())
        }
    };
    Execution {
        refund_key: request.refund_key.clone(),
        payment_id: request.payment_id.clone(),
        order_id: request.order_id,
        amount: request.amount,
        state,
    }
}

fn objection(request: &RefundRequested, payment: Option<&RecordedPayment>) -> Option<&'static str> {
    let Some(payment) = payment else {
        return Some("unknown-payment");
    };
    if payment.gateway_key.is_none() {
        return Some("not-our-payment");
    }
    if payment.order_id != request.order_id {
        return Some("another-order");
    }
    if payment.captured_minor == 0 && request.amount.amount_minor > 0 {
        return Some("not-captured");
    }
    if payment.amount.currency != request.amount.currency {
        return Some("another-currency");
    }
    let left = payment.captured_minor - payment.refunded_minor;
    (request.amount.amount_minor > left).then_some("exceeds-captured")
}

/// One pass; returns how many rows were due.
///
/// # Errors
/// The database. What the gateway does is no error: the rows stay due.
pub async fn sweep_refunds<G: PaymentGateway>(
    store: &Store,
    desk: &Desk<G>,
) -> Result<usize, StoreError> {
    let mut tx = store.begin().await?;
    let due = refund_executions::claim_due(&mut tx, SWEEP_BATCH, LEASE).await?;
    if due.is_empty() {
        tx.rollback().await?;
        return Ok(0);
    }
    tx.commit().await?;
    metrics::counter!("refunds_swept_total").increment(u64::try_from(due.len()).unwrap_or(0));
    let swept = due.len();
    futures::stream::iter(due)
        .for_each_concurrent(SWEEP_CONCURRENCY, |refund| resolve(desk.clone(), refund))
        .await;
    Ok(swept)
}

async fn resolve<G: PaymentGateway>(desk: Desk<G>, refund: PendingRefund) {
    let answer = match desk.gateway.find_refund(&refund.refund_key).await {
        Ok(None) => return desk.refund(&refund).await,
        Ok(Some(outcome)) => Ok(outcome),
        Err(error) => Err(error),
    };
    desk.settle_refund(&refund, answer).await;
}
