//! Makes holds and registers match what PostgreSQL says of them, in one go (P7).

use std::collections::{BTreeMap, BTreeSet};

use contracts::Sku;
use domain::gate::{Hold, HoldState, HoldView, Register, Shard};

use crate::{Gate, GateError, KeepOutcome, RegisterOutcome, SettleOutcome, settle::Verb};

/// What a sync did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// Holds that were added or replaced: the gate had lost or mistaken them.
    pub added: usize,
    /// Holds that were there as they should.
    pub kept: usize,
    /// Holds that were there and have ended.
    pub ended: usize,
    /// Holds that were to end and were not there.
    pub absent: usize,
    /// Holds that could not be decided because the shard has no epoch or no gate for a SKU: the
    /// rebuild finds them in PostgreSQL.
    pub no_gate: usize,
    /// Holds or registers that met a damaged key: the shard needs a rebuild.
    pub damaged: usize,
}

impl Gate {
    /// Keeps, commits or releases each hold as PostgreSQL says. Ignores why it is called.
    ///
    /// # Errors
    /// [`GateError`]; part of it may have been done, and all of it may be repeated.
    pub async fn sync(
        &self,
        shard: Shard,
        views: &[HoldView],
        registers: &[Register],
    ) -> Result<SyncReport, GateError> {
        let of = |state: HoldState| -> Vec<&Hold> {
            views
                .iter()
                .filter(|view| view.state == state)
                .map(|view| &view.hold)
                .collect()
        };
        let mut report = SyncReport::default();
        // Each register is told once.
        let mut told: BTreeSet<Sku> = BTreeSet::new();
        let next_check = self.inner.config.next_check;
        // Ends first: the units are free a moment sooner.
        for (verb, state) in [
            (Verb::Commit, HoldState::Committed),
            (Verb::Release, HoldState::Released),
        ] {
            let holds = of(state);
            if !holds.is_empty() {
                let own = registers_of(&holds, registers, &told);
                let (outcomes, said) = self.settle(verb, shard, &holds, &own).await?;
                report.count_settled(&outcomes);
                report.count_registers(&said);
                told.extend(said.into_keys());
            }
        }
        let verb = Verb::Keep { next_check };
        let rest: Vec<Register> = registers
            .iter()
            .filter(|register| !told.contains(&register.sku))
            .cloned()
            .collect();
        let (outcomes, said) = self
            .settle(verb, shard, &of(HoldState::Live), &rest)
            .await?;
        report.count_kept(&outcomes);
        report.count_registers(&said);
        Ok(report)
    }
}

/// The registers of the SKUs that these holds name, but for those that were told.
fn registers_of(holds: &[&Hold], registers: &[Register], told: &BTreeSet<Sku>) -> Vec<Register> {
    let skus: BTreeSet<&Sku> = holds
        .iter()
        .flat_map(|hold| hold.lines.iter().map(|line| &line.sku))
        .collect();
    registers
        .iter()
        .filter(|register| skus.contains(&register.sku) && !told.contains(&register.sku))
        .cloned()
        .collect()
}

impl SyncReport {
    fn count_settled(&mut self, outcomes: &[SettleOutcome]) {
        for outcome in outcomes {
            match outcome {
                SettleOutcome::Done => self.ended += 1,
                SettleOutcome::Absent => self.absent += 1,
                SettleOutcome::Mismatch | SettleOutcome::NoGate => self.no_gate += 1,
                SettleOutcome::Damaged => self.damaged += 1,
            }
        }
    }

    fn count_kept(&mut self, outcomes: &[KeepOutcome]) {
        for outcome in outcomes {
            match outcome {
                KeepOutcome::Kept => self.kept += 1,
                KeepOutcome::Added | KeepOutcome::Replaced => self.added += 1,
                KeepOutcome::Mismatch | KeepOutcome::NoGate => self.no_gate += 1,
                KeepOutcome::Damaged => self.damaged += 1,
            }
        }
    }

    fn count_registers(&mut self, said: &BTreeMap<Sku, RegisterOutcome>) {
        self.damaged += said
            .values()
            .filter(|outcome| **outcome == RegisterOutcome::Damaged)
            .count();
    }
}
