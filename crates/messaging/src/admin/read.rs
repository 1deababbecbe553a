//! Reads positions and records from outside of any group.

use std::{collections::HashMap, time::Duration};

use contracts::{ConsumerName, TopicNames};
use platform::clock;
use rdkafka::{
    Message, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer},
    error::{KafkaError, RDKafkaErrorCode},
    message::BorrowedMessage,
};

use super::{AdminError, REQUEST, blocking};
use crate::{client, record::RawHeaders};

/// How far a group is in one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionLag {
    /// The partition.
    pub partition: i32,
    /// The committed offset; `None` when the group never committed here.
    pub committed: Option<i64>,
    /// The lowest offset still kept.
    pub low: i64,
    /// The offset that the next record will have.
    pub high: i64,
}

impl PartitionLag {
    /// Records that the group has not committed.
    #[must_use]
    pub fn lag(&self) -> i64 {
        (self.high - self.committed.unwrap_or(self.low).max(self.low)).max(0)
    }
}

/// A record as it lies on the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawRecord {
    /// The topic as the broker knows it.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
    /// Milliseconds since 1970, when given.
    pub timestamp_ms: Option<i64>,
    /// The key, when given.
    pub key: Option<Vec<u8>>,
    /// The value; `None` is a tombstone.
    pub payload: Option<Vec<u8>>,
    /// The headers in their order; empty when their names are not UTF-8.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl RawRecord {
    /// The first header of this name as text, when there.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(given, _)| given == name)?;
        std::str::from_utf8(value.as_deref()?).ok()
    }
}

/// How far a consumer's group is, per partition of its topic.
///
/// # Errors
/// The broker can't be asked, or the topic is missing.
pub async fn lag(
    brokers: &str,
    names: &TopicNames,
    consumer: ConsumerName,
) -> Result<Vec<PartitionLag>, AdminError> {
    let (brokers, topic, group) = (
        brokers.to_owned(),
        names.topic(consumer.topic()),
        names.group(consumer),
    );
    blocking(move || {
        let reader: BaseConsumer = client::reader(&brokers, &group).map_err(AdminError::Create)?;
        let all = partitions(&reader, &topic, REQUEST)?;
        group_lag(&reader, &topic, all, REQUEST)
    })
    .await
}

/// How far the reader's group is in these partitions. Each request has the bound.
pub(crate) fn group_lag(
    reader: &BaseConsumer,
    topic: &str,
    partitions: impl IntoIterator<Item = i32>,
    bound: Duration,
) -> Result<Vec<PartitionLag>, AdminError> {
    let mut list = TopicPartitionList::new();
    for partition in partitions {
        list.add_partition(topic, partition);
    }
    let committed = committed(reader, &list, bound)?;
    committed
        .elements()
        .iter()
        .map(|element| {
            let (low, high) = watermarks(reader, topic, element.partition(), bound)?;
            let committed = match element.offset() {
                Offset::Offset(offset) => Some(offset),
                _ => None,
            };
            Ok(PartitionLag {
                partition: element.partition(),
                committed,
                low,
                high,
            })
        })
        .collect()
}

fn committed(
    reader: &BaseConsumer,
    list: &TopicPartitionList,
    bound: Duration,
) -> Result<TopicPartitionList, AdminError> {
    let start = clock::monotonic();
    loop {
        match reader.committed_offsets(list.clone(), bound) {
            Ok(committed) => return Ok(committed),
            Err(error) if is_settling(&error) && start.elapsed() < bound => {
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(source) => {
                return Err(AdminError::Request {
                    what: "read committed offsets",
                    source,
                });
            }
        }
    }
}

/// The partitions of a topic.
pub(crate) fn partitions(
    reader: &BaseConsumer,
    topic: &str,
    bound: Duration,
) -> Result<Vec<i32>, AdminError> {
    let metadata = reader
        .fetch_metadata(Some(topic), bound)
        .map_err(AdminError::request("describe a topic"))?;
    match metadata.topics().iter().find(|found| found.name() == topic) {
        Some(found) if found.error().is_none() => Ok(found
            .partitions()
            .iter()
            .map(rdkafka::metadata::MetadataPartition::id)
            .collect()),
        _ => Err(AdminError::NoTopic(topic.to_owned())),
    }
}

/// Waits out what a broker answers while a topic is new or moves.
fn watermarks(
    reader: &BaseConsumer,
    topic: &str,
    partition: i32,
    bound: Duration,
) -> Result<(i64, i64), AdminError> {
    let start = clock::monotonic();
    loop {
        match reader.fetch_watermarks(topic, partition, bound) {
            Ok(watermarks) => return Ok(watermarks),
            Err(error) if is_settling(&error) && start.elapsed() < bound => {
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(source) => {
                return Err(AdminError::Request {
                    what: "read watermarks",
                    source,
                });
            }
        }
    }
}

fn is_settling(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            RDKafkaErrorCode::NotLeaderForPartition
                | RDKafkaErrorCode::LeaderNotAvailable
                | RDKafkaErrorCode::UnknownTopicOrPartition
                | RDKafkaErrorCode::UnknownPartition
                | RDKafkaErrorCode::CoordinatorLoadInProgress
                | RDKafkaErrorCode::CoordinatorNotAvailable
                | RDKafkaErrorCode::NotCoordinator
        )
    )
}

/// Reads a topic (the broker's name) from its start to its end of now; gives the number of records.
/// Blocks: call it where that is allowed.
///
/// # Errors
/// The broker can't be asked, or the topic is missing.
pub fn dump(
    brokers: &str,
    topic: &str,
    mut on_record: impl FnMut(RawRecord),
) -> Result<u64, AdminError> {
    let reader: BaseConsumer =
        client::reader(brokers, "holdfast-dump").map_err(AdminError::Create)?;
    let mut open = HashMap::new();
    let mut list = TopicPartitionList::new();
    for partition in partitions(&reader, topic, REQUEST)? {
        let (low, high) = watermarks(&reader, topic, partition, REQUEST)?;
        if low < high {
            open.insert(partition, high);
            list.add_partition_offset(topic, partition, Offset::Offset(low))
                .map_err(AdminError::request("choose offsets"))?;
        }
    }
    reader
        .assign(&list)
        .map_err(AdminError::request("read a topic"))?;
    let mut read = 0;
    while !open.is_empty() {
        match poll(&reader, REQUEST)? {
            Polled::Record(message) => {
                let (partition, offset) = (message.partition(), message.offset());
                let Some(&high) = open.get(&partition) else {
                    continue;
                };
                if offset < high {
                    on_record(raw(&message));
                    read += 1;
                }
                if offset + 1 >= high {
                    open.remove(&partition);
                }
            }
            Polled::End(partition) => {
                open.remove(&partition);
            }
        }
    }
    Ok(read)
}

/// What a reader came to.
pub(crate) enum Polled<'a> {
    /// A record.
    Record(BorrowedMessage<'a>),
    /// The end of this partition, as of now.
    End(i32),
}

/// Reads on in what the reader was assigned.
pub(crate) fn poll(reader: &BaseConsumer, bound: Duration) -> Result<Polled<'_>, AdminError> {
    match reader.poll(bound) {
        Some(Ok(record)) => Ok(Polled::Record(record)),
        Some(Err(KafkaError::PartitionEOF(partition))) => Ok(Polled::End(partition)),
        Some(Err(source)) => Err(AdminError::Request {
            what: "read a topic",
            source,
        }),
        None => Err(AdminError::NotReady {
            within: bound,
            source: None,
        }),
    }
}

fn raw(message: &BorrowedMessage<'_>) -> RawRecord {
    RawRecord {
        topic: message.topic().to_owned(),
        partition: message.partition(),
        offset: message.offset(),
        timestamp_ms: message.timestamp().to_millis(),
        key: message.key().map(<[u8]>::to_vec),
        payload: message.payload().map(<[u8]>::to_vec),
        headers: match crate::record::read_headers(message) {
            RawHeaders::Readable(headers) => headers,
            RawHeaders::Unreadable => Vec::new(),
        },
    }
}
