//! Runs the checker over a configuration and says what it found.

use std::{
    fmt::Debug,
    hash::Hash,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// Counts how often the walk met what it must meet at least once. Kept beside the states, so that
/// it does not multiply them.
#[derive(Debug)]
pub struct Tally {
    names: &'static [&'static str],
    counts: Vec<AtomicU64>,
}

impl Tally {
    /// Nothing was met yet.
    #[must_use]
    pub fn new(names: &'static [&'static str]) -> Self {
        let counts = names.iter().map(|_| AtomicU64::new(0)).collect();
        Self { names, counts }
    }

    /// One of the names was met.
    ///
    /// # Panics
    /// When there is no such name.
    pub fn hit(&self, name: &'static str) {
        let place = self.names.iter().position(|one| *one == name);
        let place = place.unwrap_or_else(|| unreachable!("{name} is not in the tally"));
        self.counts[place].fetch_add(1, Ordering::Relaxed);
    }

    /// All of them.
    #[must_use]
    pub fn read(&self) -> Vec<(&'static str, u64)> {
        let counts = self.counts.iter().map(|one| one.load(Ordering::Relaxed));
        self.names.iter().copied().zip(counts).collect()
    }
}

/// A model that says what it has met.
pub trait Tallied {
    /// What must be met at least once, with how often it was.
    fn reached(&self) -> Vec<(&'static str, u64)>;
}

/// A promise that was broken, and how.
#[derive(Debug, Clone)]
pub struct Violation {
    /// Which.
    pub property: &'static str,
    /// The steps to it.
    pub steps: Vec<String>,
}

/// What a walk over all states came to.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Distinct states.
    pub states: usize,
    /// States with repeats: the transitions that were taken.
    pub transitions: usize,
    /// The longest of the shortest paths.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
    /// Broken promises.
    pub violations: Vec<Violation>,
    /// What must be met at least once.
    pub reached: Vec<(&'static str, u64)>,
}

/// How far to walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// All states.
    Exhausted,
    /// The first broken promise.
    Broken,
}

/// Walks over all states of a model, breadth first.
pub fn walk<M>(model: M, until: Until, threads: usize) -> Outcome
where
    M: Model + Tallied + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let begun = Instant::now();
    let mut builder = model.checker().threads(threads);
    if until == Until::Broken {
        builder = builder.finish_when(HasDiscoveries::AnyFailures);
    }
    let checker = builder.spawn_bfs().join();
    let model = checker.model();
    let mut violations = Vec::new();
    for (name, path) in checker.discoveries() {
        if model.property(name).expectation == Expectation::Always {
            let steps = path.into_actions();
            let steps = steps.iter().map(|step| model.format_action(step)).collect();
            violations.push(Violation {
                property: name,
                steps,
            });
        }
    }
    violations.sort_by_key(|violation| violation.steps.len());
    Outcome {
        states: checker.unique_state_count(),
        transitions: checker.state_count(),
        depth: checker.max_depth(),
        took: begun.elapsed(),
        violations,
        reached: model.reached(),
    }
}
