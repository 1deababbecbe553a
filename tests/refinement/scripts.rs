//! The scripts of the gate, called by the real client on a real Redis, against the model's gate.
//!
//! `crates/reservations/tests/it/properties.rs` also runs random commands, against a model of the
//! crate's own, with names, limits and lines as they come, and needs no other package. Here the oracle
//! is what the checker walks over.

mod epochs;
mod meets;
mod verbs;

use std::{collections::BTreeMap, time::Duration};

use model::{
    Rules,
    protocol::{
        BUYERS, Hold, Key, SKUS,
        gate::{Gate as Modelled, GateOp, Register, Word, apply},
    },
};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IteratorRandom};
use redis::AsyncCommands;
use reservations::{Gate, GateConfig, GateSnapshot};

use crate::{
    agreement::{Agreed, History, Mismatch, Rows, Walked, commands, same, same_rows, seed},
    coverage::{Coverage, ToBeSeen},
    names::{self, Holds, SHARD},
};

use verbs::Verb;

const KEYS: Key = 24;
/// Commands of one walk, and in `make test` of all.
const PER_WALK: u64 = 2_500;
const COMMANDS: u64 = 5_000;
const OPTION: &str = "HOLDFAST_REFINEMENT_REDIS";
/// As many meet everything that can be.
const WHOLE: u64 = 100_000;
/// A machine that is busy is no outage.
const PATIENCE: Duration = Duration::from_secs(60);

/// A gate for tests under a prefix of its own.
pub(crate) fn gate(url: &str, prefix: &str) -> GateConfig {
    GateConfig {
        key_prefix: prefix.to_owned(),
        reserve_timeout: PATIENCE,
        call_timeout: PATIENCE,
        connect_timeout: PATIENCE,
        ..GateConfig::new(url)
    }
}

pub(crate) async fn raw(url: &str) -> redis::aio::MultiplexedConnection {
    let client = redis::Client::open(url).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

struct Walk {
    gate: Gate,
    raw: redis::aio::MultiplexedConnection,
    prefix: String,
    model: Modelled,
    holds: Holds,
    /// The model's number of an epoch is its place here.
    epochs: Vec<String>,
    rng: StdRng,
    /// What was asked last under a key, to be asked again.
    last: BTreeMap<Key, Hold>,
    version: u32,
    /// A gate was lost alone: from then on the order within a call matters.
    fragile: bool,
    coverage: Coverage,
    history: History,
}

impl Walk {
    async fn new(url: &str, seed: u64) -> Self {
        let unique = contracts::ids::generate().simple().to_string();
        let prefix = format!("refine-{}", &unique[20..]);
        let mut holds = Holds::default();
        for _ in 0..KEYS {
            holds.add();
        }
        Self {
            gate: Gate::new(gate(url, &prefix)).unwrap(),
            raw: raw(url).await,
            prefix,
            model: Modelled::default(),
            holds,
            epochs: Vec::new(),
            rng: StdRng::seed_from_u64(seed),
            last: BTreeMap::new(),
            version: 0,
            fragile: false,
            coverage: Coverage::default(),
            history: History::default(),
        }
    }

    fn run(&mut self, op: &GateOp) -> Word {
        let state = meets::state_of(&self.model, op);
        let word = apply(&mut self.model, op, Rules::default());
        self.coverage.note(meets::command(op), state, word.as_str());
        word
    }

    fn hold(&mut self) -> (Key, Hold) {
        let stored = self.model.holds.keys().copied().choose(&mut self.rng);
        let among_stored = if self.fragile { 0.6 } else { 0.3 };
        let (key, again) = match stored {
            Some(key) if self.rng.random_bool(among_stored) => (key, 0.6),
            _ => (self.rng.random_range(0..KEYS), 0.8),
        };
        if let Some(hold) = self.last.get(&key)
            && self.rng.random_bool(again)
        {
            return (key, *hold);
        }
        let mut lines = [0; SKUS];
        for units in &mut lines {
            if self.rng.random_bool(0.4) {
                *units = self.rng.random_range(1..=3);
            }
        }
        if lines == [0; SKUS] {
            lines[self.rng.random_range(0..SKUS)] = 1;
        }
        let buyer = self.rng.random_range(0..u8::try_from(BUYERS).unwrap());
        let hold = Hold { buyer, lines };
        self.last.insert(key, hold);
        (key, hold)
    }

    /// Holds of one call: mostly a few, now and then as many as a busy moment brings.
    fn holds(&mut self) -> Vec<(Key, Hold)> {
        let most = match self.rng.random_range(0..100) {
            _ if self.fragile => 1,
            0..=89 => 6,
            _ => 60,
        };
        let count = self.rng.random_range(1..=most);
        (0..count).map(|_| self.hold()).collect()
    }

    fn registers(&mut self, likely: f64) -> Vec<(usize, Register)> {
        let mut all = Vec::new();
        for sku in 0..SKUS {
            if self.rng.random_bool(likely) {
                self.version += 1;
                let rng = &mut self.rng;
                let register = Register {
                    limit: rng.random_range(0..=25),
                    version: self.version.saturating_sub(rng.random_range(0..=6)),
                    opens: rng.random_bool(0.25).then_some(20),
                    closes: rng.random_bool(0.15).then_some(80),
                    per_customer: rng.random_bool(0.4).then(|| rng.random_range(0..=9)),
                };
                all.push((sku, register));
            }
        }
        all
    }

    fn real(&self, holds: &[(Key, Hold)]) -> Vec<domain::Hold> {
        let holds = holds.iter();
        holds
            .map(|(key, hold)| self.holds.real(*key, hold))
            .collect()
    }

    async fn step(&mut self) -> Agreed {
        match self.rng.random_range(0..100) {
            0..=36 => self.reserve().await?,
            37..=51 => self.tell(Verb::Keep).await?,
            52..=66 => self.tell(Verb::Commit).await?,
            67..=81 => self.tell(Verb::Release).await?,
            82..=90 => self.put().await?,
            91..=93 => self.correct_buyer().await?,
            94..=95 => self.lose().await?,
            96..=97 => self.turn_epoch().await?,
            _ => self.open_again().await?,
        }
        // No gate stays closed for long, and many things happen while it does.
        if !self.model.is_open() {
            self.compare().await?;
            match self.rng.random_range(0..100) {
                0..=14 => self.turn_epoch().await?,
                15..=29 => self.put().await?,
                30..=35 => self.lose().await?,
                _ => {}
            }
        }
        self.compare().await
    }

    fn rows(&self, seen: &GateSnapshot) -> Rows {
        let number = |name: &str| {
            let place = self.epochs.iter().position(|one| one == name);
            place.map_or(u32::MAX, |place| u32::try_from(place).unwrap())
        };
        names::rows(&self.holds.modelled(seen, number))
    }

    async fn compare(&self) -> Agreed {
        let seen = self.gate.snapshot(SHARD).await.unwrap();
        same_rows(&self.rows(&seen), &names::rows(&self.model))?;
        let due: Vec<_> = seen.due.keys().collect();
        let held: Vec<_> = seen.holds.keys().collect();
        same("the list of what is due", &due, &held)?;
        same(
            "strays and damage",
            &[seen.stray, seen.damaged].concat(),
            &Vec::new(),
        )?;
        let sound = self.fragile || self.model.held_is_the_sum_of_holds();
        same("whether `held` is the sum of its holds", &true, &sound)
    }

    async fn fail(&self, seed: u64, least: u64, mismatch: &Mismatch) -> ! {
        let seen = self.gate.snapshot(SHARD).await.unwrap();
        Walked {
            test: "scripts",
            seed,
            asked: (OPTION, least),
            history: &self.history,
            real: self.rows(&seen),
            model: names::rows(&self.model),
        }
        .fail(mismatch)
    }
}

/// Deletes the keys of a pattern.
pub(crate) async fn wipe(raw: &mut redis::aio::MultiplexedConnection, pattern: &str) {
    let mut keys: Vec<String> = Vec::new();
    let mut found = raw.scan_match(pattern).await.unwrap();
    while let Some(key) = found.next_item().await {
        keys.push(key.unwrap());
    }
    drop(found);
    if !keys.is_empty() {
        let _: i64 = raw.del(keys).await.unwrap();
    }
}

const ANSWERS: &[(&str, &[&str])] = &[
    (
        "reserve",
        &[
            "OK", "KNOWN", "OTHER", "NOT_OPEN", "OVER", "LIMIT", "SOLD_OUT", "NO_GATE",
        ],
    ),
    ("keep", &["KEPT", "ADDED", "REPLACED", "NO_GATE", "DAMAGED"]),
    ("commit", &["DONE", "ABSENT", "NO_GATE", "DAMAGED"]),
    ("release", &["DONE", "ABSENT", "NO_GATE", "DAMAGED"]),
    ("put", &["SET", "OLD", "NO_GATE"]),
    ("buyer", &["SET", "CHANGED", "NO_GATE"]),
    ("begin", &["BEGUN", "SUPERSEDED"]),
    ("open", &["OPENED", "SUPERSEDED"]),
];

#[tokio::test]
async fn the_scripts_answer_and_leave_the_state_as_the_model_does() {
    let url = tests::world::addresses().await.redis_url;
    let (first, least) = (seed(), commands(OPTION, COMMANDS));
    eprintln!("HOLDFAST_SEED={first} {OPTION}={least}");
    let mut coverage = Coverage::default();
    for n in 0..least.div_ceil(PER_WALK) {
        let seed = first.wrapping_add(n);
        let mut walk = Walk::new(&url, seed).await;
        while walk.coverage.commands() < PER_WALK {
            if let Err(mismatch) = walk.step().await {
                walk.fail(seed, least, &mismatch).await;
            }
        }
        wipe(&mut walk.raw, &format!("{}:*", walk.prefix)).await;
        coverage.merge(walk.coverage);
    }
    let to_be_seen = ToBeSeen {
        pairs: meets::possible(),
        answers: ANSWERS,
        from: WHOLE,
    };
    coverage.conclude("scripts", least, &to_be_seen);
}
