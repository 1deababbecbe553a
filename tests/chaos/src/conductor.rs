//! The conductor of faults: every kind once, one or two at a time, with time to recover between, and
//! what the clients had of the system meanwhile. A fault that could not be set up, or was not seen
//! to bite, is tried once more when all others have come; what time is left then goes to more of
//! them.

use std::time::{Duration, Instant};

use cli::services::ServiceName;
use platform::clock;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::Serialize;

use crate::{
    faults::{self, Bite, Kind, Site, Window},
    schedule::{QUIET, Schedule, cost},
};

/// Nothing takes longer, whatever happens.
const FAULT_WITHIN: Duration = Duration::from_secs(180);
/// Between two faults when the time would not do otherwise.
const HURRIED: Duration = Duration::from_secs(1);

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
    /// It had failed, or not bitten, before.
    pub again: bool,
    /// Another fault at the same time.
    pub beside: Option<String>,
    /// What else was measured.
    pub measured: Vec<(String, f64)>,
}

/// The moments of a run.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// The load began.
    pub begun: Instant,
    /// When the load should end.
    pub until: Instant,
    /// Until when a kind that has not come yet may begin nevertheless.
    pub latest: Instant,
}

/// Runs the schedule until the time is over.
pub async fn run(site: &Site, seed: u64, schedule: &Schedule, times: Times) -> Vec<Row> {
    let mut conductor = Conductor {
        site,
        random: StdRng::seed_from_u64(seed ^ 0x00c0_ffee),
        times,
        rows: Vec::new(),
    };
    let costs = |kinds: &[Kind]| {
        kinds
            .iter()
            .map(|kind| cost(*kind, site.outage))
            .sum::<Duration>()
    };
    let mut failed = Vec::new();
    for (number, kind) in schedule.once.iter().enumerate() {
        let to_come = costs(&schedule.once[number..]);
        match conductor.turn(*kind, false, to_come, times.latest).await {
            Some(0) => failed.push(*kind),
            Some(_) => {}
            None => return conductor.rows,
        }
    }
    for (number, kind) in failed.iter().enumerate() {
        let to_come = costs(&failed[number..]);
        conductor.turn(*kind, true, to_come, times.latest).await;
    }
    for kind in &schedule.more {
        conductor
            .turn(*kind, false, Duration::ZERO, times.until)
            .await;
    }
    conductor.rows
}

struct Conductor<'a> {
    site: &'a Site,
    random: StdRng,
    times: Times,
    rows: Vec<Row>,
}

impl Conductor<'_> {
    /// One fault after a pause, which is short when what is to come would not come otherwise; how
    /// often it bit, or `None` when it is too late for it.
    async fn turn(
        &mut self,
        kind: Kind,
        again: bool,
        to_come: Duration,
        latest: Instant,
    ) -> Option<u64> {
        let calm = clock::monotonic();
        let quiet = QUIET.mul_f64(self.random.random_range(0.7..1.5));
        let hurry = calm + to_come > self.times.until;
        tokio::time::sleep(if hurry { HURRIED } else { quiet }).await;
        if clock::monotonic() >= latest {
            return None;
        }
        let plant = &self.site.plant;
        let alone = if is_steered(kind) {
            Some(plant.steered.lock().await)
        } else if is_loss_of_redis(kind) {
            Some(plant.gate_moved.lock().await)
        } else {
            None
        };
        let before = rate(self.site, calm, clock::monotonic());
        let mut row = one(self.site, kind, &mut self.random, self.times.begun, before).await;
        drop(alone);
        row.again = again;
        say(&row);
        let bites = row.bites;
        self.rows.push(row);
        Some(bites)
    }
}

fn say(row: &Row) {
    let measured = row.measured.iter();
    eprintln!(
        "{:7.1} s  {:4} {}: bit {} ({}){}",
        row.at_s,
        row.id,
        row.title,
        row.bites,
        row.how,
        measured
            .map(|(name, value)| format!(", {name} {value:.2}"))
            .collect::<String>()
    );
}

/// Faults that set crash points or need every member of a group where it is: the races that do the
/// same wait for them.
fn is_steered(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::KillStock
            | Kind::Zombie
            | Kind::RollingRestart
            | Kind::Blocked
            | Kind::RebalanceStorm
            | Kind::OffsetsReset
            | Kind::Evicting
            | Kind::WrongClock
            | Kind::CrashPoints
    )
}

/// Faults after which it is measured how soon the gate is exact.
fn is_loss_of_redis(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::RedisKilled | Kind::TailCut | Kind::FlushAll | Kind::StaleCopy | Kind::RedisDown
    )
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
        again: false,
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
