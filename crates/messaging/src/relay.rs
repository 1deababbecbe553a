//! The relay: every committed outbox row is published at least once, in order per key; a row is
//! passed over only when its transaction rolled back or the record itself can never be sent (P8).
//!
//! One process leads: it holds the lease, and reads, parks and moves the watermark on the lease's
//! connection alone, so that one which lost the lease can do none of it. What it sent before it
//! noticed is sent again by the next leader, with the same event ids.
//!
//! A leader that has something to send and gets no acknowledgement gives way: what it lacks may be its
//! own connection to Kafka, and whether another has a better one is known when that one leads. So the
//! lease goes round while Kafka is away for all; each time it is taken with a new producer.
//!
//! When it dies: before the acknowledgement, the rows are sent again from the watermark; after it
//! and before the watermark moved, they are sent twice. Consumers tell by (`ce_source`, `ce_id`).

mod cursor;
mod leader;
mod record;
mod reports;
mod sender;
mod upkeep;

use std::time::Duration;

use contracts::TopicNames;
use platform::Shutdown;
use store::{Store, StoreOptions, lease};

use crate::backoff::Backoff;

pub use leader::{Relay, Step};

/// How long another process waits before it asks for the lease again.
const STAND_BY: Duration = Duration::from_secs(1);
/// Between two steps while there is work, and the most when there is none.
const BUSY: Duration = Duration::from_millis(5);
const IDLE: Duration = Duration::from_millis(50);
/// A step that takes longer talks to nobody: its lease is lost.
const STEP_MAX: Duration = Duration::from_secs(6);

/// Who gave way does not ask for the lease again for half of that or more: whoever stands by asks every
/// [`STAND_BY`].
const AFTER_GIVING_WAY: Duration = Duration::from_secs(6);

/// What [`RelayConfig::silence_max`] is in the services. It is also the way out for a process that leads
/// alone: in one run of the tests nothing was published for the minute after the broker's return, and a
/// new producer needs no cause; whatever the old one had sent is sent again.
pub const SILENCE_MAX: Duration = Duration::from_secs(10);

/// What the relay needs.
#[derive(Debug, Clone)]
pub struct RelayConfig {
    /// Where the outbox is: the lease opens a connection of its own.
    pub options: StoreOptions,
    /// The same, for measurements and for standing by.
    pub store: Store,
    /// Bootstrap servers, comma-separated.
    pub brokers: String,
    /// Names of topics.
    pub names: TopicNames,
    /// The process, as shown in logs and at the broker.
    pub instance: String,
    /// How long there may be something to send without any acknowledgement; then the leader gives way.
    /// See [`SILENCE_MAX`].
    pub silence_max: Duration,
}

/// Why the relay can't lead on. It stands down and tries to lead again.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The lease is lost, or the database under it.
    #[error("the relay's lease or its connection")]
    Store(#[from] store::StoreError),
    /// The producer can't be made.
    #[error("making the relay's producer")]
    Producer(#[source] rdkafka::error::KafkaError),
}

/// Stands by until it may lead, leads until it loses the lease, for ever; ends at shutdown, having
/// flushed, moved the watermark and released the lease. Every service process calls it.
pub async fn run(config: RelayConfig, shutdown: Shutdown) {
    let leads = metrics::gauge!("relay_is_leader", "instance" => config.instance.clone());
    leads.set(0.0);
    let mut backoff = Backoff::new(STAND_BY, Duration::from_secs(5));
    let (mut failing, mut gave_way) = (false, false);
    while !shutdown.has_begun() {
        let pause = match lead_if_free(&config).await {
            Ok(Some(mut relay)) => {
                failing = false;
                backoff.reset();
                leads.set(1.0);
                relay.gave_way = gave_way;
                let ended = lead(&mut relay, &config.instance, &shutdown).await;
                gave_way = relay.gave_way || ended == Ended::InVain;
                leads.set(0.0);
                end(relay, ended, &config.instance).await
            }
            Ok(None) => STAND_BY,
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "relay can't ask for its lease"
                    );
                }
                backoff.pause()
            }
        };
        wait(pause, &shutdown).await;
    }
}

/// Takes the lease when nobody has it; a connection to hold it on is made only then.
async fn lead_if_free(config: &RelayConfig) -> Result<Option<Relay>, RelayError> {
    match lease::is_free(&config.store, leader::LEASE).await {
        Ok(false) => Ok(None),
        // A pool that is used up must not keep everybody from leading.
        Ok(true) | Err(_) => Relay::lead(config.clone()).await,
    }
}

/// Why a leadership is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// The lease is lost.
    Lost,
    /// Nothing is acknowledged.
    InVain,
    /// Shutdown began.
    Shutdown,
}

/// Gives the lease back, if it is there to be given; how long to wait before it is asked for again.
async fn end(relay: Relay, ended: Ended, instance: &str) -> Duration {
    match ended {
        Ended::Lost => STAND_BY,
        Ended::InVain => {
            metrics::counter!("relay_gave_way_total").increment(1);
            // once, however often the lease goes round before something is acknowledged
            if !relay.gave_way {
                tracing::warn!(
                    relay.instance = instance,
                    relay.low = relay.low(),
                    "relay gives way: nothing is acknowledged"
                );
            }
            relay.give_back().await;
            Backoff::new(AFTER_GIVING_WAY, AFTER_GIVING_WAY).pause()
        }
        Ended::Shutdown => {
            relay.stand_down().await;
            tracing::info!(relay.instance = instance, "relay stood down for shutdown");
            STAND_BY
        }
    }
}

/// Leads until the lease is lost, nothing is acknowledged, or shutdown begins.
async fn lead(relay: &mut Relay, instance: &str, shutdown: &Shutdown) -> Ended {
    tracing::info!(
        relay.instance = instance,
        relay.low = relay.low(),
        "relay leads"
    );
    let mut pause = BUSY;
    while !shutdown.has_begun() {
        let step = tokio::time::timeout(STEP_MAX, relay.step()).await;
        let Ok(step) = step else {
            tracing::warn!("relay stands down: the database does not answer");
            return Ended::Lost;
        };
        match step {
            Ok(step) if step.more => continue,
            Ok(step) if step.is_quiet() => pause = (pause * 2).min(IDLE),
            Ok(_) => pause = BUSY,
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "relay stands down"
                );
                return Ended::Lost;
            }
        }
        if relay.is_in_vain() {
            return Ended::InVain;
        }
        tokio::select! {
            // else acknowledgements wait for the next step: a step is a question to the database
            () = relay.reported(), if relay.is_held_up() => {}
            () = wait(pause, shutdown) => {}
        }
    }
    Ended::Shutdown
}

async fn wait(pause: Duration, shutdown: &Shutdown) {
    tokio::select! {
        () = tokio::time::sleep(pause) => {}
        () = shutdown.begun() => {}
    }
}
