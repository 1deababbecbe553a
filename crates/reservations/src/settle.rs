//! Makes the gate match what PostgreSQL says: `keep`, `commit` and `release` (P7).
//!
//! Guarantee: each may be called late, twice or never. A hold is counted once and lifted once,
//! whatever lines the caller names: where the stored ones differ, they are read and the call is made
//! again with their keys.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use contracts::Sku;
use domain::gate::{Hold, Register, Shard};

use crate::{
    Gate, GateError, KeepOutcome, RegisterOutcome, SettleOutcome, StoredHold,
    connection::Invocation,
    outcome::Word,
    script::{self, BATCH_MAX, Script},
    wire::{PerSku, SkuTable, chunks, is_canonical},
};

/// How often a call is made with the keys of other stored lines before the answer is `Mismatch`.
const ATTEMPTS: usize = 3;

/// What is done to holds.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Verb {
    Keep { next_check: Duration },
    Commit,
    Release,
}

impl Verb {
    fn script(self) -> &'static Script {
        match self {
            Self::Keep { .. } => &script::KEEP,
            Self::Commit => &script::COMMIT,
            Self::Release => &script::RELEASE,
        }
    }

    fn per_sku(self) -> PerSku {
        match self {
            Self::Keep { .. } | Self::Release => PerSku::GateAndBuyers,
            Self::Commit => PerSku::Gate,
        }
    }
}

/// An outcome of a verb that is told the lines of a hold.
pub(crate) trait HoldWord: Word + PartialEq {
    const MISMATCH: Self;
    const NO_GATE: Self;
}
impl HoldWord for KeepOutcome {
    const MISMATCH: Self = Self::Mismatch;
    const NO_GATE: Self = Self::NoGate;
}
impl HoldWord for SettleOutcome {
    const MISMATCH: Self = Self::Mismatch;
    const NO_GATE: Self = Self::NoGate;
}

impl Gate {
    /// Adds the holds that are missing, replaces those with other lines, and has the sweep ask
    /// again in `next_check`. Registers are taken when they are newer. One outcome per hold.
    ///
    /// # Errors
    /// [`GateError`]; the call may have been executed and may be repeated.
    pub async fn keep(
        &self,
        shard: Shard,
        holds: &[Hold],
        registers: &[Register],
        next_check: Duration,
    ) -> Result<Vec<KeepOutcome>, GateError> {
        let holds: Vec<&Hold> = holds.iter().collect();
        Ok(self
            .settle(Verb::Keep { next_check }, shard, &holds, registers)
            .await?
            .0)
    }

    /// Ends holds whose orders are confirmed; their buyers keep the units. Registers are taken when
    /// they are newer. One outcome per hold.
    ///
    /// # Errors
    /// [`GateError`]; the call may have been executed and may be repeated.
    pub async fn commit(
        &self,
        shard: Shard,
        holds: &[Hold],
        registers: &[Register],
    ) -> Result<Vec<SettleOutcome>, GateError> {
        let holds: Vec<&Hold> = holds.iter().collect();
        Ok(self.settle(Verb::Commit, shard, &holds, registers).await?.0)
    }

    /// Ends holds whose orders were canceled or expired or never came to be; the units go back to
    /// their buyers' allowance. Registers are taken when they are newer. One outcome per hold.
    ///
    /// # Errors
    /// [`GateError`]; the call may have been executed and may be repeated.
    pub async fn release(
        &self,
        shard: Shard,
        holds: &[Hold],
        registers: &[Register],
    ) -> Result<Vec<SettleOutcome>, GateError> {
        let holds: Vec<&Hold> = holds.iter().collect();
        Ok(self
            .settle(Verb::Release, shard, &holds, registers)
            .await?
            .0)
    }

    /// Tells the gate the limits; a SKU without a gate gets one. One outcome per register.
    ///
    /// # Errors
    /// [`GateError`]; the call may have been executed and may be repeated.
    pub async fn put_registers(
        &self,
        shard: Shard,
        registers: &[Register],
    ) -> Result<Vec<RegisterOutcome>, GateError> {
        let verb = Verb::Keep {
            next_check: self.inner.config.next_check,
        };
        let (_, said) = self
            .settle::<KeepOutcome>(verb, shard, &[], registers)
            .await?;
        Ok(registers
            .iter()
            .map(|register| {
                said.get(&register.sku)
                    .copied()
                    .unwrap_or(RegisterOutcome::NoGate)
            })
            .collect())
    }

    /// All holds and registers in as many calls as it takes; what was said of each hold, in order,
    /// and of each register.
    pub(crate) async fn settle<W: HoldWord>(
        &self,
        verb: Verb,
        shard: Shard,
        holds: &[&Hold],
        registers: &[Register],
    ) -> Result<(Vec<W>, BTreeMap<Sku, RegisterOutcome>), GateError> {
        if let Some(hold) = holds.iter().find(|hold| !is_canonical(hold)) {
            return Err(GateError::NotCanonical(hold.hold_id));
        }
        let mut newest: BTreeMap<&Sku, &Register> = BTreeMap::new();
        for register in registers {
            let known = newest.entry(&register.sku).or_insert(register);
            if register.version > known.version {
                *known = register;
            }
        }
        let mut words = Vec::with_capacity(holds.len());
        let mut said = BTreeMap::new();
        for (chunk, registers) in with_registers(verb, holds, &newest) {
            words.extend(
                self.settle_chunk::<W>(verb, shard, chunk, &registers, &mut said)
                    .await?,
            );
        }
        let rest: Vec<&Sku> = newest
            .keys()
            .copied()
            .filter(|sku| !said.contains_key(*sku))
            .collect();
        for skus in rest.chunks(BATCH_MAX) {
            let table = SkuTable::new(&[], skus.iter().copied()).with_registers(&newest);
            let verb = Verb::Keep {
                next_check: self.inner.config.next_check,
            };
            self.call::<KeepOutcome>(verb, shard, &table, &[], &mut said)
                .await?;
        }
        Ok((words, said))
    }

    /// One chunk, again with the keys of the stored lines where they were others.
    async fn settle_chunk<W: HoldWord>(
        &self,
        verb: Verb,
        shard: Shard,
        holds: &[&Hold],
        registers: &BTreeMap<&Sku, &Register>,
        said: &mut BTreeMap<Sku, RegisterOutcome>,
    ) -> Result<Vec<W>, GateError> {
        let table = SkuTable::new(holds, []).with_registers(registers);
        let mut words: Vec<W> = self.call(verb, shard, &table, holds, said).await?;
        for _ in 1..ATTEMPTS {
            let places: Vec<usize> = (0..holds.len())
                .filter(|n| words[*n] == W::MISMATCH)
                .collect();
            if places.is_empty() {
                break;
            }
            let again: Vec<&Hold> = places.iter().map(|n| holds[*n]).collect();
            let stored = self.stored_skus(shard, &again).await?;
            let table = SkuTable::new(&again, &stored).with_registers(registers);
            let answers: Vec<W> = self.call(verb, shard, &table, &again, said).await?;
            for (place, answer) in places.into_iter().zip(answers) {
                words[place] = answer;
            }
        }
        Ok(words)
    }

    async fn call<W: HoldWord>(
        &self,
        verb: Verb,
        shard: Shard,
        table: &SkuTable<'_>,
        holds: &[&Hold],
        said: &mut BTreeMap<Sku, RegisterOutcome>,
    ) -> Result<Vec<W>, GateError> {
        let script = verb.script();
        let mut tail = Invocation::default();
        table.push_registers(&mut tail)?;
        match verb {
            Verb::Keep { .. } => table.push_holds(holds, &mut tail),
            Verb::Commit | Verb::Release => {
                tail.args.push(holds.len().to_string());
                tail.args
                    .extend(holds.iter().map(|hold| hold.hold_id.to_string()));
            }
        }
        let bound = self.inner.config.call_timeout;
        let reply = self
            .in_newest_epoch(shard, script, bound, |epoch| {
                let keys = table.keys(&self.inner.keys, shard, epoch, verb.per_sku());
                let mut call = Invocation {
                    keys,
                    args: vec![epoch.to_owned()],
                };
                if let Verb::Keep { next_check } = verb {
                    call.args.push(next_check.as_millis().to_string());
                }
                call.args.extend(tail.args.iter().cloned());
                Ok(call)
            })
            .await?;
        let Some(reply) = reply else {
            return Ok(vec![W::NO_GATE; holds.len()]);
        };
        let (about_skus, words) = reply.outcomes::<RegisterOutcome, W>(table.len(), holds.len())?;
        for (sku, outcome) in table.skus().zip(about_skus) {
            if outcome == RegisterOutcome::Damaged {
                tracing::warn!(
                    sku = sku.as_str(),
                    shard = shard.0,
                    "gate of a sku is damaged"
                );
            }
            if outcome != RegisterOutcome::None {
                said.insert(sku.clone(), outcome);
            }
        }
        Ok(words)
    }

    /// The SKUs of the lines that are stored for these holds.
    async fn stored_skus(&self, shard: Shard, holds: &[&Hold]) -> Result<BTreeSet<Sku>, GateError> {
        let ids: Vec<_> = holds.iter().map(|hold| hold.hold_id).collect();
        let stored = self.stored_holds(shard, &ids).await?;
        Ok(stored
            .into_iter()
            .flatten()
            .filter_map(|(id, text)| StoredHold::parse(id, &text))
            .flat_map(|stored| stored.hold.lines.into_iter().map(|line| line.sku))
            .collect())
    }
}

/// The calls, each with the registers that go with it. What was sold lowers a limit, and its units
/// leave `held` with their holds: a register that came before the last of them would count the others
/// twice, and the gate refuse what is there. So it goes with the last that names its SKU; but with the
/// first where holds are added, which need a gate.
fn with_registers<'a, 'h, 'r>(
    verb: Verb,
    holds: &'a [&'h Hold],
    newest: &BTreeMap<&'r Sku, &'r Register>,
) -> Vec<(&'a [&'h Hold], BTreeMap<&'r Sku, &'r Register>)> {
    let mut calls: Vec<_> = chunks(holds)
        .map(|chunk| (chunk, BTreeMap::new()))
        .collect();
    let mut places: BTreeMap<&Sku, usize> = BTreeMap::new();
    for (place, (chunk, _)) in calls.iter().enumerate() {
        for line in chunk.iter().flat_map(|hold| &hold.lines) {
            match verb {
                Verb::Keep { .. } => drop(places.entry(&line.sku).or_insert(place)),
                Verb::Commit | Verb::Release => drop(places.insert(&line.sku, place)),
            }
        }
    }
    for (&sku, &register) in newest {
        if let Some(place) = places.get(sku) {
            calls[*place].1.insert(sku, register);
        }
    }
    calls
}
