//! What must hold in every state.

use domain::OrderStatus;
use stateright::Property;

use super::{Broken, Charge, ORDER, PRICE, Settle, State, Worker, ours};
use crate::{Mutation, protocol::money::RefundState};

pub(super) fn all() -> Vec<Property<Settle>> {
    vec![
        Property::always("never oversold", |_, state: &State| !state.pg.oversold()),
        Property::always(
            "stock and buyers' units are what the orders say",
            |_, state: &State| state.pg.counts_are_right(),
        ),
        Property::always("an order ends once", |_, state: &State| {
            state.pg.orders.values().all(|order| order.version <= 2)
        }),
        Property::always(
            "confirmed means paid, by one payment",
            |_, state: &State| {
                let applied = state.pg.payments.values().filter(|one| one.applied).count();
                applied == usize::from(state.status() == OrderStatus::Confirmed)
            },
        ),
        Property::always(
            "no order expires before its deadline",
            |_, state: &State| state.broken != Some(Broken::ExpiredEarly),
        ),
        Property::always(
            "no order expires under a payment in flight",
            |_, state: &State| state.broken != Some(Broken::ExpiredUnderPayment),
        ),
        Property::always("only an order that waits is charged", |_, state: &State| {
            state.broken != Some(Broken::ChargedForNothing)
        }),
        Property::always("no buyer is charged twice", |_, state: &State| {
            let captured = state.charges.iter().filter(|one| **one == Charge::Captured);
            captured.count() <= 1
        }),
        Property::always("no refund is made twice", |_, state: &State| {
            state.refunded.iter().all(|times| *times <= 1)
        }),
        Property::always(
            "at rest everybody's money is where it belongs",
            |model: &Settle, state: &State| {
                if !is_at_rest(model, state) {
                    return true;
                }
                let paid = if state.status() == OrderStatus::Confirmed {
                    PRICE
                } else {
                    0
                };
                state.captured() - state.gone_back() == paid
            },
        ),
        Property::always(
            "at rest the rows say what the money does",
            |model: &Settle, state: &State| {
                if !is_at_rest(model, state) {
                    return true;
                }
                let payments = state.pg.payments.values();
                let kept: i32 = payments.map(|one| one.captured - one.refunded).sum();
                kept == state.captured() - state.gone_back()
            },
        ),
    ]
}

/// Nothing is under way, and nothing will happen by itself.
fn is_at_rest(model: &Settle, state: &State) -> bool {
    let order = state.pg.orders.get(&ORDER);
    let ended = order.is_some_and(|order| order.status.is_end());
    let read = usize::from(state.position) == state.log.len() && state.in_hand.is_none();
    let told = (0..3).all(|payment| state.truth[payment].is_none() || state.told[payment] > 0);
    let asks_again = !model.rules.breaks(Mutation::RefundAskedOnce);
    let mut refunds = state.pg.refunds.iter();
    let asked = state.asks.iter().any(|asks| *asks > 0)
        || asks_again && refunds.any(|(_, one)| one.state == RefundState::Requested);
    let idle = state.workers.iter().all(|worker| *worker == Worker::Idle);
    ended
        && read
        && told
        && idle
        && !asked
        && !state.begins
        && state.expiry.is_none()
        && !ours::is_pending(state)
        && state.broken.is_none()
}
