//! What a batch of payment news does, worked out in memory: the state as it was loaded under
//! locks, each event folded into it in offset order, and what is to be written at the end.
//!
//! Pure: no clock, no database. The cells of the table are [`domain::settlement::decide`]'s; this
//! file adds what the table leaves to the rows: a payment is applied, refunded and flagged at most
//! once, and money never disappears from a row once it was captured.

use std::collections::{BTreeMap, BTreeSet};

use contracts::{
    Money, OrderId, PaymentId, PaymentMethod, RefundKey,
    events::{PaymentCompleted, PaymentEvent, PaymentFailed, PaymentRefunded},
};
use domain::{
    OrderStatus,
    settlement::{Action, News, OrderView, decide},
};
use store::{
    refunds::{RefundRow, RefundState},
    settlement::{PaymentRow, PaymentState},
};

/// An order as it was locked, and as the batch changes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OrderFacts {
    /// Where it stands.
    pub(crate) status: OrderStatus,
    /// Its version.
    pub(crate) version: i64,
    /// What it costs.
    pub(crate) total: Money,
    /// How the buyer pays.
    pub(crate) method: PaymentMethod,
    /// The payment that confirmed it.
    pub(crate) applied: Option<PaymentId>,
}

/// The reason of a refund of what is left of a payment, when a part went back unasked.
const REST: &str = "refunded-in-part";

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

/// An order that the batch ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ending {
    /// Which.
    pub(crate) order_id: OrderId,
    /// CONFIRMED or CANCELED.
    pub(crate) to: OrderStatus,
    /// The payment that did it.
    pub(crate) by: PaymentId,
}

/// The state of a batch. Load it, fold the events, write what has changed.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    orders: BTreeMap<OrderId, OrderFacts>,
    payments: BTreeMap<PaymentId, PaymentRow>,
    refunds: BTreeMap<PaymentId, RefundRow>,
    refund_keys: BTreeMap<RefundKey, PaymentId>,
    fresh_payments: BTreeSet<PaymentId>,
    changed_payments: BTreeSet<PaymentId>,
    fresh_refunds: BTreeSet<PaymentId>,
    closed_refunds: BTreeSet<PaymentId>,
    reopened_refunds: BTreeSet<PaymentId>,
    endings: Vec<Ending>,
    flags: Vec<(PaymentId, Flag)>,
}

impl Ledger {
    /// The state as it was locked: all orders, payments and refunds that the batch names.
    #[must_use]
    pub(crate) fn new(
        orders: BTreeMap<OrderId, OrderFacts>,
        payments: Vec<PaymentRow>,
        refunds: Vec<RefundRow>,
    ) -> Self {
        Self {
            orders,
            payments: payments
                .into_iter()
                .map(|row| (row.id.clone(), row))
                .collect(),
            refund_keys: refunds
                .iter()
                .map(|row| (row.refund_key.clone(), row.payment_id.clone()))
                .collect(),
            refunds: refunds
                .into_iter()
                .map(|row| (row.payment_id.clone(), row))
                .collect(),
            ..Self::default()
        }
    }

    /// Folds one event.
    pub(crate) fn fold(&mut self, event: &PaymentEvent) -> Verdict {
        match event {
            PaymentEvent::Completed(data) => self.completed(data),
            PaymentEvent::Failed(data) => self.failed(data),
            PaymentEvent::Refunded(data) => self.refunded(data),
        }
    }

    /// Orders that have ended, in the order of the events that ended them.
    #[must_use]
    pub(crate) fn endings(&self) -> &[Ending] {
        &self.endings
    }

    /// Payments that were flagged, each with the first reason.
    #[must_use]
    pub(crate) fn flags(&self) -> &[(PaymentId, Flag)] {
        &self.flags
    }

    /// Payments to insert, sorted by id.
    #[must_use]
    pub(crate) fn fresh_payments(&self) -> Vec<PaymentRow> {
        pick(&self.payments, &self.fresh_payments)
    }

    /// Payments to update, sorted by id.
    #[must_use]
    pub(crate) fn changed_payments(&self) -> Vec<PaymentRow> {
        let changed = self
            .changed_payments
            .difference(&self.fresh_payments)
            .cloned()
            .collect();
        pick(&self.payments, &changed)
    }

    /// Refunds to insert, sorted by payment.
    #[must_use]
    pub(crate) fn fresh_refunds(&self) -> Vec<RefundRow> {
        pick(&self.refunds, &self.fresh_refunds)
    }

    /// Refunds to close, sorted by payment.
    #[must_use]
    pub(crate) fn closed_refunds(&self) -> Vec<RefundRow> {
        let closed = self
            .closed_refunds
            .difference(&self.fresh_refunds)
            .cloned()
            .collect();
        pick(&self.refunds, &closed)
    }

    /// Refunds on record that ask for what is left of a payment, sorted by payment.
    #[must_use]
    pub(crate) fn reopened_refunds(&self) -> Vec<RefundRow> {
        let reopened = self
            .reopened_refunds
            .difference(&self.fresh_refunds)
            .cloned()
            .collect();
        pick(&self.refunds, &reopened)
    }

    /// The version of an order, for events about it; 1 when there is no such order.
    #[must_use]
    pub(crate) fn version_of(&self, order: OrderId) -> i64 {
        self.orders.get(&order).map_or(1, |facts| facts.version)
    }

    fn completed(&mut self, news: &PaymentCompleted) -> Verdict {
        if self.belongs_elsewhere(&news.payment_id, news.order_id) {
            return Verdict::Aside(Action::DeadLetter, Aside::OtherOrder);
        }
        let right = self
            .orders
            .get(&news.order_id)
            .is_some_and(|o| o.total == news.amount);
        let view = self.view(news.order_id);
        self.capture(news);
        self.flag_broken(news.order_id, &news.payment_id);
        self.ask_for_the_rest(&news.payment_id);
        if view != OrderView::Unknown && self.refunds.contains_key(&news.payment_id) {
            return Verdict::RefundedBefore;
        }
        let cell = if right {
            News::CompletedRight
        } else {
            News::CompletedWrong
        };
        let action = decide(&view, &news.payment_id, cell);
        match action {
            Action::Confirm => self.end(news.order_id, OrderStatus::Confirmed, &news.payment_id),
            Action::RecordAndRefund => {
                let reason = match view {
                    OrderView::Confirmed { .. } => "paid-twice",
                    OrderView::Reserved | OrderView::Released | OrderView::Unknown => "order-ended",
                };
                self.request_refund(&news.payment_id, reason);
            }
            Action::RecordRefundAndFlag => {
                self.request_refund(&news.payment_id, "wrong-amount");
                self.flag(&news.payment_id, Flag::WrongAmount);
            }
            Action::RecordAndAlarm => self.flag(&news.payment_id, Flag::AmountChanged),
            Action::DeadLetterAndRefund => {
                self.request_refund(&news.payment_id, "unknown-order");
                return Verdict::Aside(action, Aside::UnknownOrder);
            }
            Action::DeadLetter => return Verdict::Aside(action, Aside::UnknownOrder),
            Action::Cancel | Action::Record | Action::Repeat => {}
        }
        Verdict::Settled(action)
    }

    fn failed(&mut self, news: &PaymentFailed) -> Verdict {
        if self.belongs_elsewhere(&news.payment_id, news.order_id) {
            return Verdict::Aside(Action::DeadLetter, Aside::OtherOrder);
        }
        let cell = if news.is_final {
            News::FailedFinal
        } else {
            News::FailedNotFinal
        };
        let action = decide(&self.view(news.order_id), &news.payment_id, cell);
        match action {
            Action::DeadLetter | Action::DeadLetterAndRefund => {
                return Verdict::Aside(action, Aside::UnknownOrder);
            }
            Action::Cancel => {
                self.record_failure(news);
                self.end(news.order_id, OrderStatus::Canceled, &news.payment_id);
            }
            Action::RecordAndAlarm => {
                self.record_failure(news);
                self.flag(&news.payment_id, Flag::FailedAfterConfirm);
            }
            Action::Confirm
            | Action::Record
            | Action::Repeat
            | Action::RecordAndRefund
            | Action::RecordRefundAndFlag => self.record_failure(news),
        }
        Verdict::Settled(action)
    }

    fn refunded(&mut self, news: &PaymentRefunded) -> Verdict {
        if !self.payments.contains_key(&news.payment_id) {
            return Verdict::Aside(Action::DeadLetter, Aside::UnknownPayment);
        }
        if self.belongs_elsewhere(&news.payment_id, news.order_id) {
            return Verdict::Aside(Action::DeadLetter, Aside::OtherOrder);
        }
        let verdict = match self.refunds.get_mut(&news.payment_id) {
            Some(refund) if refund.amount != news.amount => Verdict::RefundMismatch,
            // News of the part that had gone back before may come again.
            Some(refund) if refund.reason == REST && refund.refund_key != news.refund_key => {
                Verdict::RefundMismatch
            }
            Some(refund) => {
                let asked_so = refund.refund_key == news.refund_key;
                if refund.state == RefundState::Requested {
                    refund.state = RefundState::Closed;
                    self.closed_refunds.insert(news.payment_id.clone());
                    self.count_refund(&news.payment_id, news.amount);
                }
                if !asked_so {
                    self.flag(&news.payment_id, Flag::RefundMismatch);
                }
                Verdict::RefundClosed
            }
            None => self.record_external(news),
        };
        match verdict {
            Verdict::RefundMismatch => self.flag(&news.payment_id, Flag::RefundMismatch),
            Verdict::RefundExternal => self.flag(&news.payment_id, Flag::ExternalRefund),
            Verdict::Settled(_)
            | Verdict::RefundedBefore
            | Verdict::RefundClosed
            | Verdict::Aside(..) => {}
        }
        verdict
    }

    /// Whether the payment is on record with another order.
    fn belongs_elsewhere(&self, payment: &PaymentId, order: OrderId) -> bool {
        self.payments
            .get(payment)
            .is_some_and(|row| row.order_id != order)
    }

    /// The order as the table sees it. A confirmed order without an applied payment is a broken
    /// invariant: its cells are those of a released one, so that no money is applied to it.
    fn view(&self, order: OrderId) -> OrderView {
        let Some(facts) = self.orders.get(&order) else {
            return OrderView::Unknown;
        };
        OrderView::of(facts.status, facts.applied.clone()).unwrap_or(OrderView::Released)
    }

    fn flag_broken(&mut self, order: OrderId, payment: &PaymentId) {
        let broken = self
            .orders
            .get(&order)
            .is_some_and(|o| o.status == OrderStatus::Confirmed && o.applied.is_none());
        if broken {
            self.flag(payment, Flag::NothingApplied);
        }
    }

    /// Records a capture. What was captured before stays: the same payment can't capture twice.
    fn capture(&mut self, news: &PaymentCompleted) {
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
    fn record_failure(&mut self, news: &PaymentFailed) {
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

    fn record_external(&mut self, news: &PaymentRefunded) -> Verdict {
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

    fn end(&mut self, order_id: OrderId, to: OrderStatus, by: &PaymentId) {
        if let Some(facts) = self.orders.get_mut(&order_id) {
            facts.status = to;
            facts.version += 1;
            if to == OrderStatus::Confirmed {
                facts.applied = Some(by.clone());
                if let Some(row) = self.payments.get_mut(by) {
                    row.applied = true;
                    self.changed_payments.insert(by.clone());
                }
            }
        }
        self.endings.push(Ending {
            order_id,
            to,
            by: by.clone(),
        });
    }

    /// Asks for what was captured, once per payment. Nothing captured, nothing to ask for.
    fn request_refund(&mut self, payment: &PaymentId, reason: &str) {
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
    fn ask_for_the_rest(&mut self, payment: &PaymentId) {
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
    fn count_refund(&mut self, payment: &PaymentId, amount: Money) {
        if let Some(row) = self.payments.get_mut(payment) {
            let refunded = (row.refunded_minor + amount.amount_minor).min(row.captured_minor);
            if amount.currency == row.amount.currency && refunded != row.refunded_minor {
                row.refunded_minor = refunded;
                self.changed_payments.insert(payment.clone());
            }
        }
    }

    fn flag(&mut self, payment: &PaymentId, flag: Flag) {
        if let Some(row) = self.payments.get_mut(payment)
            && row.flagged.is_none()
        {
            row.flagged = Some(flag.as_str().to_owned());
            self.changed_payments.insert(payment.clone());
            self.flags.push((payment.clone(), flag));
        }
    }
}

fn pick<T: Clone>(rows: &BTreeMap<PaymentId, T>, ids: &BTreeSet<PaymentId>) -> Vec<T> {
    ids.iter().filter_map(|id| rows.get(id).cloned()).collect()
}

/// A reason as it is stored: without control characters (PostgreSQL's text cannot hold a NUL), and
/// not longer than a slug may sensibly be.
fn bounded(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}
