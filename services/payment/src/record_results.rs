//! Records what the gateway says, whoever heard it: a charge's answer, a webhook, a question by
//! key. Guarantee: each payment takes each step once, with its event in the same transaction; a
//! repeat changes nothing and publishes nothing.
//!
//! Steps, for the news of up to 128 payments at once (no wait when idle; while one batch is in the
//! database the next gathers):
//! 1. Lock the payments, then the refund executions, each sorted.
//!    Dies: nothing is written; PENDING rows stay, the sweep asks the gateway by key.
//! 2. Decide per payment on the state that is found ([`step`]), in memory. Dies: the same.
//! 3. Write payments, executions and their events; COMMIT.
//!    Dies before: the same. Dies after: the relay publishes; whoever waited asks again and meets a
//!    recorded payment.
//!
//! A capture is news in every state: money that was taken is published, whatever was recorded
//! before; stock decides what becomes of it (P6).

mod batch;
mod hints;
mod queue;

use std::time::Duration;

use contracts::{OrderId, RefundKey};
use store::settlement::PaymentState;

use crate::gateway::{Charge, ChargeOutcome, RefundOutcome};

pub(crate) use batch::refunded;
pub use queue::Recorder;

/// What was heard about a payment or a refund.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// What came of a charge.
    Charge(Charge),
    /// What came of a refund.
    Refund {
        /// Its key.
        key: RefundKey,
        /// What came of it.
        outcome: RefundOutcome,
    },
    /// Nothing was heard of a charge: the gateway is to be asked later.
    ChargeUnknown {
        /// Its key.
        key: String,
        /// How often that happened before.
        attempts: i32,
    },
    /// Nothing was heard of a refund: the gateway is to be asked later.
    RefundUnknown {
        /// Its key.
        key: RefundKey,
        /// How often that happened before.
        attempts: i32,
    },
}

/// What news does to a payment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// COMPLETED, published.
    Complete,
    /// FAILED, published.
    Fail,
    /// VOIDED; nothing to publish: the order has ended or will by its deadline.
    Void,
    /// A repeat.
    Known,
    /// No news.
    Wait,
    /// It contradicts a capture that was recorded: people must look.
    Contradiction,
}

/// The table of payment states; every cell is written down.
#[must_use]
pub fn step(state: PaymentState, outcome: &ChargeOutcome) -> Step {
    use ChargeOutcome::{Canceled, Captured, Declined, Pending};
    match (state, outcome) {
        (PaymentState::Pending, Captured { .. }) => Step::Complete,
        (PaymentState::Pending, Declined { .. }) => Step::Fail,
        (PaymentState::Pending, Canceled) => Step::Void,
        (PaymentState::Pending, Pending) => Step::Wait,
        (PaymentState::Completed, Captured { .. }) => Step::Known,
        (PaymentState::Completed, Declined { .. }) => Step::Contradiction,
        (PaymentState::Completed, Canceled) => Step::Contradiction,
        (PaymentState::Completed, Pending) => Step::Wait,
        (PaymentState::Failed, Captured { .. }) => Step::Complete,
        (PaymentState::Failed, Declined { .. }) => Step::Known,
        (PaymentState::Failed, Canceled) => Step::Known,
        (PaymentState::Failed, Pending) => Step::Wait,
        (PaymentState::Voided, Captured { .. }) => Step::Complete,
        (PaymentState::Voided, Declined { .. }) => Step::Known,
        (PaymentState::Voided, Canceled) => Step::Known,
        (PaymentState::Voided, Pending) => Step::Wait,
    }
}

/// Whether news that names an order is about the payment's order. A key that was canceled before
/// it was used names none.
fn same_order(named: Option<OrderId>, recorded: OrderId, outcome: &ChargeOutcome) -> bool {
    match (named, outcome) {
        (Some(named), _) => named == recorded,
        (None, ChargeOutcome::Canceled) => true,
        (
            None,
            ChargeOutcome::Pending
            | ChargeOutcome::Captured { .. }
            | ChargeOutcome::Declined { .. },
        ) => false,
    }
}

/// Seconds until the gateway is asked again: half a second, doubled with each attempt, at most ten
/// seconds, a quarter more or less so that not all come at once.
fn wait_seconds(attempts: i32) -> f64 {
    const LONGEST: Duration = Duration::from_secs(10);
    let doubled = 0.5 * f64::from(1_u32 << attempts.clamp(0, 8));
    doubled.min(LONGEST.as_secs_f64()) * rand::random_range(0.75..1.25)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_is_never_overwritten_and_never_missed() {
        let captured = ChargeOutcome::Captured {
            amount: serde_json::from_str(r#"{"amount_minor":1,"currency":"KRW"}"#).unwrap(),
            at: platform::clock::now(),
        };
        let declined = ChargeOutcome::Declined {
            reason_code: "x".into(),
            is_final: true,
        };
        for state in [
            PaymentState::Pending,
            PaymentState::Failed,
            PaymentState::Voided,
        ] {
            assert_eq!(step(state, &captured), Step::Complete);
        }
        assert_eq!(step(PaymentState::Completed, &captured), Step::Known);
        assert_eq!(
            step(PaymentState::Completed, &declined),
            Step::Contradiction
        );
        assert_eq!(
            step(PaymentState::Completed, &ChargeOutcome::Canceled),
            Step::Contradiction
        );
    }

    #[test]
    fn the_wait_grows_and_stays_within_the_grace() {
        assert!(wait_seconds(0) < 0.7);
        assert!((7.5..=12.5).contains(&wait_seconds(20)));
        assert!(wait_seconds(i32::MAX) <= 12.5);
    }
}
