//! What orders and their ends ask of the gate: reserve, keep, commit and release, registers, and the
//! units of buyers.

use model::protocol::{BUYERS, Hold, Key, SKUS, gate::GateOp};
use rand::RngExt;
use reservations::BuyerUnits;

use super::{PATIENCE, Walk};
use crate::{
    agreement::{Agreed, same},
    names::{self, SHARD},
};

#[derive(Debug, Clone, Copy)]
pub(super) enum Verb {
    Keep,
    Commit,
    Release,
}

impl Verb {
    fn op(self, key: Key, hold: Hold) -> GateOp {
        match self {
            Self::Keep => GateOp::Keep { key, hold },
            Self::Commit => GateOp::Commit { key, hold },
            Self::Release => GateOp::Release { key, hold },
        }
    }
}

impl Walk {
    pub(super) async fn reserve(&mut self) -> Agreed {
        let (holds, now) = (self.holds(), self.rng.random_range(0..100));
        self.history.tell(format!("reserve at {now}: {holds:?}"));
        let asked = self.real(&holds);
        let answers = self.gate.reserve(SHARD, i64::from(now), &asked).await;
        let real: Vec<&str> = answers.into_iter().map(|one| one.as_str()).collect();
        let mut model = Vec::with_capacity(holds.len());
        for (key, hold) in holds {
            model.push(self.run(&GateOp::Reserve { now, key, hold }).as_str());
        }
        same("reserve", &real, &model)
    }

    /// keep, commit or release, with registers.
    pub(super) async fn tell(&mut self, verb: Verb) -> Agreed {
        let (holds, registers) = (self.holds(), self.registers(0.15));
        self.history
            .tell(format!("{verb:?} {holds:?} with {registers:?}"));
        let asked = self.real(&holds);
        let told: Vec<_> = registers
            .iter()
            .map(|(sku, register)| names::register(*sku, register))
            .collect();
        let real: Vec<&str> = match verb {
            Verb::Keep => {
                let answers = self
                    .gate
                    .keep(SHARD, &asked, &told, PATIENCE)
                    .await
                    .unwrap();
                answers.into_iter().map(|one| one.as_str()).collect()
            }
            Verb::Commit => {
                let answers = self.gate.commit(SHARD, &asked, &told).await.unwrap();
                answers.into_iter().map(|one| one.as_str()).collect()
            }
            Verb::Release => {
                let answers = self.gate.release(SHARD, &asked, &told).await.unwrap();
                answers.into_iter().map(|one| one.as_str()).collect()
            }
        };
        for (sku, register) in registers {
            self.run(&GateOp::Put { sku, register });
        }
        let model = self.run_all(verb, &holds);
        same(&format!("{verb:?}"), &real, &model)
    }

    /// As the client does it: holds whose stored lines name SKUs that the call does not name come
    /// last, in a second call that names those too.
    fn run_all(&mut self, verb: Verb, holds: &[(Key, Hold)]) -> Vec<&'static str> {
        let named = |sku: usize| holds.iter().any(|(_, hold)| hold.lines[sku] > 0);
        let mut words = vec![""; holds.len()];
        let mut later = Vec::new();
        for (place, (key, hold)) in holds.iter().enumerate() {
            let stored = self.model.holds.get(key);
            if stored.is_some_and(|stored| stored.hold.lines().any(|(sku, _)| !named(sku))) {
                later.push(place);
            } else {
                words[place] = self.run(&verb.op(*key, *hold)).as_str();
            }
        }
        for place in later {
            let (key, hold) = holds[place];
            words[place] = self.run(&verb.op(key, hold)).as_str();
        }
        words
    }

    pub(super) async fn put(&mut self) -> Agreed {
        let registers = self.registers(0.8);
        self.history.tell(format!("put {registers:?}"));
        let told: Vec<_> = registers
            .iter()
            .map(|(sku, register)| names::register(*sku, register))
            .collect();
        let answers = self.gate.put_registers(SHARD, &told).await.unwrap();
        let real: Vec<&str> = answers.into_iter().map(|one| one.as_str()).collect();
        let mut model = Vec::with_capacity(registers.len());
        for (sku, register) in registers {
            model.push(self.run(&GateOp::Put { sku, register }).as_str());
        }
        same("put", &real, &model)
    }

    pub(super) async fn correct_buyer(&mut self) -> Agreed {
        let sku = self.rng.random_range(0..SKUS);
        let buyer = self.rng.random_range(0..u8::try_from(BUYERS).unwrap());
        let known = self.model.bought[sku][usize::from(buyer)];
        let seen = known + i32::from(self.rng.random_bool(0.4));
        let units = self.rng.random_range(0..=4);
        self.history
            .tell(format!("buyer {buyer} of {sku}: {seen} becomes {units}"));
        let change = [BuyerUnits {
            buyer: names::buyer(buyer),
            seen: i64::from(seen),
            units: i64::from(units),
        }];
        let name = names::sku(sku);
        let answers = self.gate.correct_buyers(SHARD, &name, &change).await;
        let word = self.run(&GateOp::CorrectBuyer {
            sku,
            buyer,
            seen,
            units,
        });
        same(
            "a buyer's correction",
            answers.unwrap()[0].as_str(),
            word.as_str(),
        )
    }
}
