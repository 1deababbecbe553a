//! Whether a run proves what it is for.

use std::collections::BTreeMap;

use crate::{conductor::Row, faults::GATE_EXACT, gate, reached, report::Report};

impl Report {
    /// Fills in the verdict.
    pub fn judge(&mut self, kinds_needed: usize) {
        let mut failures = std::mem::take(&mut self.failures);
        failures.extend(of_faults(&self.faults, kinds_needed));
        let (had, of) = self.reached_share();
        let share = f64::from(had) / f64::from(of.max(1));
        // A short run can't reach all; it says what it did not.
        if kinds_needed >= 30 && share < reached::NEEDED {
            failures.push(format!("void: {had} of {of} states were reached"));
        }
        for race in &self.races {
            if !race.wrong.is_empty() {
                failures.push(format!(
                    "{} {}: {} wrong",
                    race.id,
                    race.title,
                    race.wrong.len()
                ));
            }
            if kinds_needed >= 30 && (race.first == 0 || race.second == 0) {
                failures.push(format!("void: {} was not seen in both orders", race.id));
            }
        }
        for told in self.told.iter().filter(|told| told.broken > 0) {
            failures.push(format!("{}: {} broken", told.rule, told.broken));
        }
        for check in self.checks.iter().filter(|check| !check.ok) {
            failures.push(format!("{} {}", check.id, check.rule));
        }
        let open = &self.open;
        if open.orders + open.payments + open.refunds + open.outbox > 0 {
            failures.push(format!("not at rest in the end: {open:?}"));
        }
        if self.panics > 0 {
            failures.push(format!("{} panics in the logs", self.panics));
        }
        self.ok = failures.is_empty();
        self.failures = failures;
    }

    pub(crate) fn reached_share(&self) -> (u32, u32) {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let had = self.reached.iter().filter(|one| one.times > 0).count();
        (count(had), count(self.reached.len()))
    }
}

/// Every kind that came must have bitten, at its second try at the latest, and the gate must have
/// become exact after each loss.
fn of_faults(faults: &[Row], kinds_needed: usize) -> Vec<String> {
    let mut failures = Vec::new();
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    for row in faults {
        *kinds.entry(row.id).or_default() += row.bites;
    }
    for (id, _) in kinds.iter().filter(|(_, bites)| **bites == 0) {
        let last = faults.iter().rfind(|row| row.id == *id);
        let how = last.map_or("", |row| row.how.as_str());
        failures.push(format!("void: {id} did not bite ({how})"));
    }
    if kinds.len() < kinds_needed {
        let had = kinds.len();
        failures.push(format!(
            "void: {had} kinds of faults, {kinds_needed} are needed"
        ));
    }
    let inexact = |row: &&Row| {
        let mut measured = row.measured.iter();
        measured.any(|(name, value)| name == GATE_EXACT && *value < 0.0)
    };
    for row in faults.iter().filter(inexact) {
        failures.push(format!(
            "T11, T12: the gate was not exact within {} s of {} at {:.0} s",
            gate::WITHIN.as_secs(),
            row.id,
            row.at_s
        ));
    }
    failures
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &'static str, bites: u64, measured: &[(&str, f64)]) -> Row {
        let measured = measured.iter();
        Row {
            id,
            title: "",
            at_s: 1.0,
            held_s: 1.0,
            bites,
            how: "so".to_owned(),
            goodput_before: 0.0,
            goodput_during: 0.0,
            first_201_after_s: None,
            again: false,
            beside: None,
            measured: measured
                .map(|(name, value)| ((*name).to_owned(), *value))
                .collect(),
        }
    }

    #[test]
    fn a_kind_must_bite_at_its_second_try_at_the_latest() {
        let one = row("F12", 0, &[]);
        assert_eq!(of_faults(std::slice::from_ref(&one), 1).len(), 1);
        assert_eq!(of_faults(&[one.clone(), one.clone()], 1).len(), 1);
        assert!(of_faults(&[one, row("F12", 3, &[])], 1).is_empty());
        assert_eq!(of_faults(&[row("F12", 3, &[])], 2).len(), 1);
    }

    #[test]
    fn a_gate_that_is_never_exact_fails_the_run() {
        let exact = row("F25", 1, &[(GATE_EXACT, 2.5)]);
        assert!(of_faults(std::slice::from_ref(&exact), 1).is_empty());
        let never = row("F25", 1, &[(GATE_EXACT, -1.0)]);
        assert_eq!(of_faults(&[exact, never], 1).len(), 1);
    }
}
