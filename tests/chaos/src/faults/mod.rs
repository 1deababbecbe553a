//! Every kind of fault: how it is injected, healed, and how it is seen to have bitten.

mod clients;
pub mod clocks;
pub mod crashes;
mod gateway;
mod kafka;
mod network;
mod postgres;
mod processes;
mod redis;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cli::services::ServiceName;
use platform::clock;
use rand::rngs::StdRng;

use crate::{ledger::Ledger, link::Reply, load::Load, metrics::Metrics, plant::Plant};

/// What faults work on.
#[derive(Clone)]
pub struct Site {
    /// What runs.
    pub plant: Arc<Plant>,
    /// What is asked of it.
    pub load: Arc<Load>,
    /// What was seen.
    pub ledger: Arc<Ledger>,
    /// What it counts.
    pub metrics: Arc<Metrics>,
    /// How long the longest outage of a server lasts.
    pub outage: Duration,
}

/// When a fault was there.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// From.
    pub injected: Instant,
    /// Until; the end of the fault's function when it does not say.
    pub healed: Option<Instant>,
}

impl Window {
    /// The fault ends now; when that is.
    pub fn heal(&mut self) -> Instant {
        let now = clock::monotonic();
        self.healed = Some(now);
        now
    }
}

/// The measure of T11 and T12: until the gate was exact again.
pub const GATE_EXACT: &str = "gate_exact_s";

/// That a fault bit.
#[derive(Debug, Default)]
pub struct Bite {
    /// How often; 0 makes the run void.
    pub times: u64,
    /// Where that was read.
    pub how: String,
    /// What was measured, each with its unit in its name.
    pub measured: Vec<(String, f64)>,
}

impl Bite {
    /// So often, as something says.
    #[must_use]
    pub fn of(times: u64, how: impl Into<String>) -> Self {
        Self {
            times,
            how: how.into(),
            measured: Vec::new(),
        }
    }

    /// With a measure.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: f64) -> Self {
        self.measured.push((name.into(), value));
        self
    }
}

macro_rules! kinds {
    ($($kind:ident $id:literal $title:literal $seconds:literal)*) => {
        /// The kinds, numbered as in the fault matrix.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind {
            $(#[doc = $title] $kind,)*
        }

        impl Kind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// Its number in the matrix.
            #[must_use]
            pub fn id(self) -> &'static str {
                match self { $(Self::$kind => $id,)* }
            }

            /// In words.
            #[must_use]
            pub fn title(self) -> &'static str {
                match self { $(Self::$kind => $title,)* }
            }

            /// About how long it takes, in seconds; the outage of F11 comes on top.
            #[must_use]
            pub fn seconds(self) -> u64 {
                match self { $(Self::$kind => $seconds,)* }
            }
        }
    };
}

kinds! {
    KillOrder "F1" "kill -9 of an order service" 5
    KillPayment "F2" "kill -9 of a payment service" 5
    KillStock "F3" "kill -9 of a stock service" 5
    KillGateway "F4" "kill -9 of the gateway" 5
    KillRelayLeader "F5" "kill -9 of the relay's leader" 6
    KillAll "F6" "kill -9 of all services at once" 8
    Zombie "F7" "a consumer stopped past its session, then continued" 14
    StoppedLeader "F8" "the relay's leader stopped past its lease, then continued" 8
    RollingRestart "F9" "SIGTERM of every service in turn" 12
    Blocked "F10" "every thread of an order service asleep" 14
    KafkaDown "F11" "the broker killed, for long" 22
    KafkaDownShort "F12" "the broker down for longer than short orders can wait" 14
    BrokerLoop "F13" "the broker killed again and again" 20
    BrokerSlow "F14" "every packet to and from the broker late by 0.5 s" 8
    ProduceReplyLost "F16" "replies to Produce lost after the write" 5
    RebalanceStorm "F18" "a member of each group leaves and joins every 3 s" 14
    OffsetsReset "F20" "offsets of a group back at the beginning" 8
    DuplicateStorm "F22" "thousands of records once more, shuffled" 8
    RedisKilled "F23" "Redis killed and restarted from its AOF" 5
    TailCut "F24" "Redis restarted without its last writes" 8
    FlushAll "F25" "FLUSHALL" 6
    StaleCopy "F26" "Redis replaced by a copy from seconds ago" 12
    RedisDown "F28" "Redis down" 12
    RedisSlow "F29" "Redis slow, then half-open" 8
    RedisFull "F30" "Redis at its memory limit" 6
    Evicting "F31" "Redis with an eviction policy, and a stock service that starts" 7
    RedisRefuses "F32" "SCRIPT FLUSH, then a Redis that is a replica" 6
    PgRestart "F33" "PostgreSQL restarted, fast" 6
    PgCrash "F33i" "PostgreSQL killed, with recovery" 10
    BackendKilled "F34" "one backend killed: the postmaster resets all" 7
    ConnectionsGone "F35" "no connection left at PostgreSQL" 5
    LockedRows "F36" "rows of stock locked by somebody else" 6
    ReadOnly "F37" "PostgreSQL read-only" 5
    SlowCommits "F40" "every packet to and from PostgreSQL late by 0.1 s" 6
    HalfOpen "F41" "a link that falls silent, to each server in turn" 18
    Partition "F42" "a service cut off from one server, each in turn, and one way only" 18
    WrongClock "F43" "two services whose clocks are wrong by 11 minutes, one each way" 20
    Gateway "F45" "the gateway down, slow, silent, repeating its webhooks" 16
    BadClients "F46" "people who hang up, dawdle, and send ten times at once" 6
    CommitReplyLost "CP5" "replies to COMMIT lost after the commit" 5
    ScriptReplyLost "CP2" "replies of the gate's scripts lost after they ran" 5
    OffsetReplyLost "CP16" "replies to OffsetCommit lost" 6
    CrashPoints "CP" "five crash points at random: die, fail, hang, wait" 8
}

impl Kind {
    /// The kind of this number.
    #[must_use]
    pub fn of(id: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.id() == id)
    }
}

/// Injects a fault, holds it for its time, heals it.
///
/// # Errors
/// It could not be injected or healed.
pub async fn run(
    kind: Kind,
    site: &Site,
    random: &mut StdRng,
    window: &mut Window,
) -> anyhow::Result<Bite> {
    use ServiceName::{Order, Payment, Stock};
    match kind {
        Kind::KillOrder => processes::kill(site, Order, random, window).await,
        Kind::KillPayment => processes::kill(site, Payment, random, window).await,
        Kind::KillStock => processes::kill(site, Stock, random, window).await,
        Kind::KillGateway => processes::kill(site, ServiceName::GatewaySim, random, window).await,
        Kind::KillRelayLeader => processes::kill_leader(site, window).await,
        Kind::KillAll => processes::kill_all(site, window).await,
        Kind::Zombie => processes::zombie(site, window).await,
        Kind::StoppedLeader => processes::stop_leader(site, window).await,
        Kind::RollingRestart => processes::rolling(site, window).await,
        Kind::Blocked => crashes::blocked(site, random, window).await,
        Kind::KafkaDown => kafka::down(site, site.outage, window).await,
        Kind::KafkaDownShort => kafka::down_short(site, window).await,
        Kind::BrokerLoop => kafka::restart_loop(site, window).await,
        Kind::BrokerSlow => kafka::slow(site, window).await,
        Kind::RebalanceStorm => kafka::storm(site, window).await,
        Kind::OffsetsReset => kafka::reset(site, window).await,
        Kind::DuplicateStorm => kafka::duplicates(site, random).await,
        Kind::RedisKilled => redis::killed(site, Duration::from_millis(500), window).await,
        Kind::RedisDown => {
            redis::killed(site, site.outage.min(Duration::from_secs(15)), window).await
        }
        Kind::TailCut => redis::tail_cut(site, window).await,
        Kind::FlushAll => redis::flush_all(site, window).await,
        Kind::StaleCopy => redis::stale_copy(site, window).await,
        Kind::RedisSlow => redis::slow(site, window).await,
        Kind::RedisFull => redis::full(site, window).await,
        Kind::Evicting => redis::evicting(site, window).await,
        Kind::RedisRefuses => redis::refuses(site, window).await,
        Kind::PgRestart => postgres::restart(site, false, window).await,
        Kind::PgCrash => postgres::restart(site, true, window).await,
        Kind::BackendKilled => postgres::backend(site, window).await,
        Kind::ConnectionsGone => postgres::exhausted(site, window).await,
        Kind::LockedRows => postgres::locked(site, random, window).await,
        Kind::ReadOnly => postgres::read_only(site, window).await,
        Kind::SlowCommits => network::slow_postgres(site, window).await,
        Kind::HalfOpen => network::half_open(site, random, window).await,
        Kind::Partition => network::partition(site, random, window).await,
        Kind::WrongClock => clocks::wrong(site, random, window).await,
        Kind::Gateway => gateway::trouble(site, window).await,
        Kind::BadClients => clients::bad(site, random).await,
        Kind::ProduceReplyLost => network::lose(site, Reply::Produce, random, window).await,
        Kind::CommitReplyLost => network::lose(site, Reply::Commit, random, window).await,
        Kind::ScriptReplyLost => network::lose(site, Reply::Script, random, window).await,
        Kind::CrashPoints => crashes::random(site, random, window).await,
        Kind::OffsetReplyLost => network::lose(site, Reply::OffsetCommit, random, window).await,
    }
}

/// Waits in the middle of a fault.
async fn hold(seconds: f64) {
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
}

/// Asks again and again until something is true; how long that took, or `None` within the bound.
pub(crate) async fn until<F, Fut>(bound: Duration, mut asked: F) -> Option<Duration>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = bool>,
{
    let begun = clock::monotonic();
    while begun.elapsed() < bound {
        if asked().await {
            return Some(begun.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    None
}

/// A difference of counters as a count.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counters are whole, and below 2^53"
)]
fn count(difference: f64) -> u64 {
    difference.max(0.0).round() as u64
}

/// Seconds, or -1 for what did not happen.
fn seconds(took: Option<Duration>) -> f64 {
    took.map_or(-1.0, |took| took.as_secs_f64())
}

/// The first 201 after a moment, waited for, for at most half a minute.
pub async fn until_accepted(site: &Site, from: Instant) -> Option<Duration> {
    until(Duration::from_secs(30), || async {
        site.ledger.first_accepted_after(from, None).is_some()
    })
    .await;
    site.ledger.first_accepted_after(from, None)
}
