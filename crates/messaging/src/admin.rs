//! Topics as tools and tests see them: made, measured, read, written and deleted.

mod read;
mod safety;
mod write;

use std::time::{Duration, Instant};

use contracts::{ConsumerName, Topic, TopicNames};
use rdkafka::{
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    consumer::{BaseConsumer, Consumer},
    error::KafkaError,
    types::RDKafkaErrorCode,
};

use crate::client::{self, DEAD_RECORD_BYTES_MAX, RECORD_BYTES_MAX};

pub use read::{PartitionLag, RawRecord, dump, lag};
pub(crate) use read::{Polled, group_lag, partitions, poll};
pub use safety::{check_safety, unsafe_topics};
pub use write::{Producer, produce};

/// The bound of one request.
const REQUEST: Duration = Duration::from_secs(15);
/// How long topics keep events. Inbox rows outlive it, and so do the idempotency rows of requests.
const RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long dead letter topics keep copies.
const DEAD_RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);

/// Why the broker could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The client refuses its configuration.
    #[error("making the client")]
    Create(#[source] KafkaError),
    /// No answer within the bound.
    #[error("the broker did not answer within {within:?}")]
    NotReady {
        /// The bound.
        within: Duration,
        /// The last answer.
        #[source]
        source: Option<KafkaError>,
    },
    /// A request failed.
    #[error("asking the broker to {what}")]
    Request {
        /// What was asked.
        what: &'static str,
        /// What it said.
        #[source]
        source: KafkaError,
    },
    /// The topic is not there.
    #[error("topic {0} does not exist")]
    NoTopic(String),
    /// The thread that asked ended early.
    #[error("the thread that asked the broker ended early")]
    Thread(#[source] tokio::task::JoinError),
}

impl AdminError {
    pub(crate) fn request(what: &'static str) -> impl FnOnce(KafkaError) -> Self {
        move |source| Self::Request { what, source }
    }
}

/// What became of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicReport {
    /// The topic as the broker knows it.
    pub name: String,
    /// What became of it.
    pub outcome: TopicOutcome,
}

/// What [`ensure_topics`] found or did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicOutcome {
    /// It was made.
    Created,
    /// It was there; its settings were left alone.
    Exists,
    /// The broker refused, and why.
    Refused(String),
}

/// Waits until the brokers answer a metadata request.
///
/// # Errors
/// [`AdminError::NotReady`] when `timeout` passed first.
pub async fn wait_ready(brokers: &str, timeout: Duration) -> Result<(), AdminError> {
    let brokers = brokers.to_owned();
    blocking(move || {
        let reader: BaseConsumer =
            client::reader(&brokers, "holdfast-ready").map_err(AdminError::Create)?;
        let start = Instant::now();
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            let answer = reader.fetch_metadata(None, left.min(Duration::from_secs(2)));
            match answer {
                Ok(metadata) if !metadata.brokers().is_empty() => return Ok(()),
                _ if left.is_zero() => {
                    return Err(AdminError::NotReady {
                        within: timeout,
                        source: answer.err(),
                    });
                }
                _ => std::thread::sleep(Duration::from_millis(50).min(left)),
            }
        }
    })
    .await
}

/// Makes the topics of the contract and the dead letter topics that are missing, with explicit
/// retention, size and replica settings. Existing topics are left as they are.
///
/// # Errors
/// The broker can't be asked; what it refuses of single topics is in the reports.
pub async fn ensure_topics(
    brokers: &str,
    names: &TopicNames,
    partitions: i32,
    replication: i32,
) -> Result<Vec<TopicReport>, AdminError> {
    let client: AdminClient<DefaultClientContext> =
        client::admin(brokers).map_err(AdminError::Create)?;
    let min_insync = (replication - 1).max(1).to_string();
    let events = Settings::new(RETENTION, RECORD_BYTES_MAX, min_insync.clone());
    let dead = Settings::new(DEAD_RETENTION, DEAD_RECORD_BYTES_MAX, min_insync);
    let plain = Topic::ALL.map(|topic| (names.topic(topic), &events));
    let copies = ConsumerName::ALL.map(|consumer| (names.dlq(consumer), &dead));
    let wanted: Vec<_> = plain.into_iter().chain(copies).collect();
    let topics: Vec<_> = wanted
        .iter()
        .map(|(name, settings)| settings.topic(name, partitions, replication))
        .collect();
    let options = AdminOptions::new()
        .request_timeout(Some(REQUEST))
        .operation_timeout(Some(REQUEST));
    let results = client
        .create_topics(&topics, &options)
        .await
        .map_err(AdminError::request("create topics"))?;
    Ok(results.into_iter().map(report).collect())
}

fn report(result: Result<String, (String, RDKafkaErrorCode)>) -> TopicReport {
    match result {
        Ok(name) => TopicReport {
            name,
            outcome: TopicOutcome::Created,
        },
        Err((name, RDKafkaErrorCode::TopicAlreadyExists)) => TopicReport {
            name,
            outcome: TopicOutcome::Exists,
        },
        Err((name, code)) => TopicReport {
            name,
            outcome: TopicOutcome::Refused(code.to_string()),
        },
    }
}

/// Settings of topics, as the broker spells them.
struct Settings {
    retention_ms: String,
    max_message_bytes: String,
    min_insync: String,
}

impl Settings {
    fn new(retention: Duration, bytes: u32, min_insync: String) -> Self {
        Self {
            retention_ms: retention.as_millis().to_string(),
            max_message_bytes: bytes.to_string(),
            min_insync,
        }
    }

    fn topic<'a>(&'a self, name: &'a str, partitions: i32, replication: i32) -> NewTopic<'a> {
        NewTopic::new(name, partitions, TopicReplication::Fixed(replication))
            .set("cleanup.policy", "delete")
            .set("retention.ms", &self.retention_ms)
            .set("retention.bytes", "-1")
            .set("max.message.bytes", &self.max_message_bytes)
            .set("min.insync.replicas", &self.min_insync)
            .set("unclean.leader.election.enable", "false")
            .set("compression.type", "producer")
            .set("message.timestamp.type", "CreateTime")
    }
}

/// Deletes the topics of the contract and the dead letter topics: for tests. Missing ones are fine.
///
/// # Errors
/// The broker can't be asked.
pub async fn delete_topics(brokers: &str, names: &TopicNames) -> Result<(), AdminError> {
    let client: AdminClient<DefaultClientContext> =
        client::admin(brokers).map_err(AdminError::Create)?;
    let all: Vec<String> = Topic::ALL
        .map(|topic| names.topic(topic))
        .into_iter()
        .chain(ConsumerName::ALL.map(|consumer| names.dlq(consumer)))
        .collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let options = AdminOptions::new()
        .request_timeout(Some(REQUEST))
        .operation_timeout(Some(REQUEST));
    client
        .delete_topics(&all, &options)
        .await
        .map(drop)
        .map_err(AdminError::request("delete topics"))
}

/// Runs what blocks on a thread that may.
async fn blocking<T, F>(work: F) -> Result<T, AdminError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, AdminError> + Send + 'static,
{
    tokio::task::spawn_blocking(work)
        .await
        .map_err(AdminError::Thread)?
}
