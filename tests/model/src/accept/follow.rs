//! How the gate follows what PostgreSQL says (P7, P10): syncs that read and apply, the sweep of
//! holds without an order, the rebuild of a gate that was lost, and what all of these mend at rest.

use domain::OrderStatus;

use super::{Accept, Attempt, Rebuild, State, Sync};
use crate::{
    Mutation,
    protocol::{
        Key,
        gate::{GateOp, Word, apply},
        pg::View,
    },
};

impl Accept {
    /// Whether the sweep may look at a hold.
    pub(super) fn is_due(&self, state: &State, key: Key) -> bool {
        let of_key = |place: usize| {
            let sending = self.bounds.sendings.get(place);
            sending.is_some_and(|sending| sending.key == key)
        };
        let mut attempts = state.attempts.iter().enumerate();
        let touched = attempts.any(|(place, attempt)| {
            of_key(place) && attempt.touched && attempt.is_under_way() && !attempt.late
        });
        let open = state.zombie.is_some_and(|n| of_key(usize::from(n)));
        !touched && !open
    }

    pub(super) fn read(&self, state: &State, key: Key) -> Sync {
        Sync {
            key,
            view: state.pg.view(key),
            orphan: state.pg.order_of(key).is_none(),
            register: state.pg.skus[0]
                .map(|sku| sku.register())
                .unwrap_or_default(),
        }
    }

    pub(super) fn start_sync(&self, state: &mut State, sync: Sync) -> bool {
        if state.syncs.contains(&sync) {
            return false;
        }
        state.syncs.push(sync);
        state
            .syncs
            .sort_by_key(|sync| (sync.key, sync.register.version));
        true
    }

    pub(super) fn apply_sync(&self, state: &mut State, sync: &Sync) {
        if sync.orphan && sync.view == View::Released {
            if state.pg.order_of(sync.key).is_some() || !self.is_due(state, sync.key) {
                // A retry came between the sweep's question and its answer.
                state.clean = false;
            } else if state.gate.holds.contains_key(&sync.key) {
                self.tally.hit("the sweep gives an orphan's units back");
            }
        }
        let hold = state.pg.order_of(sync.key).map(|(_, order)| order.hold);
        let hold = hold.or_else(|| state.gate.holds.get(&sync.key).map(|stored| stored.hold));
        let put = GateOp::Put {
            sku: 0,
            register: sync.register,
        };
        let word = apply(&mut state.gate, &put, self.rules);
        let newer =
            state.gate.rows[0].is_some_and(|row| row.register.version > sync.register.version);
        if word == Word::Old && newer {
            self.tally.hit("a sync is older than the gate");
        }
        let Some(hold) = hold else {
            return;
        };
        let key = sync.key;
        let op = match sync.view {
            View::Live => GateOp::Keep { key, hold },
            View::Committed => GateOp::Commit { key, hold },
            View::Released => GateOp::Release { key, hold },
        };
        apply(&mut state.gate, &op, self.rules);
    }

    pub(super) fn rebuild(&self, state: &mut State, n: usize) {
        let next = match state.rebuilds[n].clone() {
            Rebuild::Looked { replaces } => {
                let epoch = state.epochs;
                let op = GateOp::Begin { epoch, replaces };
                let before = state.gate.clone();
                match apply(&mut state.gate, &op, self.rules) {
                    Word::Begun => {
                        if !before.holds.is_empty() {
                            self.forget(state);
                        }
                        state.epochs += 1;
                        if state.attempts.iter().any(Attempt::is_under_way) {
                            self.tally
                                .hit("the gate is rebuilt while a request is under way");
                        }
                        Some(Rebuild::Begun { epoch })
                    }
                    _ => {
                        self.tally.hit("a rebuild is overtaken");
                        None
                    }
                }
            }
            Rebuild::Begun { epoch } => {
                self.put_register(state);
                if self.rules.breaks(Mutation::OpenBeforeHolds) {
                    apply(&mut state.gate, &GateOp::Open { epoch }, self.rules);
                }
                Some(Rebuild::Registers { epoch })
            }
            Rebuild::Registers { epoch } => {
                let orders = state.pg.orders.values();
                let live = orders.filter(|order| order.status == OrderStatus::Reserved);
                let live = live.map(|order| order.key).collect();
                Some(Rebuild::Read { epoch, live })
            }
            Rebuild::Read { epoch, live } => {
                for key in live {
                    if let Some((_, order)) = state.pg.order_of(key) {
                        let hold = order.hold;
                        apply(&mut state.gate, &GateOp::Keep { key, hold }, self.rules);
                    }
                }
                Some(Rebuild::Kept { epoch })
            }
            Rebuild::Kept { epoch } => {
                self.correct_buyers(state);
                let word = apply(&mut state.gate, &GateOp::Open { epoch }, self.rules);
                if word == Word::Superseded {
                    self.tally.hit("a rebuild is overtaken");
                }
                None
            }
        };
        match next {
            Some(next) => state.rebuilds[n] = next,
            None => {
                state.rebuilds.remove(n);
            }
        }
    }

    fn put_register(&self, state: &mut State) {
        if let Some(sku) = state.pg.skus[0] {
            let register = sku.register();
            apply(
                &mut state.gate,
                &GateOp::Put { sku: 0, register },
                self.rules,
            );
        }
    }

    fn correct_buyers(&self, state: &mut State) {
        for (buyer, units) in (0_u8..).zip(state.pg.bought[0]) {
            let seen = state.gate.bought[0][usize::from(buyer)];
            if seen != units {
                let op = GateOp::CorrectBuyer {
                    sku: 0,
                    buyer,
                    seen,
                    units,
                };
                apply(&mut state.gate, &op, self.rules);
            }
        }
    }

    /// What the nets do at rest: a rebuild when the epoch is gone, the sweep of all holds, and the
    /// drift check, which keeps what is missing and syncs what is there.
    pub(super) fn mend(&self, state: &mut State) {
        if !state.gate.is_open() {
            let replaces = state.gate.epoch.map(|epoch| epoch.id);
            let epoch = state.epochs;
            state.epochs += 1;
            apply(
                &mut state.gate,
                &GateOp::Begin { epoch, replaces },
                self.rules,
            );
            self.put_register(state);
            self.keep_live(state);
            apply(&mut state.gate, &GateOp::Open { epoch }, self.rules);
        }
        let held: Vec<Key> = state.gate.holds.keys().copied().collect();
        for key in held {
            let sync = self.read(state, key);
            self.apply_sync(state, &sync);
        }
        self.put_register(state);
        self.keep_live(state);
        self.correct_buyers(state);
    }

    fn keep_live(&self, state: &mut State) {
        let orders = state.pg.orders.values();
        let live: Vec<_> = orders
            .filter(|order| order.status == OrderStatus::Reserved)
            .map(|order| (order.key, order.hold))
            .collect();
        for (key, hold) in live {
            apply(&mut state.gate, &GateOp::Keep { key, hold }, self.rules);
        }
    }
}
