//! What the audit knows: one entry per invariant and way of checking it, as gauges, and as one log
//! line when an invariant turns red and one when it holds again.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

/// Offenders that a log line names.
const NAMED: usize = 5;

/// How often offenders must be seen before they count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// One snapshot tells.
    Once,
    /// What is under way looks the same for a moment: it counts when it is there the next time.
    Twice,
}

#[derive(Debug)]
struct Entry {
    count: usize,
    offenders: Vec<String>,
    suspects: BTreeSet<String>,
    /// When all that the check is about was last looked at; `None`: not yet.
    checked: Option<Instant>,
}

/// All entries. What was never checked, or was never found to be wrong, has none: it is not known.
#[derive(Debug, Default)]
pub(crate) struct Board(BTreeMap<(&'static str, &'static str), Entry>);

impl Board {
    /// Notes what one way of checking an invariant has found.
    pub(crate) fn note(
        &mut self,
        id: &'static str,
        check: &'static str,
        count: usize,
        offenders: &[String],
        look: Look,
    ) {
        self.change(id, check, |entry| {
            let mut seen: Vec<String> = offenders.to_vec();
            let mut total = count;
            if look == Look::Twice {
                let fresh: BTreeSet<String> =
                    seen.iter().map(|one| identity(one).to_owned()).collect();
                seen.retain(|one| entry.suspects.contains(identity(one)));
                // Those that are counted but not listed are taken for what the listed ones are.
                total = if seen.is_empty() || seen.len() < offenders.len() {
                    seen.len()
                } else {
                    count
                };
                entry.suspects = fresh;
            }
            entry.count = total;
            entry.offenders = seen;
            entry.checked = Some(platform::clock::monotonic());
        });
    }

    /// Notes what is found when the offenders alone are looked at again: of everything else it is
    /// known what was known before, and as long ago.
    pub(crate) fn narrow(
        &mut self,
        id: &'static str,
        check: &'static str,
        count: usize,
        offenders: &[String],
    ) {
        self.change(id, check, |entry| {
            entry.count = count;
            entry.offenders = offenders.to_vec();
        });
        self.0
            .retain(|_, entry| entry.checked.is_some() || entry.count > 0);
    }

    fn change(&mut self, id: &'static str, check: &'static str, change: impl FnOnce(&mut Entry)) {
        let was_red = self.count_of(id) > 0;
        let entry = self.0.entry((id, check)).or_insert_with(|| Entry {
            count: 0,
            offenders: Vec::new(),
            suspects: BTreeSet::new(),
            checked: None,
        });
        change(entry);
        let is_red = self.count_of(id) > 0;
        if is_red && !was_red {
            self.alarm(id);
        } else if was_red && !is_red {
            tracing::info!(invariant.id = id, "an invariant holds again");
        }
    }

    fn alarm(&self, id: &'static str) {
        let offenders: Vec<&str> = self
            .of(id)
            .flat_map(|entry| entry.offenders.iter().map(String::as_str))
            .take(NAMED)
            .collect();
        metrics::counter!("alarms_total", "kind" => format!("invariant-{id}")).increment(1);
        tracing::error!(
            invariant.id = id,
            count = self.count_of(id),
            offenders = offenders.join("; "),
            "an invariant is broken"
        );
    }

    fn of(&self, id: &'static str) -> impl Iterator<Item = &Entry> {
        self.0
            .iter()
            .filter(move |((known, _), _)| *known == id)
            .map(|(_, entry)| entry)
    }

    fn count_of(&self, id: &'static str) -> usize {
        self.of(id).map(|entry| entry.count).sum()
    }

    /// Offenders per invariant that was checked.
    pub(crate) fn red(&self) -> BTreeMap<&'static str, usize> {
        let mut red = BTreeMap::new();
        for ((id, _), entry) in &self.0 {
            *red.entry(*id).or_insert(0) += entry.count;
        }
        red
    }

    /// The offenders that are named, per invariant that was checked.
    pub(crate) fn offenders(&self) -> BTreeMap<&'static str, Vec<String>> {
        let mut named: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
        for ((id, _), entry) in &self.0 {
            named
                .entry(id)
                .or_default()
                .extend(entry.offenders.iter().cloned());
        }
        named
    }

    /// Sets the gauges: offenders per invariant, and how old the word of each check is.
    pub(crate) fn export(&self) {
        for (id, count) in self.red() {
            metrics::gauge!("invariant_red", "id" => id).set(gauge(count));
        }
        for ((id, check), entry) in &self.0 {
            if let Some(checked) = entry.checked {
                metrics::gauge!("invariant_check_age_seconds", "id" => *id, "check" => *check)
                    .set(checked.elapsed().as_secs_f64());
            }
        }
    }

    /// Forgets everything: another process is the auditor now.
    pub(crate) fn clear(&mut self) {
        for entry in self.0.values_mut() {
            entry.count = 0;
        }
        self.export();
        self.0.clear();
    }
}

/// Offenders are written as `ID: both sides`.
pub(crate) fn identity(offender: &str) -> &str {
    offender.split_once(": ").map_or(offender, |(id, _)| id)
}

fn gauge(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(offenders: &[&str]) -> Vec<String> {
        offenders.iter().map(|&one| one.to_owned()).collect()
    }

    #[test]
    fn what_may_be_of_the_moment_counts_when_it_is_seen_again() {
        let mut board = Board::default();
        let mut look = |offenders: &[&str]| {
            let offenders = texts(offenders);
            board.note("I13", "now", offenders.len(), &offenders, Look::Twice);
            board.red()["I13"]
        };
        assert_eq!(look(&["a: 1", "b: 1"]), 0);
        assert_eq!(look(&["b: 2", "c: 1"]), 1);
        assert_eq!(look(&["c: 1"]), 1);
        assert_eq!(look(&[]), 0);
    }

    #[test]
    fn what_was_looked_at_alone_says_nothing_of_the_rest() {
        let mut board = Board::default();
        board.narrow("I3", "sums", 0, &[]);
        assert_eq!(board.red().get("I3"), None, "not known");
        board.narrow("I3", "sums", 1, &texts(&["A: x"]));
        assert_eq!(board.red()["I3"], 1);
        board.narrow("I3", "sums", 0, &[]);
        assert_eq!(board.red().get("I3"), None, "not known again");
        board.note("I3", "sums", 2, &texts(&["A: x", "B: x"]), Look::Once);
        let checked = board.0[&("I3", "sums")].checked;
        board.narrow("I3", "sums", 1, &texts(&["B: x"]));
        assert_eq!(board.red()["I3"], 1);
        assert_eq!(board.0[&("I3", "sums")].checked, checked);
    }

    #[test]
    fn the_checks_of_an_invariant_add_up() {
        let mut board = Board::default();
        board.note("I2", "held", 1, &texts(&["A: x"]), Look::Once);
        board.note("I2", "sums", 2, &texts(&["B: x", "C: y"]), Look::Once);
        assert_eq!(board.red()["I2"], 3);
        board.note("I2", "sums", 0, &[], Look::Once);
        assert_eq!(board.red()["I2"], 1);
        board.clear();
        assert!(board.red().is_empty());
    }
}
