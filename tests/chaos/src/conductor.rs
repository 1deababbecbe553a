//! The schedule of faults: all kinds in an order of the seed, one or two at a time, with time to
//! recover between; and what the clients had of the system meanwhile.

use std::time::{Duration, Instant};

use cli::services::ServiceName;
use platform::clock;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde::Serialize;

use crate::faults::{self, Bite, Kind, Site, Window};

/// Nothing takes longer, whatever happens.
const FAULT_WITHIN: Duration = Duration::from_secs(180);
/// Between two faults.
const QUIET: Duration = Duration::from_secs(3);

/// One fault, as it went.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Its number in the matrix.
    pub id: &'static str,
    /// In words.
    pub title: &'static str,
    /// Seconds from the start of the load to it.
    pub at_s: f64,
    /// How long it was there, in seconds.
    pub held_s: f64,
    /// How often it bit.
    pub bites: u64,
    /// Where that was read, or why it could not be.
    pub how: String,
    /// First 201s a second in the quiet before.
    pub goodput_before: f64,
    /// And while it was there.
    pub goodput_during: f64,
    /// From the healing to the first 201, in seconds.
    pub first_201_after_s: Option<f64>,
    /// Another fault at the same time.
    pub beside: Option<String>,
    /// What else was measured.
    pub measured: Vec<(String, f64)>,
}

/// The faults of a run, in the order of the seed: every kind once as far as the time goes, then
/// again.
#[must_use]
pub fn schedule(seed: u64, seconds: u64, only: &[Kind]) -> Vec<Kind> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut left = seconds;
    let mut planned = Vec::new();
    let kinds = if only.is_empty() { Kind::ALL } else { only };
    while left > 0 {
        let mut round = kinds.to_vec();
        round.shuffle(&mut random);
        let before = planned.len();
        for kind in round {
            let cost = kind.seconds() + QUIET.as_secs() + 1;
            if cost <= left {
                left -= cost;
                planned.push(kind);
            }
        }
        if planned.len() == before {
            break;
        }
    }
    planned
}

/// Runs the schedule until the time is over.
pub async fn run(
    site: &Site,
    seed: u64,
    plan: &[Kind],
    until: Instant,
    begun: Instant,
) -> Vec<Row> {
    let mut random = StdRng::seed_from_u64(seed ^ 0x00c0_ffee);
    let mut rows = Vec::new();
    for kind in plan {
        let quiet = QUIET.mul_f64(random.random_range(0.7..1.5));
        let calm = clock::monotonic();
        tokio::time::sleep(quiet).await;
        if clock::monotonic() >= until {
            break;
        }
        let before = rate(site, calm, clock::monotonic());
        let row = one(site, *kind, &mut random, begun, before).await;
        eprintln!(
            "{:7.1} s  {:4} {}: bit {} ({}){}",
            row.at_s,
            row.id,
            row.title,
            row.bites,
            row.how,
            row.measured
                .iter()
                .map(|(name, value)| format!(", {name} {value:.2}"))
                .collect::<String>()
        );
        rows.push(row);
    }
    rows
}

async fn one(
    site: &Site,
    kind: Kind,
    random: &mut StdRng,
    begun: Instant,
    goodput_before: f64,
) -> Row {
    let injected = clock::monotonic();
    let mut window = Window {
        injected,
        healed: None,
    };
    // A service dies beside a fault of a server, sometimes.
    let second = (is_of_server(kind) && random.random_bool(0.3)).then(|| {
        let of = [ServiceName::Order, ServiceName::Payment, ServiceName::Stock];
        (of[random.random_range(0..3)], random.random_range(0..2))
    });
    let faulted = Box::pin(faults::run(kind, site, random, &mut window));
    let both = async {
        tokio::join!(
            tokio::time::timeout(FAULT_WITHIN, faulted),
            beside(site, second)
        )
    };
    let (bite, beside) = both.await;
    let healed = window.healed.unwrap_or_else(clock::monotonic);
    let bite = match bite {
        Ok(Ok(bite)) => bite,
        Ok(Err(error)) => Bite::of(0, format!("failed: {error:#}")),
        Err(_) => Bite::of(0, "took too long"),
    };
    let healing = site.plant.heal().await;
    let how = match healing {
        Ok(()) => bite.how,
        Err(error) => format!("{}; does not heal: {error:#}", bite.how),
    };
    if let Err(error) = site.plant.gateway_as_usual().await {
        eprintln!("the gateway: {error:#}");
    }
    let first = faults::until_accepted(site, healed).await;
    Row {
        id: kind.id(),
        title: kind.title(),
        at_s: (injected - begun).as_secs_f64(),
        held_s: (healed - injected).as_secs_f64(),
        bites: bite.times,
        how,
        goodput_before,
        goodput_during: rate(site, injected, healed),
        first_201_after_s: first.map(|took| took.as_secs_f64()),
        beside,
        measured: bite.measured,
    }
}

async fn beside(site: &Site, second: Option<(ServiceName, usize)>) -> Option<String> {
    let (service, number) = second?;
    let replica = site.plant.replica(service, number).ok()?;
    tokio::time::sleep(Duration::from_millis(700)).await;
    let killed = replica.kill().await.ok()?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    replica.start().await.ok()?;
    killed.then(|| format!("kill -9 of {}", replica.name))
}

/// Faults of servers, during which a service may die as well.
fn is_of_server(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::KafkaDownShort
            | Kind::BrokerSlow
            | Kind::DuplicateStorm
            | Kind::FlushAll
            | Kind::RedisDown
            | Kind::RedisSlow
            | Kind::RedisFull
            | Kind::SlowCommits
            | Kind::CommitReplyLost
            | Kind::ScriptReplyLost
            | Kind::ProduceReplyLost
            | Kind::Gateway
    )
}

fn rate(site: &Site, from: Instant, to: Instant) -> f64 {
    let accepted = site.ledger.accepted_between(from, to);
    let seconds = to.saturating_duration_since(from).as_secs_f64();
    f64::from(u32::try_from(accepted).unwrap_or(u32::MAX)) / seconds.max(0.001)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_ten_minutes_has_every_kind_and_the_seed_decides_the_order() {
        let plan = schedule(1, 600, &[]);
        for kind in Kind::ALL {
            assert!(plan.contains(kind), "{kind:?} is left out");
        }
        assert_eq!(plan, schedule(1, 600, &[]));
        assert_ne!(plan, schedule(2, 600, &[]));
        let cost: u64 = plan.iter().map(|kind| kind.seconds() + 4).sum();
        assert!(cost <= 600, "{cost} s");
    }
}
