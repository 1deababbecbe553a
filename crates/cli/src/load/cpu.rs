//! CPU seconds per process group, from the kernel's own counters.

use std::{collections::BTreeMap, path::Path};

use crate::servers::State;

/// Clock ticks a second in `/proc/PID/stat`; fixed on Linux (USER_HZ).
const TICKS: f64 = 100.0;

/// CPU seconds by process group at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample(BTreeMap<String, f64>);

impl Sample {
    /// Reads the counters of what `holdfast up` started in `state_dir`, and our own; `None` when
    /// the state directory is not known.
    pub(crate) fn take(state_dir: Option<&Path>) -> Option<Measure> {
        let state_dir = state_dir?.to_owned();
        let before = Self::of(&state_dir);
        Some(Measure { state_dir, before })
    }

    fn of(state_dir: &Path) -> Self {
        let mut groups = BTreeMap::new();
        groups.insert("generator".to_owned(), seconds(std::process::id(), false));
        let entries = State::read(state_dir)
            .map(|state| state.entries)
            .unwrap_or_default();
        for entry in entries {
            let Ok(pid) = u32::try_from(entry.identity.pid) else {
                continue;
            };
            *groups.entry(entry.name).or_insert(0.0) += seconds(pid, true);
        }
        Self(groups)
    }
}

/// The counters when the measured work began.
#[derive(Debug)]
pub(crate) struct Measure {
    state_dir: std::path::PathBuf,
    before: Sample,
}

impl Measure {
    /// CPU seconds per group since then.
    pub(crate) fn until_now(&self) -> BTreeMap<String, f64> {
        let after = Sample::of(&self.state_dir);
        after
            .0
            .into_iter()
            .map(|(group, seconds)| {
                let before = self.before.0.get(&group).copied().unwrap_or(0.0);
                (group, (seconds - before).max(0.0))
            })
            .collect()
    }
}

/// User and system time of a process; with its children, living and waited for, when asked
/// (PostgreSQL works in children).
fn seconds(pid: u32, with_children: bool) -> f64 {
    let Some(fields) = stat(pid) else { return 0.0 };
    let ticks = |at: usize| {
        fields
            .get(at)
            .and_then(|f| f.parse::<f64>().ok())
            .unwrap_or(0.0)
    };
    // Fields 14 to 17 of proc(5), counted from the one after the command.
    let own = ticks(11) + ticks(12);
    if !with_children {
        return own / TICKS;
    }
    let gone = ticks(13) + ticks(14);
    (own + gone) / TICKS
        + children(pid)
            .into_iter()
            .map(|child| seconds(child, true))
            .sum::<f64>()
}

fn stat(pid: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_command = text.rsplit_once(')')?.1;
    Some(
        after_command
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
    )
}

fn children(pid: u32) -> Vec<u32> {
    std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
        .map(|text| {
            text.split_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect()
        })
        .unwrap_or_default()
}
