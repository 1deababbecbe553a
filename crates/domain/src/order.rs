//! The order's life: one pure function over (status, trigger), every cell written down.

use std::fmt;

/// Where an order stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OrderStatus {
    /// Units are held until the deadline.
    Reserved,
    /// Paid; its units are sold.
    Confirmed,
    /// Ended by a failed payment or by the shop; its units are free.
    Canceled,
    /// Ended by its deadline; its units are free.
    Expired,
}

impl OrderStatus {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Reserved,
        Self::Confirmed,
        Self::Canceled,
        Self::Expired,
    ];

    /// The word in the database and in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reserved => "RESERVED",
            Self::Confirmed => "CONFIRMED",
            Self::Canceled => "CANCELED",
            Self::Expired => "EXPIRED",
        }
    }

    /// The status of a word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == word)
    }

    /// Whether nothing can happen to the order any more.
    #[must_use]
    pub fn is_end(self) -> bool {
        match self {
            Self::Reserved => false,
            Self::Confirmed | Self::Canceled | Self::Expired => true,
        }
    }
}

impl fmt::Display for OrderStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What may end an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// Money of the right amount was captured.
    PaymentCompleted,
    /// No attempt will follow.
    PaymentFailed,
    /// The shop asked for it.
    CancelRequested,
    /// PostgreSQL's clock passed the deadline.
    DeadlinePassed,
}

impl Trigger {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::PaymentCompleted,
        Self::PaymentFailed,
        Self::CancelRequested,
        Self::DeadlinePassed,
    ];
}

/// What a trigger does to an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transition {
    /// The order moves on; its version rises by one.
    To(OrderStatus),
    /// The order is where the trigger would bring it: a repeat.
    AlreadyThere,
    /// The order has ended otherwise: the trigger comes too late.
    Settled,
}

/// The table. No wildcard arm: a new status or trigger does not compile until its cells are written.
#[must_use]
pub fn apply(status: OrderStatus, trigger: Trigger) -> Transition {
    use OrderStatus::{Canceled, Confirmed, Expired, Reserved};
    use Transition::{AlreadyThere, Settled, To};
    use Trigger::{CancelRequested, DeadlinePassed, PaymentCompleted, PaymentFailed};
    match (status, trigger) {
        (Reserved, PaymentCompleted) => To(Confirmed),
        (Reserved, PaymentFailed) => To(Canceled),
        (Reserved, CancelRequested) => To(Canceled),
        (Reserved, DeadlinePassed) => To(Expired),
        (Confirmed, PaymentCompleted) => AlreadyThere,
        (Confirmed, PaymentFailed) => Settled,
        (Confirmed, CancelRequested) => Settled,
        (Confirmed, DeadlinePassed) => Settled,
        (Canceled, PaymentCompleted) => Settled,
        (Canceled, PaymentFailed) => AlreadyThere,
        (Canceled, CancelRequested) => AlreadyThere,
        (Canceled, DeadlinePassed) => Settled,
        (Expired, PaymentCompleted) => Settled,
        (Expired, PaymentFailed) => Settled,
        (Expired, CancelRequested) => Settled,
        (Expired, DeadlinePassed) => AlreadyThere,
    }
}

/// Why an order ended, as it is shown when nobody gave a reason of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// Its payment was applied.
    Paid,
    /// Its payment failed for good.
    PaymentFailed,
    /// The shop canceled it.
    Canceled,
    /// Its deadline passed.
    DeadlinePassed,
}

impl EndReason {
    /// The word in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Paid => "paid",
            Self::PaymentFailed => "payment-failed",
            Self::Canceled => "canceled",
            Self::DeadlinePassed => "deadline-passed",
        }
    }
}
