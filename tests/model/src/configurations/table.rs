//! What was found, as tables.

use std::{collections::BTreeMap, fmt::Write as _};

use super::Configuration;
use crate::{Mutation, check::Outcome};

/// A configuration and what its walk came to.
pub type Walked = (&'static Configuration, Outcome);

/// Configuration, states, transitions, depth, seconds; then the sum.
#[must_use]
pub fn states(walked: &[Walked]) -> String {
    let mut text = format!(
        "{:<20} {:>11} {:>12} {:>6} {:>8}\n",
        "configuration", "states", "transitions", "depth", "seconds"
    );
    for (configuration, outcome) in walked {
        let _ = writeln!(text, "{}", row(configuration.name, outcome));
    }
    let states: usize = walked.iter().map(|(_, outcome)| outcome.states).sum();
    let transitions: usize = walked.iter().map(|(_, outcome)| outcome.transitions).sum();
    let seconds: f64 = walked.iter().map(|(_, one)| one.took.as_secs_f64()).sum();
    let _ = write!(
        text,
        "{:<20} {states:>11} {transitions:>12} {:>6} {seconds:>8.1}",
        "all", ""
    );
    text
}

/// One row of [`states`].
#[must_use]
pub fn row(name: &str, outcome: &Outcome) -> String {
    format!(
        "{name:<20} {:>11} {:>12} {:>6} {:>8.1}",
        outcome.states,
        outcome.transitions,
        outcome.depth,
        outcome.took.as_secs_f64()
    )
}

/// How often each thing was met that must be met, over all walks.
#[must_use]
pub fn reached(walked: &[Walked]) -> BTreeMap<&'static str, u64> {
    let mut all = BTreeMap::new();
    for (name, count) in walked.iter().flat_map(|(_, outcome)| &outcome.reached) {
        *all.entry(*name).or_insert(0) += count;
    }
    all
}

/// What was never met.
#[must_use]
pub fn unreached(walked: &[Walked]) -> Vec<&'static str> {
    let all = reached(walked).into_iter();
    all.filter(|(_, count)| *count == 0)
        .map(|(name, _)| name)
        .collect()
}

/// A broken rule, where it was looked for, the promise that gave it away and in how many steps.
#[must_use]
pub fn found(mutation: Mutation, outcome: &Outcome) -> String {
    let how = outcome.violations.first().map_or_else(
        || "NOT FOUND".to_owned(),
        |violation| format!("{} ({} steps)", violation.property, violation.steps.len()),
    );
    format!(
        "{:<26} {:<16} {:>9} {:>6.1}s  {how}",
        mutation.name(),
        mutation.configuration(),
        outcome.states,
        outcome.took.as_secs_f64()
    )
}
