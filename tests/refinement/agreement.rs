//! Whether both sides say the same, and what is printed when they do not.

use std::{
    collections::{BTreeSet, VecDeque},
    fmt::Debug,
};

/// Both sides after a call.
#[derive(Debug)]
pub(crate) struct Mismatch {
    what: String,
    real: String,
    model: String,
}

pub(crate) type Agreed<T = ()> = Result<T, Mismatch>;

/// The state of one side, a row per fact.
pub(crate) type Rows = BTreeSet<String>;

/// An answer.
pub(crate) fn same<T: PartialEq + Debug + ?Sized>(what: &str, real: &T, model: &T) -> Agreed {
    if real == model {
        return Ok(());
    }
    Err(Mismatch {
        what: format!("the answer of {what}"),
        real: format!("{real:?}"),
        model: format!("{model:?}"),
    })
}

/// The state: what only one side has.
pub(crate) fn same_rows(real: &Rows, model: &Rows) -> Agreed {
    if real == model {
        return Ok(());
    }
    let only = |one: &Rows, other: &Rows| {
        let rows: Vec<&str> = one.difference(other).map(String::as_str).collect();
        rows.join("; ")
    };
    Err(Mismatch {
        what: "the state (what only one side has)".to_owned(),
        real: only(real, model),
        model: only(model, real),
    })
}

/// The last calls of a walk.
#[derive(Debug, Default)]
pub(crate) struct History {
    calls: VecDeque<String>,
}

impl History {
    const KEPT: usize = 12;

    pub(crate) fn tell(&mut self, call: String) {
        if self.calls.len() == Self::KEPT {
            self.calls.pop_front();
        }
        self.calls.push_back(call);
    }
}

/// Where a walk stands when it ends.
pub(crate) struct Walked<'a> {
    pub(crate) test: &'static str,
    pub(crate) seed: u64,
    /// The option that says how many commands, and how many it said.
    pub(crate) asked: (&'static str, u64),
    pub(crate) history: &'a History,
    pub(crate) real: Rows,
    pub(crate) model: Rows,
}

impl Walked<'_> {
    /// Fails the test with all that is needed to see why, and to see it again.
    pub(crate) fn fail(&self, mismatch: &Mismatch) -> ! {
        eprintln!("the last calls:");
        for call in &self.history.calls {
            eprintln!("  {call}");
        }
        for (side, rows) in [("real", &self.real), ("model's", &self.model)] {
            eprintln!("the {side} state:");
            for row in rows {
                eprintln!("  {row}");
            }
        }
        let Mismatch { what, real, model } = mismatch;
        panic!(
            "the code is not the model in {what}\n  real:  {real}\n  model: {model}\n  again: \
             HOLDFAST_SEED={} {}={} cargo test --workspace --features tests/failpoints --test \
             refinement {}",
            self.seed, self.asked.0, self.asked.1, self.test
        );
    }
}

/// A new seed each time, or the one that is to be repeated.
pub(crate) fn seed() -> u64 {
    match std::env::var("HOLDFAST_SEED") {
        Ok(seed) => seed.parse().expect("HOLDFAST_SEED must be a number"),
        Err(_) => rand::random(),
    }
}

/// How many commands are asked for.
pub(crate) fn commands(option: &str, otherwise: u64) -> u64 {
    match std::env::var(option) {
        Ok(count) => count
            .parse()
            .unwrap_or_else(|_| panic!("{option} must be a number")),
        Err(_) => otherwise,
    }
}
