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

use super::{offsets::Epoch, poller::Record, statistics::Statistics};

/// Records and bytes that are read and not done, at most.
const RECORDS_MAX: usize = 5000;
const BYTES_MAX: usize = 32 * 1024 * 1024;
/// Statistics come every 2 s. After so long without any, and without a record, what the client said
/// last says nothing of now.
const HEARD_MAX: Duration = Duration::from_secs(10);

/// What the thread and the runner know in common.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) topic: String,
    assignment: Mutex<Assignment>,
    outstanding: AtomicUsize,
    outstanding_bytes: AtomicUsize,
    member: AtomicBool,
    connected: AtomicBool,
    out: AtomicBool,
    polled_at: Mutex<Instant>,
    heard_at: Mutex<Instant>,
}

/// How far a partition that is ours was read here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reached {
    /// The next offset; 0 before the first record.
    pub(super) next: i64,
    /// When the last record was read, or the partition was given to us.
    pub(super) at: Instant,
}

#[derive(Debug, Default)]
struct Assignment {
    epochs: HashMap<i32, Epoch>,
    last: Epoch,
    /// Per partition, how far it was read.
    reached: HashMap<i32, Reached>,
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
            out: AtomicBool::new(false),
            polled_at: Mutex::new(clock::monotonic()),
            heard_at: Mutex::new(clock::monotonic()),
        }
    }

    fn assignment(&self) -> MutexGuard<'_, Assignment> {
        lock(&self.assignment)
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
        let at = clock::monotonic();
        *lock(&self.heard_at) = at;
        let next = record.offset + 1;
        if let Some(reached) = self.assignment().reached.get_mut(&record.partition) {
            *reached = Reached { next, at };
        }
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

    /// How far each partition that is ours was read here.
    pub(super) fn reached(&self) -> HashMap<i32, Reached> {
        self.assignment().reached.clone()
    }

    /// Whether a broker is connected and the group has settled, as far as the client is heard.
    pub(super) fn is_member(&self) -> bool {
        self.member.load(Ordering::Relaxed) && self.is_heard()
    }

    /// Whether a broker is connected, as far as the client is heard.
    pub(super) fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed) && self.is_heard()
    }

    /// Has the group left, or joined again.
    pub(super) fn keep_out(&self, out: bool) {
        self.out.store(out, Ordering::Relaxed);
    }

    /// Whether the group is to be kept out of.
    pub(super) fn is_out(&self) -> bool {
        self.out.load(Ordering::Relaxed)
    }

    fn is_heard(&self) -> bool {
        lock(&self.heard_at).elapsed() < HEARD_MAX
    }

    /// How long ago the client was polled.
    pub(super) fn polled_ago(&self) -> Duration {
        lock(&self.polled_at).elapsed()
    }

    pub(super) fn polled(&self) {
        *lock(&self.polled_at) = clock::monotonic();
    }

    pub(super) fn is_full(&self, share: usize) -> bool {
        self.outstanding() >= RECORDS_MAX / share
            || self.outstanding_bytes.load(Ordering::Relaxed) >= BYTES_MAX / share
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The callbacks of the client; they run on the thread that polls.
pub(super) struct Context {
    pub(super) shared: Arc<Shared>,
    pub(super) consumer: &'static str,
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
        let up = statistics.is_up();
        let member = up && statistics.is_settled();
        self.shared.member.store(member, Ordering::Relaxed);
        self.shared.connected.store(up, Ordering::Relaxed);
        *lock(&self.shared.heard_at) = clock::monotonic();
        let Some(topic) = statistics.topics.get(&self.shared.topic) else {
            return;
        };
        let mut assignment = self.shared.assignment();
        assignment.unread.clear();
        for (name, partition) in &topic.partitions {
            let Ok(number) = name.parse::<i32>() else {
                continue;
            };
            if !assignment.epochs.contains_key(&number) {
                continue;
            }
            let Some(unread) = partition.unread() else {
                continue;
            };
            assignment.unread.insert(number, unread);
            let lag = i32::try_from(partition.unhandled()).unwrap_or(i32::MAX);
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
                    let (next, at) = (0, clock::monotonic());
                    assignment
                        .reached
                        .insert(element.partition(), Reached { next, at });
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
                    assignment.reached.remove(&element.partition());
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
                assignment.reached.clear();
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
