//! Random commands against the scripts and the model: equal answers, equal state.

use std::{collections::BTreeSet, fmt::Write as _, time::Duration};

use domain::gate::{Hold, Register};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use reservations::{BuyerUnits, Gate, KeepOutcome, SettleOutcome, model::Model};

use crate::support::{SHARD, TestGate, buyer, hold, register, sku, wipe};

const SKUS: [&str; 4] = ["A", "B", "C-1", "D_2"];
const BUYERS: [&str; 3] = ["c", "d", "E.f:g@h+i-j_k"];
const KEYS: [&str; 8] = ["1", "2", "3", "4", "5", "6", "7", "8"];

/// Calls in a sequence, sequences, and the commands that they must come to.
const CALLS: usize = 250;
const SEQUENCES: u64 = 60;
const COMMANDS_MIN: usize = 20_000;

struct Walk {
    test: TestGate,
    model: Model,
    rng: StdRng,
    log: String,
    commands: usize,
    version: i64,
    /// A gate was lost alone: batches of one, since the order of a batch then matters.
    fragile: bool,
    last: Vec<Option<Hold>>,
    seen: Seen,
}

/// Verbs and what they answered.
type Seen = BTreeSet<(&'static str, &'static str)>;

/// What the walks must have met, or they prove little.
const TO_BE_SEEN: [(&str, &[&str]); 6] = [
    (
        "reserve",
        &[
            "OK", "KNOWN", "OTHER", "NOT_OPEN", "OVER", "LIMIT", "SOLD_OUT", "NO_GATE",
        ],
    ),
    ("keep", &["KEPT", "ADDED", "REPLACED", "NO_GATE", "DAMAGED"]),
    ("commit", &["DONE", "ABSENT", "NO_GATE", "DAMAGED"]),
    ("release", &["DONE", "ABSENT", "NO_GATE", "DAMAGED"]),
    ("registers", &["SET", "OLD", "NO_GATE"]),
    ("buyers", &["SET", "CHANGED", "NO_GATE"]),
];

impl Walk {
    async fn new(seed: u64) -> Self {
        let test = TestGate::new().await;
        let mut model = Model::default();
        model.begin_epoch(&test.epoch, None);
        model.open_epoch(&test.epoch);
        Self {
            test,
            model,
            rng: StdRng::seed_from_u64(seed),
            log: String::new(),
            commands: 0,
            version: 0,
            fragile: false,
            last: vec![None; KEYS.len()],
            seen: Seen::new(),
        }
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of.choose(&mut self.rng).copied().expect("not empty")
    }

    fn batch_size(&mut self) -> usize {
        if self.fragile {
            1
        } else {
            self.rng.random_range(1..=6)
        }
    }

    fn hold(&mut self) -> Hold {
        let place = self.rng.random_range(0..KEYS.len());
        if let Some(known) = self.last[place].clone()
            && self.rng.random_bool(0.7)
        {
            return known;
        }
        let mut lines = Vec::new();
        for name in SKUS {
            if self.rng.random_bool(0.35) {
                lines.push((name, self.rng.random_range(1..=3)));
            }
        }
        if lines.is_empty() {
            lines.push((self.pick(&SKUS), 1));
        }
        let customer = self.pick(&BUYERS);
        let new = hold(KEYS[place], customer, &lines);
        self.last[place] = Some(new.clone());
        new
    }

    fn holds(&mut self) -> Vec<Hold> {
        (0..self.batch_size()).map(|_| self.hold()).collect()
    }

    fn registers(&mut self, likely: f64) -> Vec<Register> {
        let mut out = Vec::new();
        for name in SKUS {
            if self.rng.random_bool(likely) {
                let mut one = register(name, 0, self.rng.random_range(0..=12));
                self.version += 1;
                one.version = (self.version - self.rng.random_range(0..=6)).max(0);
                one.opens_at_ms = self.rng.random_bool(0.2).then_some(20);
                one.closes_at_ms = self.rng.random_bool(0.2).then_some(80);
                one.per_customer_limit = self
                    .rng
                    .random_bool(0.5)
                    .then(|| self.rng.random_range(0..=6));
                out.push(one);
            }
        }
        out
    }

    async fn reserve(&mut self) {
        let (holds, now_ms) = (self.holds(), self.rng.random_range(0..100));
        let _ = writeln!(self.log, "reserve {now_ms} {holds:?}");
        self.commands += holds.len();
        let answers = self.test.gate.reserve(SHARD, now_ms, &holds).await;
        let expected: Vec<_> = holds
            .iter()
            .map(|hold| self.model.reserve(now_ms, hold))
            .collect();
        assert_eq!(answers, expected, "reserve");
        self.seen
            .extend(answers.iter().map(|one| ("reserve", one.as_str())));
    }

    async fn keep(&mut self) {
        let (holds, registers) = (self.holds(), self.registers(0.2));
        let _ = writeln!(self.log, "keep {holds:?} {registers:?}");
        self.commands += holds.len();
        let next = Duration::from_secs(30);
        let answers = self
            .test
            .gate
            .keep(SHARD, &holds, &registers, next)
            .await
            .expect("keep");
        for register in &registers {
            self.model.put_register(register);
        }
        let expected: Vec<KeepOutcome> = holds.iter().map(|hold| self.model.keep(hold)).collect();
        assert_eq!(answers, expected, "keep");
        self.seen
            .extend(answers.iter().map(|one| ("keep", one.as_str())));
    }

    async fn settle(&mut self, commit: bool) {
        let (holds, registers) = (self.holds(), self.registers(0.2));
        let _ = writeln!(self.log, "settle commit={commit} {holds:?} {registers:?}");
        self.commands += holds.len();
        let gate = &self.test.gate;
        let answers = if commit {
            gate.commit(SHARD, &holds, &registers)
                .await
                .expect("commit")
        } else {
            gate.release(SHARD, &holds, &registers)
                .await
                .expect("release")
        };
        for register in &registers {
            self.model.put_register(register);
        }
        let expected: Vec<SettleOutcome> = holds
            .iter()
            .map(|hold| {
                if commit {
                    self.model.commit(hold.hold_id)
                } else {
                    self.model.release(hold.hold_id)
                }
            })
            .collect();
        assert_eq!(answers, expected, "settle");
        let verb = if commit { "commit" } else { "release" };
        self.seen
            .extend(answers.iter().map(|one| (verb, one.as_str())));
    }

    async fn put_registers(&mut self) {
        let registers = self.registers(0.5);
        let _ = writeln!(self.log, "registers {registers:?}");
        self.commands += registers.len();
        let answers = self
            .test
            .gate
            .put_registers(SHARD, &registers)
            .await
            .expect("registers");
        let expected: Vec<_> = registers
            .iter()
            .map(|register| self.model.put_register(register))
            .collect();
        assert_eq!(answers, expected, "registers");
        self.seen
            .extend(answers.iter().map(|one| ("registers", one.as_str())));
    }

    async fn correct_buyer(&mut self) {
        let (name, customer) = (sku(self.pick(&SKUS)), buyer(self.pick(&BUYERS)));
        let known = self
            .model
            .buyers
            .get(&(name.clone(), customer.clone()))
            .copied();
        let seen = known.unwrap_or(0) + i64::from(self.rng.random_bool(0.2));
        let units = self.rng.random_range(0..=4);
        let _ = writeln!(self.log, "buyer {name} {customer} {seen} -> {units}");
        self.commands += 1;
        let change = [BuyerUnits {
            buyer: customer.clone(),
            seen,
            units,
        }];
        let answers = self
            .test
            .gate
            .correct_buyers(SHARD, &name, &change)
            .await
            .expect("buyers");
        assert_eq!(
            answers,
            [self.model.correct_buyer(&name, &customer, seen, units)]
        );
        self.seen
            .extend(answers.iter().map(|one| ("buyers", one.as_str())));
    }

    /// The keys are lost, all or one gate.
    async fn lose(&mut self) {
        self.commands += 1;
        if self.rng.random_bool(0.7) {
            let _ = writeln!(self.log, "wipe");
            wipe(&mut self.test.raw, &self.test.prefix).await;
            self.model.wipe();
            self.fragile = false;
        } else if self.model.epoch.is_some() {
            let name = self.pick(&SKUS);
            let _ = writeln!(self.log, "lose gate {name}");
            let key = self.test.key(&format!("gate:{name}"));
            self.test.run("DEL", &[&key]).await;
            self.model.gates.remove(&sku(name));
            self.fragile = true;
        }
    }

    /// A new epoch is begun, perhaps from a wrong idea of the old one, or opened.
    async fn turn_epoch(&mut self) {
        self.commands += 1;
        let newest = self.model.epoch.as_ref().map(|state| state.epoch.clone());
        let open = self.model.epoch.as_ref().is_some_and(|state| state.open);
        if newest.is_some() && !open && self.rng.random_bool(0.7) {
            let epoch = newest.unwrap_or_default();
            let _ = writeln!(self.log, "open {epoch}");
            let answer = self
                .test
                .gate
                .open_epoch(SHARD, &epoch)
                .await
                .expect("open");
            assert_eq!(answer, self.model.open_epoch(&epoch));
            return;
        }
        let replaces = if self.rng.random_bool(0.2) {
            Some("wrong".to_owned())
        } else {
            newest.clone()
        };
        let epoch = Gate::new_epoch_id();
        let _ = writeln!(self.log, "begin {epoch} for {replaces:?}");
        let gate = self.test.gate.clone();
        let answer = gate
            .begin_epoch(SHARD, &epoch, replaces.as_deref())
            .await
            .expect("begin");
        assert_eq!(answer, self.model.begin_epoch(&epoch, replaces.as_deref()));
        if self
            .model
            .epoch
            .as_ref()
            .is_some_and(|state| state.epoch == epoch)
        {
            if let Some(old) = newest {
                gate.drop_epoch(SHARD, &old).await.expect("drop");
            }
            self.test.epoch = epoch;
            self.fragile = false;
        }
    }

    async fn step(&mut self) {
        let closed = !self.model.epoch.as_ref().is_some_and(|state| state.open);
        match self.rng.random_range(0..100) {
            0..=33 => self.reserve().await,
            34..=49 => self.keep().await,
            50..=64 => self.settle(true).await,
            65..=79 => self.settle(false).await,
            80..=89 => self.put_registers().await,
            90..=93 => self.correct_buyer().await,
            94 => self.lose().await,
            _ if closed => self.turn_epoch().await,
            95 => self.turn_epoch().await,
            _ => self.reserve().await,
        }
    }

    async fn compare(&self) {
        let snapshot = self.test.gate.snapshot(SHARD).await.expect("snapshot");
        assert_eq!(snapshot.epoch, self.model.epoch);
        assert_eq!(snapshot.gates, self.model.gates);
        assert_eq!(snapshot.buyers, self.model.buyers);
        assert_eq!(snapshot.holds, self.model.holds);
        assert!(
            snapshot.due.keys().eq(self.model.holds.keys()),
            "due: {:?}",
            snapshot.due
        );
        assert_eq!(snapshot.stray, Vec::<String>::new());
        assert_eq!(snapshot.damaged, Vec::<String>::new());
        if !self.fragile {
            for (name, row) in &self.model.gates {
                let lines = self
                    .model
                    .holds
                    .values()
                    .flat_map(|stored| &stored.hold.lines);
                let held: i64 = lines
                    .filter(|line| line.sku == *name)
                    .map(|line| i64::from(line.quantity.get()))
                    .sum();
                assert_eq!(row.held, held, "held of {name} is not the sum of its holds");
            }
        }
    }
}

/// Prints how to repeat a walk when it fails.
struct Narrator<'a>(u64, &'a std::sync::Mutex<String>);

impl Drop for Narrator<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.1.lock().map(|log| log.clone()).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(12).collect();
            eprintln!("repeat with HOLDFAST_SEED={}; the last calls were", self.0);
            for line in tail.into_iter().rev() {
                eprintln!("  {line}");
            }
        }
    }
}

async fn walk(seed: u64) -> (usize, Seen) {
    let log = std::sync::Mutex::new(String::new());
    let _narrator = Narrator(seed, &log);
    let mut walk = Walk::new(seed).await;
    for call in 0..CALLS {
        walk.step().await;
        if let Ok(mut told) = log.lock() {
            told.push_str(&std::mem::take(&mut walk.log));
        }
        if call % 5 == 4 {
            walk.compare().await;
        }
    }
    walk.compare().await;
    walk.test.done().await;
    (walk.commands, walk.seen)
}

#[tokio::test]
async fn random_commands_answer_and_leave_the_state_as_the_model_does() {
    let first: u64 = match std::env::var("HOLDFAST_SEED") {
        Ok(seed) => seed.parse().expect("HOLDFAST_SEED must be a number"),
        Err(_) => u64::from_be_bytes(
            contracts::ids::generate().as_bytes()[8..]
                .try_into()
                .expect("eight bytes"),
        ),
    };
    eprintln!("seeds {first} and the {SEQUENCES} after it");
    let (mut commands, mut seen) = (0, Seen::new());
    for n in 0..SEQUENCES {
        let (more_commands, more_seen) = walk(first.wrapping_add(n)).await;
        commands += more_commands;
        seen.extend(more_seen);
    }
    eprintln!("{commands} commands in {SEQUENCES} times {CALLS} calls agreed with the model");
    assert!(commands >= COMMANDS_MIN, "{commands} commands are too few");
    for (verb, words) in TO_BE_SEEN {
        for word in words {
            assert!(seen.contains(&(verb, word)), "no {verb} answered {word}");
        }
    }
}
