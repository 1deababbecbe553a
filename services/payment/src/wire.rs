//! What the provider's JSON means. Its answers and webhooks are checked like the input of a
//! stranger: what breaks the contract is not believed.

use contracts::{Money, OrderId, PaymentId, PaymentMethod, RefundKey, Timestamp};
use serde::Deserialize;

use crate::gateway::{
    Charge, ChargeOutcome, GatewayError, JournalEntry, JournalPage, RefundOutcome,
};

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

/// A line of the journal as it is sent.
#[derive(Debug, Deserialize)]
struct WireEntry {
    #[serde(flatten)]
    charge: WireCharge,
    reference: Option<PaymentId>,
    method: Option<PaymentMethod>,
}

/// A page of the journal as it is sent.
#[derive(Debug, Deserialize)]
pub(crate) struct WireJournal {
    data: Vec<serde_json::Value>,
    has_more: bool,
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

impl WireJournal {
    /// A line that breaks the contract is counted and left out; those behind it are read.
    pub(crate) fn check(self) -> Result<JournalPage, GatewayError> {
        let last = self.data.last().map(|line| line.get("key"));
        let next = match last {
            Some(Some(serde_json::Value::String(key))) if self.has_more => Some(key.clone()),
            _ if self.has_more => {
                return Err(GatewayError::InvalidAnswer(
                    "more, and no key to go on from",
                ));
            }
            _ => None,
        };
        let entries = self.data.into_iter().filter_map(|line| {
            let entry = WireEntry::check(line);
            if entry.is_none() {
                metrics::counter!("gateway_journal_malformed_total").increment(1);
            }
            entry
        });
        Ok(JournalPage {
            entries: entries.collect(),
            next,
        })
    }
}

impl WireEntry {
    fn check(line: serde_json::Value) -> Option<JournalEntry> {
        let entry: Self = serde_json::from_value(line).ok()?;
        Some(JournalEntry {
            charge: entry.charge.check().ok()?,
            reference: entry.reference,
            method: entry.method,
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
