//! What may happen in a state, and what it does: the order, its expiry, and the consumer of
//! payment news.

use domain::OrderStatus;
use stateright::{Model, Property};

use super::{Broken, Expiry, ORDER, PRICE, Payer, Settle, State, Step, properties};
use crate::{
    Mutation,
    protocol::{
        PaymentNo,
        money::{Handled, News, RefundState, Told},
        pg::Moment,
    },
};

impl Model for Settle {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![Self::first()]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.broken.is_some() {
            return;
        }
        if state.moment().next().is_some() {
            steps.push(Step::Later);
        }
        let waits = state.status() == OrderStatus::Reserved;
        // Its row is locked by expiry, or shared by the guarded read.
        if waits && self.bounds.cancel && !state.is_locked() && !state.begins {
            steps.push(Step::Cancel);
        }
        match state.expiry {
            None if waits && state.moment() >= Moment::Due => steps.push(Step::ExpiryBegins),
            Some(expiry) if expiry.locked => steps.push(Step::ExpiryDecides),
            Some(_) => steps.push(Step::ExpiryLocks),
            None => {}
        }
        self.consumer_steps(state, steps);
        match self.bounds.payer {
            Payer::Ours => self.our_steps(state, steps),
            Payer::Upstream => self.upstream_steps(state, steps),
        }
        self.refund_steps(state, steps);
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        self.take(&mut state, step);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}

impl Settle {
    fn consumer_steps(&self, state: &State, steps: &mut Vec<Step>) {
        let more = usize::from(state.position) < state.log.len();
        let free = !state.is_locked() && !state.begins;
        if self.rules.breaks(Mutation::OffsetsBeforeCommit) {
            match state.in_hand {
                None if more => steps.push(Step::Fetch),
                Some(_) if free => steps.push(Step::Handle),
                _ => {}
            }
            if state.in_hand.is_some() && state.faults < self.bounds.faults {
                steps.push(Step::ConsumerDies);
            }
            return;
        }
        if more && free {
            steps.push(Step::Handle);
        }
        if state.position != state.offset {
            steps.push(Step::StoreOffset);
            if state.faults < self.bounds.faults {
                steps.push(Step::ConsumerDies);
            }
        }
    }

    fn upstream_steps(&self, state: &State, steps: &mut Vec<Step>) {
        let room = state.log.len() < self.bounds.log;
        for payment in 0..2_u32 {
            let place = index(payment);
            match state.truth[place] {
                None => steps.extend([Step::Upstream(payment, PRICE), Step::Upstream(payment, 0)]),
                Some(_) if room && state.told[place] < 2 => steps.push(Step::Tell(payment)),
                Some(_) => {}
            }
            // Only one of them charges what is wrong.
            if payment == 1 && state.truth[place].is_none() {
                steps.push(Step::Upstream(payment, PRICE - 1));
                if room && !state.failed_once {
                    steps.push(Step::TellFailedOnce(payment));
                }
            }
        }
    }

    fn refund_steps(&self, state: &State, steps: &mut Vec<Step>) {
        for (payment, refund) in &state.pg.refunds {
            let place = index(*payment);
            let open = refund.state == RefundState::Requested;
            if open && state.asks[place] == 0 && !self.rules.breaks(Mutation::RefundAskedOnce) {
                steps.push(Step::AskAgain(*payment));
            }
            if state.asks[place] > 0 {
                // Room is kept for what has to be told.
                if state.log.len() < self.bounds.log + 2 {
                    steps.push(Step::Refund(*payment));
                }
                if state.faults < self.bounds.faults {
                    steps.push(Step::AskIsLost(*payment));
                }
            }
        }
    }

    fn take(&self, state: &mut State, step: Step) {
        match step {
            Step::Later => {
                if let Some(order) = state.pg.orders.get_mut(&ORDER)
                    && let Some(next) = order.moment.next()
                {
                    order.moment = next;
                }
            }
            Step::Cancel => {
                state.pg.cancel(ORDER, self.rules);
            }
            Step::ExpiryBegins => {
                state.expiry = Some(Expiry {
                    paying_then: state.pg.is_paying(ORDER),
                    locked: false,
                });
            }
            Step::ExpiryLocks => self.expiry_locks(state),
            Step::ExpiryDecides => self.expiry_decides(state),
            Step::Handle => self.handle(state),
            Step::Fetch => {
                state.in_hand = Some(state.position);
                state.position += 1;
                state.offset = state.position;
            }
            Step::StoreOffset => state.offset = state.position,
            Step::ConsumerDies => {
                state.faults += 1;
                state.in_hand = None;
                state.position = state.offset;
            }
            Step::Upstream(payment, captured) => state.truth[index(payment)] = Some(captured),
            Step::Tell(payment) => {
                state.told[index(payment)] += 1;
                let order = ORDER;
                state.log.push(match state.truth[index(payment)] {
                    Some(0) | None => News::Failed {
                        payment,
                        order,
                        is_final: true,
                    },
                    Some(amount) => News::Completed {
                        payment,
                        order,
                        amount,
                    },
                });
            }
            Step::TellFailedOnce(payment) => {
                state.failed_once = true;
                state.log.push(News::Failed {
                    payment,
                    order: ORDER,
                    is_final: false,
                });
            }
            Step::AskAgain(payment) => state.asks[index(payment)] += 1,
            Step::AskIsLost(payment) => {
                state.faults += 1;
                state.asks[index(payment)] = 0;
            }
            Step::Refund(payment) => self.refund(state, payment),
            Step::BeginLocks
            | Step::BeginCommits
            | Step::WorkerStarts(_)
            | Step::WorkerAsks(_)
            | Step::Charge(..)
            | Step::ChargeUnheard(..)
            | Step::CancelCharge(_)
            | Step::Record(_)
            | Step::WorkerDies(_) => self.take_ours(state, step),
        }
    }

    /// Statement 1: skip locked.
    fn expiry_locks(&self, state: &mut State) {
        if state.begins || state.status() != OrderStatus::Reserved {
            self.tally
                .hit("an order is locked and expiry passes it over");
            state.expiry = None;
        } else if let Some(expiry) = &mut state.expiry {
            expiry.locked = true;
        }
    }

    /// Statement 2, with a new snapshot; then the commit.
    fn expiry_decides(&self, state: &mut State) {
        let Some(expiry) = state.expiry.take() else {
            return;
        };
        let paying = state.pg.is_paying(ORDER);
        let seen = if self.rules.breaks(Mutation::ExpiryOneStatement) {
            expiry.paying_then
        } else if self.rules.breaks(Mutation::ExpiryIgnoresPayments) {
            false
        } else {
            paying
        };
        let protected = seen && state.moment() < Moment::PastGrace;
        if protected {
            self.tally
                .hit("a payment in flight protects an overdue order");
            return;
        }
        if state.moment() < Moment::Due {
            state.broken = Some(Broken::ExpiredEarly);
        }
        if paying {
            if state.moment() < Moment::PastGrace {
                state.broken = Some(Broken::ExpiredUnderPayment);
            }
            self.tally
                .hit("an order past the grace expires under its payment");
        }
        self.tally.hit("an order expires");
        state.pg.end(&[(ORDER, OrderStatus::Expired)], self.rules);
    }

    /// Inbox row, fold, commit: one transaction.
    fn handle(&self, state: &mut State) {
        let place = state.in_hand.take().unwrap_or(state.position);
        if place == state.position {
            state.position += 1;
        }
        let Some(news) = state.log.get(usize::from(place)).copied() else {
            return;
        };
        if self.bounds.inbox {
            if state.inbox & (1 << place) != 0 {
                self.tally
                    .hit("an event comes twice and the inbox knows it");
                return;
            }
            state.inbox |= 1 << place;
        }
        let refunds = state.pg.refunds.len();
        let before = state.status();
        let told = state.pg.settle(&[news], self.rules);
        let place = match news {
            News::Completed { payment, .. }
            | News::Failed { payment, .. }
            | News::Refunded { payment, .. } => index(payment),
        };
        if state.pg.refunds.len() > refunds {
            // REFUND_REQUESTED goes out with the transaction.
            state.asks[place] += 1;
        }
        for told in told {
            match told {
                Told::Handled(Handled::Confirmed) => self.tally.hit("an order is confirmed"),
                Told::Handled(Handled::Canceled) => {
                    self.tally.hit("an order is canceled by a failed payment");
                }
                Told::Handled(Handled::Refunding) if before == OrderStatus::Confirmed => {
                    self.tally.hit("a second payment is refunded");
                }
                Told::Handled(Handled::Refunding) => {
                    self.tally
                        .hit("a capture comes after the end and is refunded");
                }
                Told::Handled(Handled::RefundingAndFlagged) => {
                    self.tally.hit("a wrong amount is refunded and flagged");
                }
                Told::Handled(Handled::RefundClosed) => self.tally.hit("a refund is closed"),
                Told::Handled(_) | Told::UnknownOrder | Told::OtherOrder | Told::UnknownPayment => {
                }
            }
        }
    }

    /// Whoever executes refunds does it once per key, and answers each ask.
    fn refund(&self, state: &mut State, payment: PaymentNo) {
        let place = index(payment);
        state.asks[place] = 0;
        if state.refunded[place] == 0 || self.rules.breaks(Mutation::RefundKeyPerAsk) {
            state.refunded[place] += 1;
        }
        let amount = state.pg.refunds.get(&payment).map_or(0, |one| one.amount);
        state.log.push(News::Refunded {
            payment,
            order: ORDER,
            amount,
        });
    }
}

pub(super) fn index(payment: PaymentNo) -> usize {
    usize::try_from(payment).unwrap_or(0)
}
