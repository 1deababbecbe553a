//! Which faults come in which order: the seed decides.

use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};

use crate::faults::Kind;

/// About how long the system is left alone between two faults.
pub const QUIET: Duration = Duration::from_secs(3);

/// The faults of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Each kind once, as far as the time goes.
    pub once: Vec<Kind>,
    /// What comes in the time that is left.
    pub more: Vec<Kind>,
}

/// The faults of so many seconds, out of these.
#[must_use]
pub fn schedule(seed: u64, seconds: u64, outage: Duration, kinds: &[Kind]) -> Schedule {
    let mut random = StdRng::seed_from_u64(seed);
    let mut left = Duration::from_secs(seconds);
    let once = round(&mut random, &mut left, outage, kinds);
    let mut more = Vec::new();
    loop {
        let next = round(&mut random, &mut left, outage, kinds);
        if next.is_empty() {
            return Schedule { once, more };
        }
        more.extend(next);
    }
}

/// About how long a kind takes, with the quiet before it; `outage` is that of the broker.
#[must_use]
pub fn cost(kind: Kind, outage: Duration) -> Duration {
    let away = match kind {
        Kind::KafkaDown => outage,
        _ => Duration::ZERO,
    };
    Duration::from_secs(kind.seconds()) + away + QUIET
}

/// All kinds that the time has room for, in an order of the seed.
fn round(random: &mut StdRng, left: &mut Duration, outage: Duration, kinds: &[Kind]) -> Vec<Kind> {
    let mut round = kinds.to_vec();
    round.shuffle(random);
    // A broker takes its time to come back on a busy machine: not where none is left for it.
    let early = round.len() - round.len() / 3;
    for late in early..round.len() {
        if is_of_broker(round[late]) {
            let free: Vec<usize> = (0..early).filter(|at| !is_of_broker(round[*at])).collect();
            if !free.is_empty() {
                round.swap(late, free[random.random_range(0..free.len())]);
            }
        }
    }
    round.retain(|kind| {
        let fits = cost(*kind, outage) <= *left;
        if fits {
            *left -= cost(*kind, outage);
        }
        fits
    });
    round
}

fn is_of_broker(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::KafkaDown | Kind::KafkaDownShort | Kind::BrokerLoop
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTAGE: Duration = Duration::from_secs(60);

    #[test]
    fn a_run_of_ten_minutes_has_every_kind_and_the_seed_decides_the_order() {
        for seed in 0..50 {
            let plan = schedule(seed, 600, OUTAGE, Kind::ALL);
            for kind in Kind::ALL {
                assert!(plan.once.contains(kind), "{kind:?} is left out");
            }
            let all = plan.once.iter().chain(&plan.more);
            let cost: Duration = all.map(|kind| cost(*kind, OUTAGE)).sum();
            assert!(cost <= Duration::from_secs(600), "{cost:?}");
            let last = plan.once.len() / 3;
            assert!(
                !plan
                    .once
                    .iter()
                    .rev()
                    .take(last)
                    .any(|kind| is_of_broker(*kind))
            );
        }
        let plan = |seed| schedule(seed, 600, OUTAGE, Kind::ALL);
        assert_eq!(plan(1), plan(1));
        assert_ne!(plan(1), plan(2));
    }

    #[test]
    fn a_short_run_has_what_fits_and_a_long_one_of_few_kinds_has_them_again() {
        let short = schedule(1, 60, Duration::from_secs(10), Kind::ALL);
        assert!(!short.once.is_empty() && short.once.len() < 12);
        let few = schedule(1, 120, Duration::from_secs(10), &[Kind::FlushAll]);
        assert_eq!(few.once, [Kind::FlushAll]);
        assert!(few.more.len() > 3);
    }
}
