//! The gate of one shard as plain Rust: what the scripts are to do, without Redis, clocks or
//! batches. A property test runs random commands against both and compares answers and state; the
//! model of the whole protocol builds on it.

use std::collections::BTreeMap;

use contracts::{HoldId, Sku};
use domain::gate::{Buyer, Hold, Register};

use crate::{
    BuyersOutcome, EpochOutcome, EpochState, GateRow, KeepOutcome, RegisterOutcome, ReserveOutcome,
    SettleOutcome, StoredHold,
};

/// One shard. Cloned and compared by tests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Model {
    /// The newest epoch.
    pub epoch: Option<EpochState>,
    /// Per SKU.
    pub gates: BTreeMap<Sku, GateRow>,
    /// Units held and owned, of the SKUs with a per-customer limit; never 0.
    pub buyers: BTreeMap<(Sku, Buyer), i64>,
    /// All holds.
    pub holds: BTreeMap<HoldId, StoredHold>,
}

impl Model {
    /// All keys are lost.
    pub fn wipe(&mut self) {
        *self = Self::default();
    }

    /// Begins an epoch, closed and empty.
    pub fn begin_epoch(&mut self, epoch: &str, replaces: Option<&str>) -> EpochOutcome {
        if self.epoch.as_ref().map(|state| state.epoch.as_str()) != replaces {
            return EpochOutcome::Superseded;
        }
        self.wipe();
        self.epoch = Some(EpochState {
            epoch: epoch.to_owned(),
            open: false,
        });
        EpochOutcome::Begun
    }

    /// Opens the epoch when it is the newest one.
    pub fn open_epoch(&mut self, epoch: &str) -> EpochOutcome {
        match &mut self.epoch {
            Some(state) if state.epoch == epoch => {
                state.open = true;
                EpochOutcome::Opened
            }
            _ => EpochOutcome::Superseded,
        }
    }

    /// Decides one order.
    pub fn reserve(&mut self, now_ms: i64, hold: &Hold) -> ReserveOutcome {
        if !self.epoch.as_ref().is_some_and(|state| state.open) {
            return ReserveOutcome::NoGate;
        }
        if let Some(stored) = self.holds.get(&hold.hold_id) {
            return if stored.hold == *hold {
                ReserveOutcome::Known
            } else {
                ReserveOutcome::Other
            };
        }
        match self.refusal(now_ms, hold) {
            Some(refusal) => refusal,
            None => {
                self.place(hold);
                ReserveOutcome::Ok
            }
        }
    }

    fn refusal(&self, now_ms: i64, hold: &Hold) -> Option<ReserveOutcome> {
        let rows: Option<Vec<_>> = hold
            .lines
            .iter()
            .map(|line| self.gates.get(&line.sku).map(|gate| (line, gate)))
            .collect();
        let Some(rows) = rows else {
            return Some(ReserveOutcome::NoGate);
        };
        let units = |sku: &Sku| {
            self.buyers
                .get(&(sku.clone(), hold.buyer.clone()))
                .copied()
                .unwrap_or_default()
        };
        let any = |rule: &dyn Fn(&Sku, i64, &GateRow) -> bool| {
            rows.iter()
                .any(|(line, gate)| rule(&line.sku, i64::from(line.quantity.get()), gate))
        };
        if any(&|_, _, gate| gate.opens_at_ms.is_some_and(|at| now_ms < at)) {
            Some(ReserveOutcome::NotOpen)
        } else if any(&|_, _, gate| gate.closes_at_ms.is_some_and(|at| now_ms >= at)) {
            Some(ReserveOutcome::Over)
        } else if any(&|sku, more, gate| {
            gate.per_customer_limit
                .is_some_and(|limit| units(sku) + more > limit)
        }) {
            Some(ReserveOutcome::Limit)
        } else if any(&|_, more, gate| gate.limit - gate.held < more) {
            Some(ReserveOutcome::SoldOut)
        } else {
            None
        }
    }

    fn place(&mut self, hold: &Hold) {
        let mut counted = Vec::with_capacity(hold.lines.len());
        for line in &hold.lines {
            let units = i64::from(line.quantity.get());
            let Some(gate) = self.gates.get_mut(&line.sku) else {
                continue;
            };
            gate.held += units;
            counted.push(gate.per_customer_limit.is_some());
            if gate.per_customer_limit.is_some() {
                self.add_buyer_units(&line.sku, &hold.buyer, units);
            }
        }
        self.holds.insert(
            hold.hold_id,
            StoredHold {
                hold: hold.clone(),
                counted,
            },
        );
    }

    fn add_buyer_units(&mut self, sku: &Sku, buyer: &Buyer, more: i64) {
        let key = (sku.clone(), buyer.clone());
        let units = self.buyers.get(&key).copied().unwrap_or_default() + more;
        if units > 0 {
            self.buyers.insert(key, units);
        } else {
            self.buyers.remove(&key);
        }
    }

    /// Whether the units of a stored hold are in `held`: they are not when a gate was lost alone.
    fn can_lift(&self, stored: &StoredHold) -> bool {
        stored.hold.lines.iter().all(|line| {
            self.gates
                .get(&line.sku)
                .is_some_and(|gate| gate.held >= i64::from(line.quantity.get()))
        })
    }

    fn lift(&mut self, stored: &StoredHold, give_back: bool) {
        for (line, counted) in stored.hold.lines.iter().zip(&stored.counted) {
            let units = i64::from(line.quantity.get());
            if let Some(gate) = self.gates.get_mut(&line.sku) {
                gate.held -= units;
            }
            if give_back && *counted {
                self.add_buyer_units(&line.sku, &stored.hold.buyer, -units);
            }
        }
        self.holds.remove(&stored.hold.hold_id);
    }

    /// Takes a register when it is newer.
    pub fn put_register(&mut self, register: &Register) -> RegisterOutcome {
        if self.epoch.is_none() {
            return RegisterOutcome::NoGate;
        }
        let known = self.gates.get(&register.sku);
        if known.is_some_and(|gate| gate.version >= register.version) {
            return RegisterOutcome::Old;
        }
        let row = GateRow {
            limit: register.limit,
            version: register.version,
            held: known.map_or(0, |gate| gate.held),
            opens_at_ms: register.opens_at_ms,
            closes_at_ms: register.closes_at_ms,
            per_customer_limit: register.per_customer_limit,
        };
        self.gates.insert(register.sku.clone(), row);
        RegisterOutcome::Set
    }

    /// Makes the hold be there.
    pub fn keep(&mut self, hold: &Hold) -> KeepOutcome {
        if self.epoch.is_none() {
            return KeepOutcome::NoGate;
        }
        let before = self.holds.get(&hold.hold_id).cloned();
        if before.as_ref().is_some_and(|stored| stored.hold == *hold) {
            return KeepOutcome::Kept;
        }
        if before.as_ref().is_some_and(|stored| !self.can_lift(stored)) {
            return KeepOutcome::Damaged;
        }
        if hold
            .lines
            .iter()
            .any(|line| !self.gates.contains_key(&line.sku))
        {
            return KeepOutcome::NoGate;
        }
        if let Some(stored) = &before {
            self.lift(stored, true);
        }
        self.place(hold);
        if before.is_some() {
            KeepOutcome::Replaced
        } else {
            KeepOutcome::Added
        }
    }

    /// Ends a hold whose order is confirmed.
    pub fn commit(&mut self, hold_id: HoldId) -> SettleOutcome {
        self.settle(hold_id, false)
    }

    /// Ends a hold whose order is no more.
    pub fn release(&mut self, hold_id: HoldId) -> SettleOutcome {
        self.settle(hold_id, true)
    }

    fn settle(&mut self, hold_id: HoldId, give_back: bool) -> SettleOutcome {
        if self.epoch.is_none() {
            return SettleOutcome::NoGate;
        }
        let Some(stored) = self.holds.get(&hold_id).cloned() else {
            return SettleOutcome::Absent;
        };
        if !self.can_lift(&stored) {
            return SettleOutcome::Damaged;
        }
        self.lift(&stored, give_back);
        SettleOutcome::Done
    }

    /// Sets a buyer's units while they are what was seen.
    pub fn correct_buyer(
        &mut self,
        sku: &Sku,
        buyer: &Buyer,
        seen: i64,
        units: i64,
    ) -> BuyersOutcome {
        if self.epoch.is_none() {
            return BuyersOutcome::NoGate;
        }
        let now = self
            .buyers
            .get(&(sku.clone(), buyer.clone()))
            .copied()
            .unwrap_or_default();
        if now != seen {
            return BuyersOutcome::Changed;
        }
        self.add_buyer_units(sku, buyer, units - now);
        BuyersOutcome::Set
    }
}
