//! The second implementation of the port: a provider in memory.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Unbounded},
    sync::{Mutex, MutexGuard},
};

use contracts::{Money, OrderId, PaymentId, PaymentMethod, RefundKey};
use payment::gateway::{
    Answer, Charge, ChargeOutcome, GatewayError, JournalEntry, JournalPage, NewCharge, NewRefund,
    PaymentGateway, RefundOutcome,
};

/// How the provider answers the next requests.
#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) enum Mood {
    #[default]
    Well,
    /// Executes, and the answer is lost.
    Silent,
    /// Does nothing.
    Down,
    Declines {
        is_final: bool,
    },
    /// Captures one unit more.
    Greedy,
    /// Executes for as long as nobody cancels.
    Slow,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) mood: Mood,
    pub(crate) charges: BTreeMap<String, Charge>,
    pub(crate) references: BTreeMap<String, PaymentId>,
    pub(crate) refunds: BTreeMap<RefundKey, Money>,
    pub(crate) charge_calls: usize,
    pub(crate) captures: usize,
    pub(crate) refund_calls: usize,
    pub(crate) refunds_executed: usize,
}

#[derive(Default)]
pub(crate) struct FakeGateway {
    state: Mutex<State>,
}

impl FakeGateway {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn is(&self, mood: Mood) {
        self.state().mood = mood;
    }
}

impl State {
    fn outcome(&mut self, amount: Money) -> ChargeOutcome {
        let at = platform::clock::now();
        match self.mood {
            Mood::Declines { is_final } => ChargeOutcome::Declined {
                reason_code: "card-declined".into(),
                is_final,
            },
            Mood::Greedy => {
                self.captures += 1;
                let amount = Money {
                    amount_minor: amount.amount_minor + 1,
                    ..amount
                };
                ChargeOutcome::Captured { amount, at }
            }
            Mood::Slow => ChargeOutcome::Pending,
            Mood::Well | Mood::Silent | Mood::Down => {
                self.captures += 1;
                ChargeOutcome::Captured { amount, at }
            }
        }
    }

    fn answer<T>(&self, value: T) -> Answer<T> {
        match self.mood {
            Mood::Silent => Err(GatewayError::TimedOut),
            Mood::Down => Err(GatewayError::Unavailable { status: 503 }),
            Mood::Well | Mood::Declines { .. } | Mood::Greedy | Mood::Slow => Ok(value),
        }
    }

    pub(crate) fn capture(&mut self, key: &str, order_id: OrderId, amount: Money) {
        let outcome = self.outcome(amount);
        let charge = Charge {
            key: key.into(),
            order_id: Some(order_id),
            outcome,
        };
        self.charges.insert(key.into(), charge);
    }
}

impl PaymentGateway for FakeGateway {
    async fn charge(&self, new: &NewCharge) -> Answer<Charge> {
        let mut state = self.state();
        state.charge_calls += 1;
        if state.mood == Mood::Down {
            return Err(GatewayError::Unavailable { status: 503 });
        }
        if !state.charges.contains_key(&new.key) {
            state.capture(&new.key, new.order_id, new.amount);
            let reference = new.reference.clone();
            state.references.insert(new.key.clone(), reference);
        }
        state.answer(state.charges[&new.key].clone())
    }

    async fn find_charge(&self, key: &str) -> Answer<Option<Charge>> {
        let state = self.state();
        if state.mood == Mood::Down {
            return Err(GatewayError::Unavailable { status: 503 });
        }
        Ok(state.charges.get(key).cloned())
    }

    async fn cancel_charge(&self, key: &str) -> Answer<Charge> {
        let mut state = self.state();
        let canceled = Charge {
            key: key.into(),
            order_id: None,
            outcome: ChargeOutcome::Canceled,
        };
        let charge = state.charges.entry(key.into()).or_insert(canceled);
        if charge.outcome == ChargeOutcome::Pending {
            charge.outcome = ChargeOutcome::Canceled;
        }
        let charge = charge.clone();
        state.answer(charge)
    }

    async fn journal(&self, after: &str, limit: usize) -> Answer<JournalPage> {
        let state = self.state();
        if state.mood == Mood::Down {
            return Err(GatewayError::Unavailable { status: 503 });
        }
        let after = after.to_owned();
        let later = state.charges.range((Excluded(after), Unbounded));
        let entries: Vec<JournalEntry> = later
            .clone()
            .take(limit)
            .map(|(key, charge)| JournalEntry {
                charge: charge.clone(),
                reference: state.references.get(key).cloned(),
                method: charge
                    .order_id
                    .map(|_| PaymentMethod::parse("card").unwrap()),
            })
            .collect();
        let last = entries.last().map(|entry| entry.charge.key.clone());
        Ok(JournalPage {
            next: last.filter(|_| later.count() > limit),
            entries,
        })
    }

    async fn refund(&self, new: &NewRefund) -> Answer<RefundOutcome> {
        let mut state = self.state();
        state.refund_calls += 1;
        if state.mood == Mood::Down {
            return Err(GatewayError::Unavailable { status: 503 });
        }
        if !state.charges.contains_key(&new.charge_key) {
            return Ok(RefundOutcome::Refused {
                reason_code: "unknown-charge".into(),
            });
        }
        if state.refunds.insert(new.key.clone(), new.amount).is_none() {
            state.refunds_executed += 1;
        }
        state.answer(RefundOutcome::Refunded { amount: new.amount })
    }

    async fn find_refund(&self, key: &RefundKey) -> Answer<Option<RefundOutcome>> {
        let state = self.state();
        if state.mood == Mood::Down {
            return Err(GatewayError::Unavailable { status: 503 });
        }
        Ok(state
            .refunds
            .get(key)
            .map(|amount| RefundOutcome::Refunded { amount: *amount }))
    }
}
