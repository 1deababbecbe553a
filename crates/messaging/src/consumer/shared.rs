//! What the thread that polls and the runner know in common, and the client's callbacks that tell it.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use platform::clock;
use rdkafka::{
    ClientContext, TopicPartitionList,
    consumer::{BaseConsumer, ConsumerContext, Rebalance},
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
};
use serde::Deserialize;

use super::{offsets::Epoch, poller::Record};

/// Records and bytes that are read and not done, at most.
const RECORDS_MAX: usize = 5000;
const BYTES_MAX: usize = 32 * 1024 * 1024;

/// What the thread and the runner know in common.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) topic: String,
    assignment: Mutex<Assignment>,
    outstanding: AtomicUsize,
    outstanding_bytes: AtomicUsize,
    member: AtomicBool,
    connected: AtomicBool,
    polled_at: Mutex<Instant>,
}

#[derive(Debug, Default)]
struct Assignment {
    epochs: HashMap<i32, Epoch>,
    last: Epoch,
    /// Per partition, records on the broker that were not read yet.
    unread: HashMap<i32, i64>,
}

impl Shared {
    pub(super) fn new(topic: String) -> Self {
        Self {
            topic,
            assignment: Mutex::default(),
            outstanding: AtomicUsize::new(0),
            outstanding_bytes: AtomicUsize::new(0),
            member: AtomicBool::new(false),
            connected: AtomicBool::new(false),
            polled_at: Mutex::new(clock::monotonic()),
        }
    }

    fn assignment(&self) -> MutexGuard<'_, Assignment> {
        self.assignment
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a partition is still ours since that time.
    pub(super) fn owns(&self, partition: i32, epoch: Epoch) -> bool {
        self.assignment().epochs.get(&partition) == Some(&epoch)
    }

    /// Since which time a partition is ours.
    pub(super) fn epoch(&self, partition: i32) -> Option<Epoch> {
        self.assignment().epochs.get(&partition).copied()
    }

    /// The number of the last change of the assignment.
    pub(super) fn last_change(&self) -> Epoch {
        self.assignment().last
    }

    /// A record was read.
    pub(super) fn took(&self, record: &Record) {
        self.member.store(true, Ordering::Relaxed);
        self.outstanding.fetch_add(1, Ordering::Relaxed);
        self.outstanding_bytes
            .fetch_add(record.bytes(), Ordering::Relaxed);
    }

    /// A record is done with, one way or another.
    pub(super) fn release(&self, record: &Record) {
        self.outstanding.fetch_sub(1, Ordering::Relaxed);
        self.outstanding_bytes
            .fetch_sub(record.bytes(), Ordering::Relaxed);
    }

    /// Records read and not done.
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Relaxed)
    }

    /// Records on the broker that were not read yet, as of the last statistics.
    pub(super) fn unread(&self) -> i64 {
        self.assignment().unread.values().sum()
    }

    /// Whether a broker is connected and the group has settled, as of the last statistics.
    pub(super) fn is_member(&self) -> bool {
        self.member.load(Ordering::Relaxed)
    }

    /// Whether a broker is connected, as of the last statistics.
    pub(super) fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// How long ago the client was polled.
    pub(super) fn polled_ago(&self) -> Duration {
        self.polled_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .elapsed()
    }

    pub(super) fn polled(&self) {
        *self
            .polled_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = clock::monotonic();
    }

    pub(super) fn is_full(&self, share: usize) -> bool {
        self.outstanding() >= RECORDS_MAX / share
            || self.outstanding_bytes.load(Ordering::Relaxed) >= BYTES_MAX / share
    }
}

/// The callbacks of the client; they run on the thread that polls.
pub(super) struct Context {
    pub(super) shared: Arc<Shared>,
    pub(super) consumer: &'static str,
}

/// The part of librdkafka's statistics that is read.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Statistics {
    brokers: HashMap<String, BrokerStatistics>,
    topics: HashMap<String, TopicStatistics>,
    cgrp: GroupStatistics,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct GroupStatistics {
    join_state: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct BrokerStatistics {
    state: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct TopicStatistics {
    partitions: HashMap<String, PartitionStatistics>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PartitionStatistics {
    app_offset: i64,
    stored_offset: i64,
    committed_offset: i64,
    hi_offset: i64,
}

impl ClientContext for Context {
    fn stats_raw(&self, statistics: &[u8]) {
        match serde_json::from_slice::<Statistics>(statistics) {
            Ok(statistics) => self.take(&statistics),
            Err(error) => tracing::warn!(%error, "librdkafka's statistics can't be read"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if matches!(
            error.rdkafka_error_code(),
            Some(RDKafkaErrorCode::AllBrokersDown)
        ) {
            self.shared.member.store(false, Ordering::Relaxed);
            self.shared.connected.store(false, Ordering::Relaxed);
        }
        tracing::debug!(%error, reason, consumer = self.consumer, "the consumer's client reports an error");
    }
}

impl Context {
    fn take(&self, statistics: &Statistics) {
        let up = statistics
            .brokers
            .values()
            .any(|broker| broker.state == "UP");
        let settled = statistics.cgrp.join_state == "steady";
        self.shared.member.store(up && settled, Ordering::Relaxed);
        self.shared.connected.store(up, Ordering::Relaxed);
        let Some(topic) = statistics.topics.get(&self.shared.topic) else {
            return;
        };
        let mut assignment = self.shared.assignment();
        assignment.unread.clear();
        for (name, partition) in &topic.partitions {
            let Ok(number) = name.parse::<i32>() else {
                continue;
            };
            if !assignment.epochs.contains_key(&number) || partition.hi_offset < 0 {
                continue;
            }
            let read = [
                partition.app_offset,
                partition.stored_offset,
                partition.committed_offset,
            ];
            let read = read.into_iter().max().unwrap_or_default().max(0);
            assignment
                .unread
                .insert(number, (partition.hi_offset - read).max(0));
            let handled = partition
                .stored_offset
                .max(partition.committed_offset)
                .max(0);
            let lag = i32::try_from(partition.hi_offset - handled)
                .unwrap_or(i32::MAX)
                .max(0);
            metrics::gauge!("consumer_lag_events", "consumer" => self.consumer, "partition" => name.clone())
                .set(f64::from(lag));
        }
    }
}

impl ConsumerContext for Context {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let mut assignment = self.shared.assignment();
        match rebalance {
            Rebalance::Assign(list) => {
                for element in list.elements() {
                    assignment.last += 1;
                    let epoch = assignment.last;
                    assignment.epochs.insert(element.partition(), epoch);
                }
                tracing::info!(
                    consumer = self.consumer,
                    added = list.count(),
                    partitions = assignment.epochs.len(),
                    "consumer was given partitions"
                );
            }
            Rebalance::Revoke(list) => {
                for element in list.elements() {
                    assignment.epochs.remove(&element.partition());
                    assignment.unread.remove(&element.partition());
                }
                tracing::info!(
                    consumer = self.consumer,
                    removed = list.count(),
                    partitions = assignment.epochs.len(),
                    "consumer gave partitions back"
                );
            }
            Rebalance::Error(error) => {
                assignment.epochs.clear();
                assignment.unread.clear();
                tracing::warn!(%error, consumer = self.consumer, "rebalance failed");
            }
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, _: &TopicPartitionList) {
        match result {
            Ok(()) | Err(KafkaError::ConsumerCommit(RDKafkaErrorCode::NoOffset)) => {}
            // the next one carries the same offsets; at worst records come again
            Err(error) => {
                tracing::debug!(%error, consumer = self.consumer, "offsets were not sent");
            }
        }
    }
}
