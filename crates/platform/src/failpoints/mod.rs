//! Crash points: places between two stores where a process can be told to die, fail, hang, wait or
//! block its thread, so that the tests can do it there. Only behind the feature `failpoints`; without
//! it neither this module nor any trace of the points is in the binary.
//!
//! `HOLDFAST_FAILPOINTS="cp5=kill@3;cp10=delay(200)%0.1"` says what bites at the start (`@3`: the
//! third time; `%0.1`: one time in ten, decided by `HOLDFAST_FAILPOINTS_SEED`; neither: each time),
//! `POST /failpoints` with the same text replaces it, `GET /failpoints` counts. Each bite is a line
//! of the file `HOLDFAST_FAILPOINTS_LOG` before it acts, so that a kill is counted too.

mod points;
mod setting;

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    io::Write,
    path::PathBuf,
    sync::{Mutex, OnceLock, PoisonError},
};

use serde::Serialize;

pub use points::{POINTS, Point};
pub use setting::{Action, BadSetting, Rule, When, parse};

/// In every binary with crash points, and in no other.
pub const MARKER: &str = "holdfast-failpoint";

/// Whether the code at a point goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bite {
    /// It does.
    Pass,
    /// It gives its error.
    Err,
}

/// How often a point was reached, and how often it bit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Since the start.
    pub reached: u64,
    /// Since the start.
    pub bitten: u64,
}

#[derive(Debug, Default)]
struct State {
    /// Each with the times that its point was reached under it.
    rules: Vec<(Rule, u64)>,
    seed: u64,
    log: Option<PathBuf>,
    counts: BTreeMap<&'static str, Count>,
}

impl State {
    fn from_environment() -> Result<Self, BadSetting> {
        let variable = |name| std::env::var(name).unwrap_or_default();
        let rules = parse(&variable("HOLDFAST_FAILPOINTS"))?;
        let log = variable("HOLDFAST_FAILPOINTS_LOG");
        Ok(Self {
            rules: rules.into_iter().map(|rule| (rule, 0)).collect(),
            seed: variable("HOLDFAST_FAILPOINTS_SEED").parse().unwrap_or(0),
            log: (!log.is_empty()).then(|| log.into()),
            counts: BTreeMap::new(),
        })
    }

    /// What is to happen now at a point.
    fn reach(&mut self, name: &'static str) -> Option<Action> {
        let count = self.counts.entry(name).or_default();
        count.reached += 1;
        let seed = self.seed;
        let mut bites = None;
        for (rule, hits) in self.rules.iter_mut().filter(|(rule, _)| rule.point == name) {
            *hits += 1;
            let due = match rule.when {
                When::Always => true,
                When::Nth(nth) => *hits == nth,
                When::Chance(chance) => draw(seed, name, *hits) < chance,
            };
            if due {
                bites = bites.or(Some(rule.action));
            }
        }
        if bites.is_some() {
            count.bitten += 1;
        }
        bites
    }
}

/// A number from 0 to 1 that the seed, the point and the hit decide, whatever runs beside.
fn draw(seed: u64, name: &str, hit: u64) -> f64 {
    let mut hasher = DefaultHasher::new();
    (seed, name, hit).hash(&mut hasher);
    let thousandths = hasher.finish() % 1_000_000;
    f64::from(u32::try_from(thousandths).unwrap_or(0)) / 1_000_000.0
}

static STATE: OnceLock<Mutex<State>> = OnceLock::new();

fn state() -> &'static Mutex<State> {
    STATE.get_or_init(|| {
        let state = State::from_environment().unwrap_or_else(|error| {
            tracing::error!(%error, "the failpoints of the environment are left out");
            State::default()
        });
        Mutex::new(state)
    })
}

fn with<T>(work: impl FnOnce(&mut State) -> T) -> T {
    work(&mut state().lock().unwrap_or_else(PoisonError::into_inner))
}

/// Reads the environment and says what this build is.
///
/// # Errors
/// [`BadSetting`]: a process must not run without the crash that it was asked for.
pub fn start() -> Result<(), BadSetting> {
    let read = State::from_environment()?;
    tracing::warn!(
        marker = MARKER,
        rules = read.rules.len(),
        "this build has crash points: it must not serve anybody"
    );
    with(|state| *state = read);
    Ok(())
}

/// Replaces the rules; hits are counted anew.
///
/// # Errors
/// [`BadSetting`]: the rules stay as they are.
pub fn set(text: &str) -> Result<(), BadSetting> {
    let rules = parse(text)?;
    with(|state| state.rules = rules.into_iter().map(|rule| (rule, 0)).collect());
    Ok(())
}

/// What was reached and what bit, of all points.
#[must_use]
pub fn counts() -> BTreeMap<&'static str, Count> {
    let mut counts: BTreeMap<_, _> = POINTS
        .iter()
        .map(|point| (point.name, Count::default()))
        .collect();
    counts.extend(with(|state| state.counts.clone()));
    counts
}

/// Called by [`crash_point!`](crate::crash_point) alone.
pub async fn reach(name: &'static str) -> Bite {
    let Some(action) = with(|state| state.reach(name)) else {
        return Bite::Pass;
    };
    note(name, action);
    match action {
        Action::Kill => std::process::abort(),
        Action::Err => return Bite::Err,
        Action::Hang => std::future::pending::<()>().await,
        Action::Delay(pause) => tokio::time::sleep(pause).await,
        Action::Block(pause) => std::thread::sleep(pause),
        Action::Panic => panic!("{MARKER} {name}"),
    }
    Bite::Pass
}

/// Writes the bite down where it outlives the process.
fn note(name: &str, action: Action) {
    let action = action.name();
    tracing::warn!(marker = MARKER, point = name, action, "a crash point bites");
    let Some(path) = with(|state| state.log.clone()) else {
        return;
    };
    let line = format!(
        "{} {} {name} {action}\n",
        crate::clock::now().timestamp_millis(),
        std::process::id()
    );
    let written = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        tracing::error!(%error, path = %path.display(), "a bite was not written down");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_says_where_what_and_when() {
        let rules = parse(" cp5=kill@3; cp10=delay(200)%0.1 ;cp7=err;cp8=block(50)").unwrap();
        assert_eq!(
            rules,
            [
                Rule {
                    point: "cp5",
                    action: Action::Kill,
                    when: When::Nth(3)
                },
                Rule {
                    point: "cp10",
                    action: Action::Delay(std::time::Duration::from_millis(200)),
                    when: When::Chance(0.1)
                },
                Rule {
                    point: "cp7",
                    action: Action::Err,
                    when: When::Always
                },
                Rule {
                    point: "cp8",
                    action: Action::Block(std::time::Duration::from_millis(50)),
                    when: When::Always
                },
            ]
        );
        assert!(parse("").unwrap().is_empty());
    }

    #[test]
    fn a_setting_that_means_nothing_is_refused() {
        for text in [
            "cp27=kill",
            "cp5",
            "cp5=stop",
            "cp5=kill@x",
            "cp5=kill%2",
            "cp19=err",
            "cp5=delay(x)",
            "cp5=block",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    fn hits(rule: &str, seed: u64) -> Vec<u64> {
        let mut state = State {
            rules: parse(rule).unwrap().into_iter().map(|r| (r, 0)).collect(),
            seed,
            ..State::default()
        };
        (1..=1000)
            .filter(|_| state.reach("cp5").is_some())
            .collect()
    }

    #[test]
    fn the_nth_hit_bites_once_and_chance_is_repeated_by_its_seed() {
        assert_eq!(hits("cp5=err@3", 0), [3]);
        assert_eq!(hits("cp4=err", 0), Vec::<u64>::new());
        let some = hits("cp5=err%0.1", 7);
        assert!((50..200).contains(&some.len()), "{}", some.len());
        assert_eq!(some, hits("cp5=err%0.1", 7));
        assert_ne!(some, hits("cp5=err%0.1", 8));
    }

    #[tokio::test]
    async fn an_error_bites_where_it_is_given_and_is_counted() {
        async fn work() -> Result<&'static str, &'static str> {
            crate::crash_point!("cp1", err => return Err("bitten"));
            crate::crash_point!("cp19");
            Ok("done")
        }
        assert_eq!(work().await, Ok("done"));
        set("cp1=err@2").unwrap();
        assert_eq!(work().await, Ok("done"));
        assert_eq!(work().await, Err("bitten"));
        set("").unwrap();
        let counts = counts();
        assert_eq!((counts["cp1"].reached, counts["cp1"].bitten), (3, 1));
        assert_eq!((counts["cp19"].reached, counts.len()), (2, 26));
    }
}
