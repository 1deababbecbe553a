//! What becomes of an event of payment news: the cell of the table, or why the event is set aside,
//! and what people must look at; each with its word in metrics and in the database.

use domain::settlement::Action;

/// Why an event is set aside: it can never be handled, and its order's later events go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aside {
    /// It names an order that does not exist.
    UnknownOrder,
    /// Its payment was recorded with another order.
    OtherOrder,
    /// It refunds a payment that was never heard of.
    UnknownPayment,
    /// Its refund key belongs to another payment.
    OtherRefund,
}

impl Aside {
    /// For people.
    #[must_use]
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::UnknownOrder => "the order does not exist",
            Self::OtherOrder => "the payment belongs to another order",
            Self::UnknownPayment => "the payment does not exist",
            Self::OtherRefund => "the refund key belongs to another payment",
        }
    }
}

/// What people must look at. Each payment is flagged once, with the first of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Flag {
    /// Someone charged another amount or currency than the order's.
    WrongAmount,
    /// News of a capture differs from the capture on record.
    AmountChanged,
    /// A payment failed that has confirmed its order.
    FailedAfterConfirm,
    /// Another amount went back than was asked for, or under another key.
    RefundMismatch,
    /// Money went back that nobody asked for.
    ExternalRefund,
    /// A confirmed order without an applied payment: an invariant is broken.
    NothingApplied,
}

impl Flag {
    /// The word in the database and in metrics.
    #[must_use]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::WrongAmount => "wrong-amount",
            Self::AmountChanged => "amount-changed",
            Self::FailedAfterConfirm => "failed-after-confirm",
            Self::RefundMismatch => "refund-mismatch",
            Self::ExternalRefund => "external-refund",
            Self::NothingApplied => "nothing-applied",
        }
    }
}

/// What became of one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The cell of the table.
    Settled(Action),
    /// The payment has a refund already: recorded, never applied.
    RefundedBefore,
    /// The refund is closed, or was.
    RefundClosed,
    /// Money went back unasked.
    RefundExternal,
    /// It differs from what was asked for.
    RefundMismatch,
    /// Set aside; with [`Action::DeadLetterAndRefund`] the money goes back as well.
    Aside(Action, Aside),
}

impl Verdict {
    /// The word in metrics.
    #[must_use]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Settled(action) | Self::Aside(action, _) => match action {
                Action::Confirm => "confirm",
                Action::Cancel => "cancel",
                Action::Record => "record",
                Action::Repeat => "repeat",
                Action::RecordAndRefund => "refund",
                Action::RecordRefundAndFlag => "refund_and_flag",
                Action::RecordAndAlarm => "alarm",
                Action::DeadLetterAndRefund => "dead_letter_and_refund",
                Action::DeadLetter => "dead_letter",
            },
            Self::RefundedBefore => "refunded_before",
            Self::RefundClosed => "refund_closed",
            Self::RefundExternal => "refund_external",
            Self::RefundMismatch => "refund_mismatch",
        }
    }
}
