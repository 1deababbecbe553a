//! Which commands met which states, and what was answered.

use std::collections::{BTreeMap, BTreeSet};

/// Command, state, answer: how often.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    seen: BTreeMap<(&'static str, String, String), u64>,
}

/// A command and the state that it meets.
pub(crate) type Pair = (&'static str, String);

/// What must be met and answered at least once, or the walks prove little.
#[derive(Debug)]
pub(crate) struct ToBeSeen {
    /// Every pair of command and state that can be.
    pub(crate) pairs: Vec<Pair>,
    /// The answers of each command.
    pub(crate) answers: &'static [(&'static str, &'static [&'static str])],
    /// With fewer commands than this much is left to chance, and only printed; with as many, all
    /// answers must be given and 19 pairs of 20 be met.
    pub(crate) from: u64,
}

impl Coverage {
    pub(crate) fn note(&mut self, command: &'static str, state: String, answer: &str) {
        let key = (command, state, answer.to_owned());
        *self.seen.entry(key).or_default() += 1;
    }

    pub(crate) fn merge(&mut self, other: Self) {
        for (key, count) in other.seen {
            *self.seen.entry(key).or_default() += count;
        }
    }

    /// Commands that were compared.
    pub(crate) fn commands(&self) -> u64 {
        self.seen.values().sum()
    }

    /// Prints every pair of command and state with its answers, and what was never met. Fails when
    /// that could have been met by so many commands.
    pub(crate) fn conclude(&self, what: &str, least: u64, to_be_seen: &ToBeSeen) {
        for ((command, state, answer), count) in &self.seen {
            eprintln!("{count:>8}  {command:<10} {state:<52} {answer}");
        }
        let pairs: BTreeSet<Pair> = self
            .seen
            .keys()
            .map(|(command, state, _)| (*command, state.clone()))
            .collect();
        let never = to_be_seen.never_met(&pairs);
        let unheard = self.unheard(to_be_seen);
        eprintln!(
            "{what}: {} commands agreed with the model; {} of {} pairs of command and state, {} \
             with their answers",
            self.commands(),
            pairs.len(),
            to_be_seen.pairs.len(),
            self.seen.len()
        );
        eprintln!("never met: {}", never.join("; "));
        eprintln!("never answered: {}", unheard.join("; "));
        assert!(self.commands() >= least, "too few commands");
        let impossible: Vec<_> = pairs
            .iter()
            .filter(|pair| !to_be_seen.pairs.contains(pair))
            .collect();
        assert!(impossible.is_empty(), "not listed: {impossible:?}");
        if least >= to_be_seen.from {
            assert!(unheard.is_empty(), "what can be answered never was");
            let share = never.len() * 20 <= to_be_seen.pairs.len();
            assert!(share, "too much of what can be was never met");
        }
    }

    fn unheard(&self, to_be_seen: &ToBeSeen) -> Vec<String> {
        let heard: BTreeSet<(&str, &str)> = self
            .seen
            .keys()
            .map(|(command, _, answer)| (*command, answer.as_str()))
            .collect();
        let answers = to_be_seen.answers.iter();
        answers
            .flat_map(|(command, answers)| answers.iter().map(move |answer| (*command, *answer)))
            .filter(|pair| !heard.contains(pair))
            .map(|(command, answer)| format!("{command} {answer}"))
            .collect()
    }
}

impl ToBeSeen {
    fn never_met(&self, pairs: &BTreeSet<Pair>) -> Vec<String> {
        let pairs = self.pairs.iter().filter(|pair| !pairs.contains(pair));
        pairs
            .map(|(command, state)| format!("{command} in: {state}"))
            .collect()
    }
}
