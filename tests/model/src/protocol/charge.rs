//! What our payment service writes (P5): the guarded read before a charge, and what became of it.

use domain::OrderStatus;

use super::{
    OrderNo, PaymentNo, Rules,
    money::{Payment, PaymentState},
    pg::{Moment, Pg},
};
use crate::Mutation;

impl Pg {
    /// The guarded read and the PENDING row (P5): `false` when the order does not wait any more,
    /// has no time left, or has its payment.
    pub fn begin_payment(&mut self, order: OrderNo, payment: PaymentNo, rules: Rules) -> bool {
        let waits = self.orders.get(&order).is_some_and(|found| {
            let guarded = found.status == OrderStatus::Reserved && found.moment == Moment::Early;
            guarded || rules.breaks(Mutation::ChargeWithoutGuard)
        });
        if !waits || self.payments.contains_key(&payment) {
            return false;
        }
        let row = Payment {
            order,
            state: PaymentState::Pending,
            captured: 0,
            refunded: 0,
            applied: false,
            flagged: None,
        };
        self.payments.insert(payment, row);
        true
    }

    /// Our payment service records what became of a charge: what was captured, 0 when it was
    /// declined. Once: a payment that is recorded stays as it is.
    pub fn record_charge(&mut self, payment: PaymentNo, captured: i32) -> bool {
        match self.payments.get_mut(&payment) {
            Some(row) if row.state == PaymentState::Pending => {
                row.captured = captured;
                row.state = if captured > 0 {
                    PaymentState::Completed
                } else {
                    PaymentState::Failed
                };
                true
            }
            Some(_) | None => false,
        }
    }
}
