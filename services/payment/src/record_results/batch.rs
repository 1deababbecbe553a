//! One transaction of results.

use std::collections::{BTreeMap, BTreeSet};

use contracts::{
    Money, PaymentId, RefundKey, Timestamp,
    events::{NewEvent, PaymentCompleted, PaymentEvent, PaymentFailed, PaymentRefunded},
};
use store::{
    Store, StoreError, Tx, outbox,
    payments::{self, RecordedPayment},
    refund_executions::{self, Execution, ExecutionState},
    settlement::PaymentState,
};

use super::{News, Step, same_order, step, wait_seconds};
use crate::gateway::{Charge, ChargeOutcome, RefundOutcome};

/// An error with its causes, for a log line.
pub(super) fn chain(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}

/// What is locked, and what becomes of it.
#[derive(Debug, Default)]
struct Batch {
    payments: BTreeMap<PaymentId, RecordedPayment>,
    by_key: BTreeMap<String, PaymentId>,
    executions: BTreeMap<RefundKey, Execution>,
    changed_payments: BTreeSet<PaymentId>,
    changed_executions: BTreeSet<RefundKey>,
    later_payments: BTreeMap<PaymentId, f64>,
    later_refunds: BTreeMap<RefundKey, f64>,
    events: Vec<NewEvent>,
}

/// Records news in one transaction.
pub(super) async fn record(store: &Store, news: &[&News]) -> Result<(), StoreError> {
    let mut tx = store.begin().await?;
    let mut batch = Batch::lock(&mut tx, news).await?;
    for news in news {
        batch.take(news);
    }
    if batch.write(&mut tx).await? {
        platform::crash_point!("cp22", err => return Err(StoreError::no_connection()));
        tx.commit().await
    } else {
        tx.rollback().await
    }
}

impl Batch {
    async fn lock(tx: &mut Tx, news: &[&News]) -> Result<Self, StoreError> {
        let mut charges = BTreeSet::new();
        let mut refunds = BTreeSet::new();
        for news in news {
            match news {
                News::Charge(Charge { key, .. }) | News::ChargeUnknown { key, .. } => {
                    charges.insert(key.clone());
                }
                News::Refund { key, .. } | News::RefundUnknown { key, .. } => {
                    refunds.insert(key.clone());
                }
            }
        }
        let charges: Vec<String> = charges.into_iter().collect();
        let refunds: Vec<RefundKey> = refunds.into_iter().collect();
        let mut batch = Self::default();
        for payment in payments::lock_for_results(tx, &charges, &refunds).await? {
            if let Some(key) = &payment.gateway_key {
                batch.by_key.insert(key.clone(), payment.id.clone());
            }
            batch.payments.insert(payment.id.clone(), payment);
        }
        if !refunds.is_empty() {
            for execution in refund_executions::lock(tx, &refunds).await? {
                batch
                    .executions
                    .insert(execution.refund_key.clone(), execution);
            }
        }
        Ok(batch)
    }

    fn take(&mut self, news: &News) {
        match news {
            News::Charge(charge) => self.take_charge(charge),
            News::Refund { key, outcome } => self.take_refund(key, outcome),
            News::ChargeUnknown { key, attempts } => {
                if let Some(id) = self.by_key.get(key) {
                    self.later_payments
                        .insert(id.clone(), wait_seconds(*attempts));
                }
            }
            News::RefundUnknown { key, attempts } => {
                self.later_refunds
                    .insert(key.clone(), wait_seconds(*attempts));
            }
        }
    }

    fn take_charge(&mut self, charge: &Charge) {
        let payment = self
            .by_key
            .get(&charge.key)
            .and_then(|id| self.payments.get_mut(id));
        let Some(payment) = payment else {
            count("unknown");
            tracing::warn!(
                gateway.key = charge.key,
                "news of a charge that is not ours"
            );
            return;
        };
        if !same_order(charge.order_id, payment.order_id, &charge.outcome) {
            count("contradiction");
            tracing::error!(payment.id = %payment.id, "the gateway names another order");
            return;
        }
        let event = match step(payment.state, &charge.outcome) {
            Step::Known => return count("known"),
            Step::Wait => return,
            Step::Contradiction => {
                count("contradiction");
                tracing::error!(payment.id = %payment.id, "the gateway denies a capture");
                return;
            }
            Step::Complete | Step::Fail | Step::Void => change(payment, &charge.outcome),
        };
        count(payment.state.as_str());
        payment.version += 1;
        self.changed_payments.insert(payment.id.clone());
        self.events.extend(
            event.map(|event| NewEvent::payment(payment.order_id, payment.version, &event)),
        );
    }

    fn take_refund(&mut self, key: &RefundKey, outcome: &RefundOutcome) {
        let Some(execution) = self.executions.get_mut(key) else {
            tracing::warn!(refund.key = %key, "news of a refund that is not ours");
            return;
        };
        let Some(payment) = self.payments.get_mut(&execution.payment_id) else {
            return;
        };
        match (&execution.state, outcome) {
            (ExecutionState::Done, _) | (_, RefundOutcome::Pending) => return,
            (ExecutionState::Refused(_), RefundOutcome::Refused { .. }) => return,
            (ExecutionState::Pending, RefundOutcome::Refused { reason_code }) => {
                metrics::counter!("refunds_refused_total").increment(1);
                tracing::error!(refund.key = %key, reason_code, "the gateway refused a refund");
                execution.state = ExecutionState::Refused(reason_code.clone());
                self.changed_executions.insert(key.clone());
                return;
            }
            (
                ExecutionState::Pending | ExecutionState::Refused(_),
                RefundOutcome::Refunded { amount },
            ) => {
                if *amount != execution.amount || amount.amount_minor > payment.captured_minor {
                    count("contradiction");
                    tracing::error!(refund.key = %key, "the gateway refunded another amount");
                    return;
                }
            }
        }
        metrics::counter!("refunds_executed_total").increment(1);
        execution.state = ExecutionState::Done;
        self.changed_executions.insert(key.clone());
        let event = refunded(payment, execution);
        self.changed_payments.insert(payment.id.clone());
        self.events.push(event);
    }

    /// Writes what changed; `false` when nothing did.
    async fn write(&self, tx: &mut Tx) -> Result<bool, StoreError> {
        // What was decided needs no further question.
        let (ids, seconds): (Vec<PaymentId>, Vec<f64>) = self
            .later_payments
            .iter()
            .filter(|(id, _)| !self.changed_payments.contains(*id))
            .map(|(id, seconds)| (id.clone(), *seconds))
            .unzip();
        let (keys, pauses): (Vec<RefundKey>, Vec<f64>) = self
            .later_refunds
            .iter()
            .filter(|(key, _)| !self.changed_executions.contains(*key))
            .map(|(key, seconds)| (key.clone(), *seconds))
            .unzip();
        let payments: Vec<&RecordedPayment> = self
            .payments
            .values()
            .filter(|payment| self.changed_payments.contains(&payment.id))
            .collect();
        let executions: Vec<&Execution> = self
            .executions
            .values()
            .filter(|execution| self.changed_executions.contains(&execution.refund_key))
            .collect();
        payments::update(tx, &payments).await?;
        payments::postpone(tx, &ids, &seconds).await?;
        refund_executions::update(tx, &executions).await?;
        refund_executions::postpone(tx, &keys, &pauses).await?;
        if !self.events.is_empty() {
            outbox::insert(tx, &self.events).await?;
        }
        let idle =
            payments.is_empty() && executions.is_empty() && ids.is_empty() && keys.is_empty();
        Ok(!idle)
    }
}

/// Changes a payment's state and money; the event that tells of it.
fn change(payment: &mut RecordedPayment, outcome: &ChargeOutcome) -> Option<PaymentEvent> {
    match outcome {
        ChargeOutcome::Captured { amount, at } => {
            payment.state = PaymentState::Completed;
            payment.reason_code = difference(payment.amount, *amount).map(str::to_owned);
            payment.captured_minor = amount.amount_minor;
            payment.amount.currency = amount.currency;
            Some(completed(payment, *amount, *at))
        }
        ChargeOutcome::Declined {
            reason_code,
            is_final,
        } => {
            payment.state = PaymentState::Failed;
            payment.reason_code = Some(reason_code.clone());
            Some(PaymentEvent::Failed(PaymentFailed {
                payment_id: payment.id.clone(),
                order_id: payment.order_id,
                reason_code: reason_code.clone(),
                is_final: *is_final,
            }))
        }
        ChargeOutcome::Canceled => {
            payment.state = PaymentState::Voided;
            payment.reason_code = Some("canceled".to_owned());
            None
        }
        ChargeOutcome::Pending => None,
    }
}

/// What is strange about a capture: stock will not apply it, but the money must be known.
fn difference(asked: Money, captured: Money) -> Option<&'static str> {
    let strange = if captured.currency != asked.currency {
        "currency-differs"
    } else if captured.amount_minor != asked.amount_minor {
        "amount-differs"
    } else {
        return None;
    };
    metrics::counter!("payment_captures_strange_total", "why" => strange).increment(1);
    tracing::error!(
        reason_code = strange,
        "the gateway captured something else than asked"
    );
    Some(strange)
}

fn completed(payment: &RecordedPayment, amount: Money, at: Timestamp) -> PaymentEvent {
    PaymentEvent::Completed(PaymentCompleted {
        payment_id: payment.id.clone(),
        order_id: payment.order_id,
        amount,
        method: payment.method.clone(),
        completed_at: at,
    })
}

/// The event that tells of an executed refund; it has a new id and version each time it is told.
/// A payment has one refund, so the money is set and not added: a repeat changes nothing.
pub(crate) fn refunded(payment: &mut RecordedPayment, execution: &Execution) -> NewEvent {
    payment.refunded_minor = payment.refunded_minor.max(execution.amount.amount_minor);
    payment.version += 1;
    let event = PaymentEvent::Refunded(PaymentRefunded {
        refund_key: execution.refund_key.clone(),
        payment_id: execution.payment_id.clone(),
        order_id: execution.order_id,
        amount: execution.amount,
    });
    NewEvent::payment(execution.order_id, payment.version, &event)
}

fn count(result: &'static str) {
    metrics::counter!("payment_results_total", "result" => result).increment(1);
}
