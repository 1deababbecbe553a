//! What the provider's JSON means. Its answers and webhooks are checked like the input of a
//! stranger: what breaks the contract is not believed.

use contracts::{Money, OrderId, RefundKey, Timestamp};
use serde::Deserialize;

use crate::gateway::{Charge, ChargeOutcome, GatewayError, RefundOutcome};

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    Pending,
    Succeeded,
    Declined,
    Canceled,
}

/// A charge as it is sent.
#[derive(Debug, Deserialize)]
pub(crate) struct WireCharge {
    key: String,
    status: Status,
    order_id: Option<OrderId>,
    captured: Option<Money>,
    reason_code: Option<String>,
    #[serde(rename = "final")]
    is_final: Option<bool>,
    executed_at: Option<Timestamp>,
}

/// A refund as it is sent.
#[derive(Debug, Deserialize)]
pub(crate) struct WireRefund {
    pub(crate) key: RefundKey,
    status: Status,
    amount: Money,
}

/// The body of an error.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct WireProblem {
    pub(crate) code: String,
}

impl WireCharge {
    pub(crate) fn check(self) -> Result<Charge, GatewayError> {
        let outcome = match self.status {
            Status::Pending => ChargeOutcome::Pending,
            Status::Canceled => ChargeOutcome::Canceled,
            Status::Succeeded => match (self.captured, self.executed_at) {
                (Some(amount), Some(at)) => ChargeOutcome::Captured { amount, at },
                _ => {
                    return Err(GatewayError::InvalidAnswer(
                        "a capture without amount or time",
                    ));
                }
            },
            Status::Declined => ChargeOutcome::Declined {
                reason_code: slug(self.reason_code.as_deref()),
                // A decline that does not say so may be followed by another attempt.
                is_final: self.is_final.unwrap_or(false),
            },
        };
        Ok(Charge {
            key: self.key,
            order_id: self.order_id,
            outcome,
        })
    }
}

impl WireRefund {
    pub(crate) fn check(self) -> Result<RefundOutcome, GatewayError> {
        match self.status {
            Status::Pending => Ok(RefundOutcome::Pending),
            Status::Succeeded => Ok(RefundOutcome::Refunded {
                amount: self.amount,
            }),
            Status::Declined | Status::Canceled => Err(GatewayError::InvalidAnswer(
                "a refund is pending or succeeded",
            )),
        }
    }
}

/// A reason that is safe to store, log and publish.
pub(crate) fn slug(reason: Option<&str>) -> String {
    match reason {
        Some(text)
            if (1..=64).contains(&text.len())
                && text
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_') =>
        {
            text.to_owned()
        }
        _ => "unspecified".to_owned(),
    }
}
