//! The payments of our own service: the guarded read before, the gateway asked by key, the result
//! recorded with its event.

use domain::OrderStatus;

use super::{Broken, Charge, ORDER, PRICE, Settle, State, Step, Worker};
use crate::{
    Mutation,
    protocol::{
        money::{News, PaymentState},
        pg::Moment,
    },
};

/// The only payment.
const PAYMENT: u32 = 2;

impl Settle {
    pub(super) fn our_steps(&self, state: &State, steps: &mut Vec<Step>) {
        if state.begins {
            steps.push(Step::BeginCommits);
        } else if self.may_begin(state) {
            steps.push(Step::BeginLocks);
        }
        let pending = is_pending(state);
        for n in 0..2_u8 {
            match state.workers[usize::from(n)] {
                Worker::Idle if pending => {
                    // The pool has the first worker, the sweep the second.
                    steps.push(if n == 0 {
                        Step::WorkerStarts(n)
                    } else {
                        Step::WorkerAsks(n)
                    });
                }
                Worker::Idle => {}
                Worker::Charging => {
                    steps.extend([Step::Charge(n, true), Step::Charge(n, false)]);
                    if state.faults < self.bounds.faults {
                        steps.extend([Step::ChargeUnheard(n, true), Step::ChargeUnheard(n, false)]);
                    }
                }
                Worker::Canceling => steps.push(Step::CancelCharge(n)),
                Worker::Captured | Worker::Failed => steps.push(Step::Record(n)),
            }
            let busy = state.workers[usize::from(n)] != Worker::Idle;
            if busy && state.faults < self.bounds.faults {
                steps.push(Step::WorkerDies(n));
            }
        }
    }

    /// The news of the order may come any time, and again.
    fn may_begin(&self, state: &State) -> bool {
        if state.pg.payments.contains_key(&PAYMENT) {
            return false;
        }
        let waits = state.status() == OrderStatus::Reserved
            && state.moment() == Moment::Early
            && !state.is_locked();
        waits || self.rules.breaks(Mutation::ChargeWithoutGuard)
    }

    pub(super) fn take_ours(&self, state: &mut State, step: Step) {
        match step {
            Step::BeginLocks => {
                let waits =
                    state.status() == OrderStatus::Reserved && state.moment() == Moment::Early;
                if !waits {
                    state.broken = Some(Broken::ChargedForNothing);
                }
                state.begins = true;
            }
            Step::BeginCommits => {
                state.begins = false;
                // What was read under the lock still holds: it is shared until here.
                let moment = state.moment();
                if let Some(order) = state.pg.orders.get_mut(&ORDER) {
                    order.moment = Moment::Early;
                }
                state.pg.begin_payment(ORDER, PAYMENT, self.rules);
                if let Some(order) = state.pg.orders.get_mut(&ORDER) {
                    order.moment = moment;
                }
            }
            Step::WorkerStarts(n) => state.workers[usize::from(n)] = Worker::Charging,
            Step::WorkerAsks(n) => self.ask(state, n),
            Step::Charge(n, captures) => {
                let known = self.charge(state, n, captures);
                state.workers[usize::from(n)] = known;
            }
            Step::ChargeUnheard(n, captures) => {
                state.faults += 1;
                self.charge(state, n, captures);
                state.workers[usize::from(n)] = if self.rules.breaks(Mutation::SweepGivesUp) {
                    Worker::Failed
                } else {
                    Worker::Idle
                };
            }
            Step::CancelCharge(n) => {
                if state.charges[0] == Charge::None {
                    self.tally.hit("a key is canceled at the gateway");
                    state.charges[0] = Charge::Canceled;
                } else if state.charges[0] == Charge::Captured {
                    self.tally.hit("a cancel at the gateway meets a capture");
                }
                state.workers[usize::from(n)] = known(state.charges[0]);
            }
            Step::Record(n) => self.record(state, n),
            Step::WorkerDies(n) => {
                state.faults += 1;
                state.workers[usize::from(n)] = Worker::Idle;
            }
            _ => {}
        }
    }

    /// The sweep asks by key before it does anything; an order that has ended or has no time left
    /// is not charged by it.
    fn ask(&self, state: &mut State, n: u8) {
        let waits = state.status() == OrderStatus::Reserved && state.moment() == Moment::Early;
        state.workers[usize::from(n)] = match state.charges[0] {
            Charge::None if waits => Worker::Charging,
            Charge::None => Worker::Canceling,
            found => {
                self.tally.hit("an unknown charge is found by its key");
                known(found)
            }
        };
    }

    /// The gateway does at most one thing per key, and says it again.
    fn charge(&self, state: &mut State, n: u8, captures: bool) -> Worker {
        let key = if self.rules.breaks(Mutation::ChargeKeyPerAttempt) {
            usize::from(n)
        } else {
            0
        };
        if state.charges[key] == Charge::None {
            state.charges[key] = if captures {
                Charge::Captured
            } else {
                Charge::Declined
            };
        }
        known(state.charges[key])
    }

    /// Once: a payment that is recorded stays as it is.
    fn record(&self, state: &mut State, n: u8) {
        let worker = std::mem::replace(&mut state.workers[usize::from(n)], Worker::Idle);
        let captured = worker == Worker::Captured;
        let units = if captured { PRICE } else { 0 };
        if !state.pg.record_charge(PAYMENT, units) {
            return;
        }
        state.log.push(if captured {
            News::Completed {
                payment: PAYMENT,
                order: ORDER,
                amount: PRICE,
            }
        } else {
            News::Failed {
                payment: PAYMENT,
                order: ORDER,
                is_final: true,
            }
        });
    }
}

fn known(charge: Charge) -> Worker {
    match charge {
        Charge::Captured => Worker::Captured,
        Charge::None | Charge::Declined | Charge::Canceled => Worker::Failed,
    }
}

pub(super) fn is_pending(state: &State) -> bool {
    let row = state.pg.payments.get(&PAYMENT);
    row.is_some_and(|row| row.state == PaymentState::Pending)
}
