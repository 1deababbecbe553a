//! What payment news does to an order: the table of P6, cell by cell.

use contracts::PaymentId;

use crate::order::OrderStatus;

/// What the order is when the news is handled, not when it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrderView {
    /// Waits for its payment.
    Reserved,
    /// Confirmed, and by which payment.
    Confirmed {
        /// The applied payment.
        by: PaymentId,
    },
    /// Canceled or expired.
    Released,
    /// No such order. An order's row is committed before anyone can know its id, so this news is
    /// never merely early.
    Unknown,
}

impl OrderView {
    /// The view of a known order. `None` for a confirmed order without an applied payment: a broken
    /// invariant (I5, I26); no payment may be applied to it.
    #[must_use]
    pub fn of(status: OrderStatus, applied: Option<PaymentId>) -> Option<Self> {
        match (status, applied) {
            (OrderStatus::Reserved, _) => Some(Self::Reserved),
            (OrderStatus::Confirmed, Some(by)) => Some(Self::Confirmed { by }),
            (OrderStatus::Confirmed, None) => None,
            (OrderStatus::Canceled | OrderStatus::Expired, _) => Some(Self::Released),
        }
    }
}

/// What the news says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum News {
    /// Captured, and amount and currency are the order's.
    CompletedRight,
    /// Captured, and they are not.
    CompletedWrong,
    /// Failed, and no attempt will follow.
    FailedFinal,
    /// Failed, and another attempt may follow.
    FailedNotFinal,
}

impl News {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::CompletedRight,
        Self::CompletedWrong,
        Self::FailedFinal,
        Self::FailedNotFinal,
    ];
}

/// What is done about it. Every outcome but [`Action::DeadLetter`] also records the payment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// The order is confirmed and the payment applied.
    Confirm,
    /// The order is canceled.
    Cancel,
    /// Nothing else.
    Record,
    /// The same news as before.
    Repeat,
    /// The money goes back.
    RecordAndRefund,
    /// The money goes back, and the order is flagged once: someone charged the wrong amount.
    RecordRefundAndFlag,
    /// Nothing else, but people must look: this should not happen.
    RecordAndAlarm,
    /// Set aside; the money goes back.
    DeadLetterAndRefund,
    /// Set aside.
    DeadLetter,
}

/// The table of P6.
#[must_use]
pub fn decide(order: &OrderView, payment: &PaymentId, news: News) -> Action {
    use News::{CompletedRight, CompletedWrong, FailedFinal, FailedNotFinal};
    match (order, news) {
        (OrderView::Reserved, CompletedRight) => Action::Confirm,
        (OrderView::Reserved, CompletedWrong) => Action::RecordRefundAndFlag,
        (OrderView::Reserved, FailedFinal) => Action::Cancel,
        (OrderView::Reserved, FailedNotFinal) => Action::Record,
        (OrderView::Confirmed { by }, CompletedRight) if by == payment => Action::Repeat,
        (OrderView::Confirmed { by }, CompletedWrong) if by == payment => Action::RecordAndAlarm,
        (OrderView::Confirmed { by }, FailedFinal) if by == payment => Action::RecordAndAlarm,
        (OrderView::Confirmed { by }, FailedNotFinal) if by == payment => Action::Record,
        (OrderView::Confirmed { .. }, CompletedRight) => Action::RecordAndRefund,
        (OrderView::Confirmed { .. }, CompletedWrong) => Action::RecordAndRefund,
        (OrderView::Confirmed { .. }, FailedFinal) => Action::Record,
        (OrderView::Confirmed { .. }, FailedNotFinal) => Action::Record,
        (OrderView::Released, CompletedRight) => Action::RecordAndRefund,
        (OrderView::Released, CompletedWrong) => Action::RecordAndRefund,
        (OrderView::Released, FailedFinal) => Action::Record,
        (OrderView::Released, FailedNotFinal) => Action::Record,
        (OrderView::Unknown, CompletedRight) => Action::DeadLetterAndRefund,
        (OrderView::Unknown, CompletedWrong) => Action::DeadLetterAndRefund,
        (OrderView::Unknown, FailedFinal) => Action::DeadLetter,
        (OrderView::Unknown, FailedNotFinal) => Action::DeadLetter,
    }
}
