//! What payment news does to rows (P6): the table of `domain::settlement`, folded event by event.

use std::sync::LazyLock;

use contracts::PaymentId;
use domain::{
    OrderStatus,
    settlement::{self, Action, OrderView},
};

use super::{OrderNo, PaymentNo, Rules, pg::Pg};
use crate::Mutation;

/// Where a payment stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the words of the column")]
pub enum PaymentState {
    Pending,
    Completed,
    Failed,
}

/// Where a refund stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the words of the column")]
pub enum RefundState {
    Requested,
    Closed,
    External,
}

/// What people must look at; the first of a payment stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the words of the column")]
pub enum Flag {
    WrongAmount,
    AmountChanged,
    FailedAfterConfirm,
    RefundMismatch,
    ExternalRefund,
}

impl Flag {
    /// The word of the column.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::WrongAmount => "wrong-amount",
            Self::AmountChanged => "amount-changed",
            Self::FailedAfterConfirm => "failed-after-confirm",
            Self::RefundMismatch => "refund-mismatch",
            Self::ExternalRefund => "external-refund",
        }
    }
}

/// A payment's row. Amounts are counted in units of stock: one unit costs 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Payment {
    /// The order that it names.
    pub order: OrderNo,
    /// Where it stands.
    pub state: PaymentState,
    /// What was captured.
    pub captured: i32,
    /// What went back.
    pub refunded: i32,
    /// Whether it has confirmed its order.
    pub applied: bool,
    /// The first thing that was strange about it.
    pub flagged: Option<Flag>,
}

/// A refund's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Refund {
    /// How much.
    pub amount: i32,
    /// Where it stands.
    pub state: RefundState,
}

/// An event of `payments.v1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "fields are named after what they are")]
pub enum News {
    /// Captured.
    Completed {
        payment: PaymentNo,
        order: OrderNo,
        amount: i32,
    },
    /// Declined; whether no attempt will follow.
    Failed {
        payment: PaymentNo,
        order: OrderNo,
        is_final: bool,
    },
    /// Money went back.
    Refunded {
        payment: PaymentNo,
        order: OrderNo,
        amount: i32,
    },
}

impl News {
    /// The order that it names.
    #[must_use]
    pub fn order(self) -> OrderNo {
        match self {
            Self::Completed { order, .. }
            | Self::Failed { order, .. }
            | Self::Refunded { order, .. } => order,
        }
    }
}

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Told {
    /// Confirmed, canceled, recorded, refunded: whatever the table says.
    Handled(Handled),
    /// Set aside: it names no order of ours.
    UnknownOrder,
    /// Set aside: the payment is another order's.
    OtherOrder,
    /// Set aside: it refunds what was never heard of.
    UnknownPayment,
}

/// The cell that an event met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the cells of domain::settlement::Action")]
pub enum Handled {
    Confirmed,
    Canceled,
    Recorded,
    Repeated,
    Refunding,
    RefundingAndFlagged,
    Alarmed,
    RefundedBefore,
    RefundClosed,
    RefundExternal,
    RefundMismatch,
}

/// Only whether two payments are the same matters to the table.
static THIS: LazyLock<PaymentId> = LazyLock::new(|| payment_id("this"));
static OTHER: LazyLock<PaymentId> = LazyLock::new(|| payment_id("other"));

fn payment_id(word: &str) -> PaymentId {
    PaymentId::parse(word).unwrap_or_else(|_| unreachable!("{word} is a payment id"))
}

impl Pg {
    /// Settles a batch of payment news in one transaction, each on the state that those before it
    /// have left. A SKU's version rises once for what is sold, and once for what is freed.
    pub fn settle(&mut self, news: &[News], rules: Rules) -> Vec<Told> {
        let before = self.skus;
        let told = news
            .iter()
            .map(|one| self.settle_one(*one, rules))
            .collect();
        for (row, before) in self.skus.iter_mut().zip(before) {
            if let (Some(row), Some(before)) = (row, before) {
                let sold = row.sold - before.sold;
                let freed = before.held - row.held - sold;
                row.version = before.version + u32::from(sold > 0) + u32::from(freed > 0);
            }
        }
        told
    }

    fn settle_one(&mut self, news: News, rules: Rules) -> Told {
        match news {
            News::Completed {
                payment,
                order,
                amount,
            } => self.completed(payment, order, amount, rules),
            News::Failed {
                payment,
                order,
                is_final,
            } => self.failed(payment, order, is_final, rules),
            News::Refunded {
                payment,
                order,
                amount,
            } => self.refunded(payment, order, amount),
        }
    }

    fn is_elsewhere(&self, payment: PaymentNo, order: OrderNo) -> bool {
        let found = self.payments.get(&payment);
        found.is_some_and(|row| row.order != order)
    }

    fn order_view(&self, order: OrderNo, payment: PaymentNo) -> OrderView {
        let Some(found) = self.orders.get(&order) else {
            return OrderView::Unknown;
        };
        let by = found.applied.map(|by| {
            let same = by == payment;
            (if same { &*THIS } else { &*OTHER }).clone()
        });
        OrderView::of(found.status, by).unwrap_or(OrderView::Released)
    }

    fn completed(&mut self, payment: PaymentNo, order: OrderNo, amount: i32, rules: Rules) -> Told {
        if self.is_elsewhere(payment, order) {
            return Told::OtherOrder;
        }
        let view = self.order_view(order, payment);
        let price = self.orders.get(&order).map(|found| found.hold.units());
        let right = price == Some(amount) || rules.breaks(Mutation::AnyAmountConfirms);
        self.capture(payment, order, amount);
        self.ask_for_the_rest(payment);
        let refunded_before = self.refunds.contains_key(&payment);
        if view != OrderView::Unknown && refunded_before {
            return Told::Handled(Handled::RefundedBefore);
        }
        let cell = if right {
            settlement::News::CompletedRight
        } else {
            settlement::News::CompletedWrong
        };
        let mut action = settlement::decide(&view, &THIS, cell);
        if rules.breaks(Mutation::LastNewsWins) && view == OrderView::Released && right {
            action = Action::Confirm;
        }
        match action {
            Action::Confirm => {
                if let Some(row) = self.payments.get_mut(&payment) {
                    row.applied = true;
                }
                self.end(&[(order, OrderStatus::Confirmed)], rules);
                if let Some(found) = self.orders.get_mut(&order) {
                    found.applied = Some(payment);
                }
                Told::Handled(Handled::Confirmed)
            }
            Action::RecordAndRefund => {
                if !rules.breaks(Mutation::LateCaptureKept) {
                    self.request_refund(payment);
                }
                Told::Handled(Handled::Refunding)
            }
            Action::RecordRefundAndFlag => {
                self.request_refund(payment);
                self.flag(payment, Flag::WrongAmount);
                Told::Handled(Handled::RefundingAndFlagged)
            }
            Action::RecordAndAlarm => {
                self.flag(payment, Flag::AmountChanged);
                Told::Handled(Handled::Alarmed)
            }
            Action::DeadLetterAndRefund => {
                self.request_refund(payment);
                Told::UnknownOrder
            }
            Action::DeadLetter => Told::UnknownOrder,
            Action::Repeat => Told::Handled(Handled::Repeated),
            Action::Cancel | Action::Record => Told::Handled(Handled::Recorded),
        }
    }

    /// What was captured before stays: the same payment can't capture twice.
    fn capture(&mut self, payment: PaymentNo, order: OrderNo, amount: i32) {
        match self.payments.get_mut(&payment) {
            Some(row) if row.state == PaymentState::Completed => {
                if row.captured != amount {
                    self.flag(payment, Flag::AmountChanged);
                }
                return;
            }
            Some(row) => {
                row.state = PaymentState::Completed;
                row.captured = amount;
            }
            None => {
                let row = Payment {
                    order,
                    state: PaymentState::Completed,
                    captured: amount,
                    refunded: 0,
                    applied: false,
                    flagged: None,
                };
                self.payments.insert(payment, row);
            }
        }
        // It may have gone back before we heard that it had come.
        let external = self.refunds.get(&payment);
        if let Some(refund) = external.filter(|refund| refund.state == RefundState::External) {
            self.count_refund(payment, refund.amount);
        }
    }

    /// Of a payment of which a part went back before its capture was known the rest is asked for: it
    /// is never applied.
    fn ask_for_the_rest(&mut self, payment: PaymentNo) {
        let (Some(row), Some(refund)) =
            (self.payments.get(&payment), self.refunds.get_mut(&payment))
        else {
            return;
        };
        let rest = row.captured - row.refunded;
        if refund.state == RefundState::External && !row.applied && rest > 0 {
            refund.amount = rest;
            refund.state = RefundState::Requested;
        }
    }

    fn failed(&mut self, payment: PaymentNo, order: OrderNo, is_final: bool, rules: Rules) -> Told {
        if self.is_elsewhere(payment, order) {
            return Told::OtherOrder;
        }
        let cell = if is_final {
            settlement::News::FailedFinal
        } else {
            settlement::News::FailedNotFinal
        };
        let view = self.order_view(order, payment);
        let handled = match settlement::decide(&view, &THIS, cell) {
            Action::DeadLetter | Action::DeadLetterAndRefund => return Told::UnknownOrder,
            Action::Cancel => {
                self.record_failure(payment, order, is_final);
                self.end(&[(order, OrderStatus::Canceled)], rules);
                Handled::Canceled
            }
            Action::RecordAndAlarm => {
                self.record_failure(payment, order, is_final);
                self.flag(payment, Flag::FailedAfterConfirm);
                Handled::Alarmed
            }
            Action::Confirm
            | Action::Record
            | Action::Repeat
            | Action::RecordAndRefund
            | Action::RecordRefundAndFlag => {
                self.record_failure(payment, order, is_final);
                Handled::Recorded
            }
        };
        Told::Handled(handled)
    }

    /// Captured money stays on record, and a failure that is not final leaves the state to whoever
    /// tries again.
    fn record_failure(&mut self, payment: PaymentNo, order: OrderNo, is_final: bool) {
        match self.payments.get_mut(&payment) {
            Some(row) if row.state == PaymentState::Pending && is_final => {
                row.state = PaymentState::Failed;
            }
            Some(_) => {}
            None => {
                let row = Payment {
                    order,
                    state: PaymentState::Failed,
                    captured: 0,
                    refunded: 0,
                    applied: false,
                    flagged: None,
                };
                self.payments.insert(payment, row);
            }
        }
    }

    fn refunded(&mut self, payment: PaymentNo, order: OrderNo, amount: i32) -> Told {
        if !self.payments.contains_key(&payment) {
            return Told::UnknownPayment;
        }
        if self.is_elsewhere(payment, order) {
            return Told::OtherOrder;
        }
        let handled = match self.refunds.get_mut(&payment) {
            Some(refund) if refund.amount != amount => {
                self.flag(payment, Flag::RefundMismatch);
                Handled::RefundMismatch
            }
            Some(refund) => {
                if refund.state == RefundState::Requested {
                    refund.state = RefundState::Closed;
                    self.count_refund(payment, amount);
                }
                Handled::RefundClosed
            }
            None => {
                let state = RefundState::External;
                self.refunds.insert(payment, Refund { amount, state });
                self.count_refund(payment, amount);
                self.flag(payment, Flag::ExternalRefund);
                Handled::RefundExternal
            }
        };
        Told::Handled(handled)
    }

    /// Asks for what was captured, once per payment.
    fn request_refund(&mut self, payment: PaymentNo) {
        let amount = self.payments.get(&payment).map_or(0, |row| row.captured);
        if amount > 0 {
            let state = RefundState::Requested;
            let new = Refund { amount, state };
            self.refunds.entry(payment).or_insert(new);
        }
    }

    /// Adds what went back; never more than was captured.
    fn count_refund(&mut self, payment: PaymentNo, amount: i32) {
        if let Some(row) = self.payments.get_mut(&payment) {
            row.refunded = (row.refunded + amount).min(row.captured);
        }
    }

    fn flag(&mut self, payment: PaymentNo, flag: Flag) {
        if let Some(row) = self.payments.get_mut(&payment) {
            row.flagged.get_or_insert(flag);
        }
    }
}
