//! The port to a payment provider. What a provider must offer: idempotency keys for charges and
//! refunds, a question by key, a cancel by key that also binds keys it has not seen yet, and a journal
//! that is read by key.

use std::future::Future;

use contracts::{Money, OrderId, PaymentId, PaymentMethod, RefundKey, Timestamp};

/// A charge that is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCharge {
    /// The idempotency key: at most one capture under it.
    pub key: String,
    /// Our name for it, shown to people.
    pub reference: PaymentId,
    /// The order that it pays.
    pub order_id: OrderId,
    /// What is to be captured.
    pub amount: Money,
    /// How.
    pub method: PaymentMethod,
}

/// A charge as the provider tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// The idempotency key.
    pub key: String,
    /// The order that it was made for; `None` when the key was canceled before it was used.
    pub order_id: Option<OrderId>,
    /// What came of it.
    pub outcome: ChargeOutcome,
}

/// What came of a charge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChargeOutcome {
    /// Not decided yet.
    Pending,
    /// Money was taken.
    Captured {
        /// How much; not necessarily what was asked for.
        amount: Money,
        /// When, by the provider's clock.
        at: Timestamp,
    },
    /// No money was taken.
    Declined {
        /// Why, as a slug.
        reason_code: String,
        /// Whether no other attempt can succeed.
        is_final: bool,
    },
    /// No money was taken, and none will ever be under this key.
    Canceled,
}

/// A refund that is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRefund {
    /// The idempotency key: at most one refund under it.
    pub key: RefundKey,
    /// The key of the charge whose money goes back.
    pub charge_key: String,
    /// How much.
    pub amount: Money,
}

/// What came of a refund.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefundOutcome {
    /// Not decided yet.
    Pending,
    /// The money went back.
    Refunded {
        /// How much.
        amount: Money,
    },
    /// The provider will never execute it as it is.
    Refused {
        /// Why, as a slug.
        reason_code: String,
    },
}

/// A line of the provider's own journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalEntry {
    /// The charge as it stands.
    pub charge: Charge,
    /// Our name for it, when it was told.
    pub reference: Option<PaymentId>,
    /// How it was to be paid; `None` when the key was canceled before it was used.
    pub method: Option<PaymentMethod>,
}

/// Some lines of the journal, in the order of their keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalPage {
    /// Lines that keep the contract; one that breaks it is left out.
    pub entries: Vec<JournalEntry>,
    /// The key after which the journal goes on; `None` at its end.
    pub next: Option<String>,
}

/// Why there is no outcome. After every one of them the provider may have executed the request or
/// not: it is asked by key before anything else is done (P4).
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The provider could not be reached, or the connection broke.
    #[error("the gateway can't be reached")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// No answer in time.
    #[error("the gateway did not answer in time")]
    TimedOut,
    /// The provider says that it can't at the moment.
    #[error("the gateway answered {status}")]
    Unavailable {
        /// Its status.
        status: u16,
    },
    /// The key is being executed.
    #[error("the gateway is executing this key")]
    InFlight,
    /// The provider refuses our request: a fault of ours, or of its contract.
    #[error("the gateway refused the request with {status} {code}")]
    Refused {
        /// Its status.
        status: u16,
        /// Its code.
        code: String,
    },
    /// The answer breaks the contract; nothing in it is believed.
    #[error("the gateway's answer is not valid: {0}")]
    InvalidAnswer(&'static str),
}

impl GatewayError {
    /// Whether the provider is to blame and may be well again by itself. What is not transient is
    /// asked again too, since money may have moved, but people must look.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::TimedOut | Self::Unavailable { .. } | Self::InFlight => {
                true
            }
            Self::Refused { .. } | Self::InvalidAnswer(_) => false,
        }
    }

    /// The label in metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "unreachable",
            Self::TimedOut => "timed-out",
            Self::Unavailable { .. } => "unavailable",
            Self::InFlight => "in-flight",
            Self::Refused { .. } => "refused",
            Self::InvalidAnswer(_) => "invalid-answer",
        }
    }
}

/// The result of a call.
pub type Answer<T> = Result<T, GatewayError>;

/// A payment provider.
pub trait PaymentGateway: Send + Sync + 'static {
    /// Charges, at most once per key; a repeat of the key gets the first result.
    fn charge(&self, charge: &NewCharge) -> impl Future<Output = Answer<Charge>> + Send;

    /// What became of a key; `None`: it was never seen.
    fn find_charge(&self, key: &str) -> impl Future<Output = Answer<Option<Charge>>> + Send;

    /// Cancels what was not captured, also a key that was never seen: it can't capture later.
    fn cancel_charge(&self, key: &str) -> impl Future<Output = Answer<Charge>> + Send;

    /// At most `limit` charges whose keys come after `after`.
    fn journal(
        &self,
        after: &str,
        limit: usize,
    ) -> impl Future<Output = Answer<JournalPage>> + Send;

    /// Refunds, at most once per key.
    fn refund(&self, refund: &NewRefund) -> impl Future<Output = Answer<RefundOutcome>> + Send;

    /// What became of a refund; `None`: its key was never seen.
    fn find_refund(
        &self,
        key: &RefundKey,
    ) -> impl Future<Output = Answer<Option<RefundOutcome>>> + Send;
}
