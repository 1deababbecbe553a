//! What the table of payment news leaves to the rows. Guarantee: a payment has one refund and is
//! flagged at most once, with the first reason, and money never disappears from a row once it was
//! captured.

use contracts::{
    Money, PaymentId, RefundKey,
    events::{PaymentCompleted, PaymentFailed, PaymentRefunded},
};
use domain::settlement::Action;
use store::{
    refunds::{RefundRow, RefundState},
    settlement::{PaymentRow, PaymentState},
};

use super::{Aside, Flag, Ledger, Verdict};

/// The reason of a refund of what is left of a payment, when a part went back unasked.
pub(super) const REST: &str = "refunded-in-part";

impl Ledger {
    /// Records a capture. What was captured before stays: the same payment can't capture twice.
    pub(super) fn capture(&mut self, news: &PaymentCompleted) {
        let id = &news.payment_id;
        match self.payments.get_mut(id) {
            Some(row) if row.state == PaymentState::Completed => {
                if row.captured_minor != news.amount.amount_minor
                    || row.amount.currency != news.amount.currency
                {
                    self.flag(id, Flag::AmountChanged);
                }
                return;
            }
            Some(row) => {
                row.state = PaymentState::Completed;
                row.amount = news.amount;
                row.method = news.method.clone();
                row.captured_minor = news.amount.amount_minor;
                self.changed_payments.insert(id.clone());
            }
            None => {
                let row = PaymentRow {
                    id: id.clone(),
                    order_id: news.order_id,
                    state: PaymentState::Completed,
                    amount: news.amount,
                    method: news.method.clone(),
                    captured_minor: news.amount.amount_minor,
                    refunded_minor: 0,
                    applied: false,
                    reason_code: None,
                    flagged: None,
                };
                self.payments.insert(id.clone(), row);
                self.fresh_payments.insert(id.clone());
            }
        }
        // It may have gone back before we heard that it had come.
        let external = self
            .refunds
            .get(id)
            .filter(|r| r.state == RefundState::External);
        if let Some(amount) = external.map(|refund| refund.amount) {
            self.count_refund(id, amount);
        }
    }

    /// Records a failure of a known order's payment. Captured money stays on record, and a
    /// failure that is not final leaves the state to whoever tries again.
    pub(super) fn record_failure(&mut self, news: &PaymentFailed) {
        let Some(order) = self.orders.get(&news.order_id) else {
            return;
        };
        match self.payments.get_mut(&news.payment_id) {
            Some(row) if row.state == PaymentState::Completed => {}
            Some(row) => {
                if news.is_final && row.state == PaymentState::Pending {
                    row.state = PaymentState::Failed;
                }
                row.reason_code = Some(bounded(&news.reason_code));
                self.changed_payments.insert(news.payment_id.clone());
            }
            None => {
                let row = PaymentRow {
                    id: news.payment_id.clone(),
                    order_id: news.order_id,
                    state: PaymentState::Failed,
                    amount: order.total,
                    method: order.method.clone(),
                    captured_minor: 0,
                    refunded_minor: 0,
                    applied: false,
                    reason_code: Some(bounded(&news.reason_code)),
                    flagged: None,
                };
                self.payments.insert(row.id.clone(), row);
                self.fresh_payments.insert(news.payment_id.clone());
            }
        }
    }

    pub(super) fn record_external(&mut self, news: &PaymentRefunded) -> Verdict {
        if self.refund_keys.contains_key(&news.refund_key) {
            return Verdict::Aside(Action::DeadLetter, Aside::OtherRefund);
        }
        // A key of the form of ours may be the one that another payment will need: taken by this
        // row, it would stop that payment's refund, and with it the whole consumer.
        let refund_key = if news.refund_key.as_str().starts_with("refund-") {
            RefundKey::of(&news.payment_id)
        } else {
            news.refund_key.clone()
        };
        self.insert_refund(RefundRow {
            payment_id: news.payment_id.clone(),
            refund_key,
            order_id: news.order_id,
            amount: news.amount,
            reason: "external".to_owned(),
            state: RefundState::External,
        });
        self.count_refund(&news.payment_id, news.amount);
        Verdict::RefundExternal
    }

    /// Asks for what was captured, once per payment. Nothing captured, nothing to ask for.
    pub(super) fn request_refund(&mut self, payment: &PaymentId, reason: &str) {
        let Some(row) = self.payments.get(payment) else {
            return;
        };
        let Ok(amount) = Money::new(row.captured_minor, row.amount.currency) else {
            return;
        };
        if amount.amount_minor == 0 || self.refunds.contains_key(payment) {
            return;
        }
        self.insert_refund(RefundRow {
            payment_id: payment.clone(),
            refund_key: RefundKey::of(payment),
            order_id: row.order_id,
            amount,
            reason: reason.to_owned(),
            state: RefundState::Requested,
        });
    }

    fn insert_refund(&mut self, refund: RefundRow) {
        self.refund_keys
            .insert(refund.refund_key.clone(), refund.payment_id.clone());
        self.fresh_refunds.insert(refund.payment_id.clone());
        self.refunds.insert(refund.payment_id.clone(), refund);
    }

    /// A payment of which a part went back before its capture was known is never applied (P6), so
    /// what is left of it is dead money: its refund becomes one of the rest, that is asked for. What
    /// had gone back stays counted in the payment.
    pub(super) fn ask_for_the_rest(&mut self, payment: &PaymentId) {
        let (Some(row), Some(refund)) = (self.payments.get(payment), self.refunds.get_mut(payment))
        else {
            return;
        };
        let rest = row.captured_minor - row.refunded_minor;
        if refund.state != RefundState::External
            || row.applied
            || rest <= 0
            || refund.amount.currency != row.amount.currency
        {
            return;
        }
        let Ok(amount) = Money::new(rest, row.amount.currency) else {
            return;
        };
        refund.refund_key = RefundKey::of(payment);
        refund.amount = amount;
        REST.clone_into(&mut refund.reason);
        refund.state = RefundState::Requested;
        self.refund_keys
            .insert(refund.refund_key.clone(), payment.clone());
        self.reopened_refunds.insert(payment.clone());
    }

    /// Adds what went back to the payment; never more than was captured.
    pub(super) fn count_refund(&mut self, payment: &PaymentId, amount: Money) {
        if let Some(row) = self.payments.get_mut(payment) {
            let refunded = (row.refunded_minor + amount.amount_minor).min(row.captured_minor);
            if amount.currency == row.amount.currency && refunded != row.refunded_minor {
                row.refunded_minor = refunded;
                self.changed_payments.insert(payment.clone());
            }
        }
    }

    pub(super) fn flag(&mut self, payment: &PaymentId, flag: Flag) {
        if let Some(row) = self.payments.get_mut(payment)
            && row.flagged.is_none()
        {
            row.flagged = Some(flag.as_str().to_owned());
            self.changed_payments.insert(payment.clone());
            self.flags.push((payment.clone(), flag));
        }
    }
}

/// A reason as it is stored: without control characters (PostgreSQL's text cannot hold a NUL), and
/// not longer than a slug may sensibly be.
fn bounded(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}
