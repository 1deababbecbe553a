//! What charging, refunding and both sweeps share: ask the gateway, then record what it says.

use std::sync::Arc;

use store::{payments::PendingPayment, refund_executions::PendingRefund};

use crate::{
    gateway::{
        Answer, Charge, ChargeOutcome, GatewayError, NewCharge, NewRefund, PaymentGateway,
        RefundOutcome,
    },
    record_results::{News, Recorder},
};

/// A gateway and where its results go.
#[derive(Debug)]
pub struct Desk<G> {
    pub(crate) gateway: Arc<G>,
    recorder: Recorder,
}

impl<G> Clone for Desk<G> {
    fn clone(&self) -> Self {
        Self {
            gateway: Arc::clone(&self.gateway),
            recorder: self.recorder.clone(),
        }
    }
}

impl<G: PaymentGateway> Desk<G> {
    /// A desk.
    #[must_use]
    pub fn new(gateway: Arc<G>, recorder: Recorder) -> Self {
        Self { gateway, recorder }
    }

    /// Charges under the payment's constant key.
    pub(crate) async fn charge(&self, payment: &PendingPayment) {
        platform::crash_point!("cp20", err => return);
        let answer = self
            .gateway
            .charge(&NewCharge {
                key: payment.gateway_key.clone(),
                reference: payment.id.clone(),
                order_id: payment.order_id,
                amount: payment.amount,
                method: payment.method.clone(),
            })
            .await;
        platform::crash_point!("cp21", err => {
            return self.settle_charge(payment, Err(GatewayError::TimedOut)).await
        });
        self.settle_charge(payment, answer).await;
    }

    /// Cancels a charge that was not captured; a capture is recorded like any other.
    pub(crate) async fn cancel(&self, payment: &PendingPayment) {
        let answer = self.gateway.cancel_charge(&payment.gateway_key).await;
        self.settle_charge(payment, answer).await;
    }

    /// Records what was heard of a charge beside all questions.
    pub(crate) async fn news(&self, charge: Charge) {
        self.recorder.record(News::Charge(charge)).await;
    }

    /// Asks again later.
    pub(crate) async fn postpone(&self, payment: &PendingPayment) {
        self.recorder.record(unknown_charge(payment)).await;
    }

    /// Records an answer, or that there is none.
    pub(crate) async fn settle_charge(&self, payment: &PendingPayment, answer: Answer<Charge>) {
        let news = match answer {
            Ok(charge) if charge.outcome != ChargeOutcome::Pending => News::Charge(charge),
            Ok(_) => unknown_charge(payment),
            Err(error) => {
                report(&error, "a charge has no outcome yet");
                unknown_charge(payment)
            }
        };
        self.recorder.record(news).await;
    }

    /// Refunds under the refund's constant key.
    pub(crate) async fn refund(&self, refund: &PendingRefund) {
        let answer = self
            .gateway
            .refund(&NewRefund {
                key: refund.refund_key.clone(),
                charge_key: refund.charge_key.clone(),
                amount: refund.amount,
            })
            .await;
        platform::crash_point!("cp24", err => {
            return self.settle_refund(refund, Err(GatewayError::TimedOut)).await
        });
        self.settle_refund(refund, answer).await;
    }

    /// Records an answer, or that there is none.
    pub(crate) async fn settle_refund(
        &self,
        refund: &PendingRefund,
        answer: Answer<RefundOutcome>,
    ) {
        let key = refund.refund_key.clone();
        let news = match answer {
            Ok(RefundOutcome::Pending) => News::RefundUnknown {
                key,
                attempts: refund.attempts,
            },
            Ok(outcome) => News::Refund { key, outcome },
            Err(error) => {
                report(&error, "a refund has no outcome yet");
                News::RefundUnknown {
                    key,
                    attempts: refund.attempts,
                }
            }
        };
        self.recorder.record(news).await;
    }
}

fn unknown_charge(payment: &PendingPayment) -> News {
    News::ChargeUnknown {
        key: payment.gateway_key.clone(),
        attempts: payment.attempts,
    }
}

/// A gateway that is away is counted, not logged per payment; what it can't get well from is.
fn report(error: &GatewayError, what: &'static str) {
    if error.is_transient() {
        tracing::debug!(%error, "{what}");
    } else {
        tracing::error!(%error, "{what}");
    }
}
