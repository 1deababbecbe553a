//! What a batch of payment news does, worked out in memory: the state as it was loaded under
//! locks, each event folded into it in offset order, and what is to be written at the end.
//!
//! Pure: no clock, no database. The cells of the table are [`domain::settlement::decide`]'s; what
//! the table leaves to the rows of payments and refunds is in [`rows`], and the words for what became
//! of an event in [`verdict`].

mod rows;
mod verdict;

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
    settlement::PaymentRow,
};

pub(crate) use verdict::{Aside, Flag, Verdict};

use rows::REST;

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
}

fn pick<T: Clone>(rows: &BTreeMap<PaymentId, T>, ids: &BTreeSet<PaymentId>) -> Vec<T> {
    ids.iter().filter_map(|id| rows.get(id).cloned()).collect()
}
