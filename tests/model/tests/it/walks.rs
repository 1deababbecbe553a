//! Every small configuration is walked to the end, and every broken rule is found.

use std::time::{Duration, Instant};

use model::{
    CONFIGURATIONS, Configuration, Mutation, Rules,
    check::Until,
    configurations::{Size, table},
};

/// What `make test` walks at least.
const STATES_MIN: usize = 2_000_000;

#[test]
fn every_promise_holds_in_every_state_of_the_small_configurations() {
    let walked = table::walk_all(Size::Small, 2);
    eprintln!("{}", table::states(&walked));
    for (configuration, outcome) in &walked {
        let broken = outcome.violations.first();
        assert!(broken.is_none(), "{}: {:#?}", configuration.name, broken);
    }
    let states: usize = walked.iter().map(|(_, outcome)| outcome.states).sum();
    assert!(states >= STATES_MIN, "{states} states are too few");
    let unreached = table::unreached(&walked);
    assert!(unreached.is_empty(), "never met: {unreached:?}");
}

#[test]
fn every_rule_that_is_broken_on_purpose_is_found() {
    let begun = Instant::now();
    let mut missed = Vec::new();
    for mutation in Mutation::ALL {
        let configuration = Configuration::named(mutation.configuration());
        let configuration = configuration.expect("a mutation names a configuration");
        let rules = Rules {
            broken: Some(*mutation),
        };
        let outcome = configuration.run(rules, Until::Broken, 1);
        eprintln!("{}", table::found(*mutation, &outcome));
        if outcome.violations.is_empty() {
            missed.push(mutation.name());
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
    assert!(Mutation::ALL.len() >= 12);
    assert!(
        begun.elapsed() < Duration::from_secs(300),
        "a broken rule is found early or never"
    );
}

#[test]
fn configurations_have_names_of_their_own() {
    let mut names: Vec<&str> = CONFIGURATIONS.iter().map(|one| one.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), CONFIGURATIONS.len());
    assert!(CONFIGURATIONS.iter().all(|one| !one.about.is_empty()));
}
