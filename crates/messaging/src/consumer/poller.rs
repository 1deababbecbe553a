//! The client and the thread that polls it. The thread does nothing else, so that polling, group
//! membership and rebalances go on while a database is away; it stores offsets itself, so that no
//! offset is stored for a partition that was lost meanwhile.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc as std_mpsc,
    },
    time::{Duration, Instant},
};

use contracts::Timestamp;
use platform::clock;
use rdkafka::{
    ClientContext, Message, TopicPartitionList,
    consumer::{BaseConsumer, Consumer, ConsumerContext, Rebalance},
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
    message::BorrowedMessage,
};
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot};

use super::{
    ConsumerConfig, ConsumerError,
    offsets::{Epoch, Storable},
};
use crate::{client, record::RawHeaders, record::read_headers};

/// Records and bytes that are read and not done, at most.
const RECORDS_MAX: usize = 5000;
const BYTES_MAX: usize = 32 * 1024 * 1024;
/// How long reading only waits for room; then partitions are paused and polling goes on.
const WAIT_FOR_ROOM: Duration = Duration::from_millis(300);
const POLL: Duration = Duration::from_millis(20);

/// A record as it was read.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) partition: i32,
    pub(super) epoch: Epoch,
    pub(super) offset: i64,
    pub(super) key: Option<Vec<u8>>,
    pub(super) payload: Option<Vec<u8>>,
    pub(super) headers: RawHeaders,
    pub(super) first_seen: Timestamp,
}

impl Record {
    fn bytes(&self) -> usize {
        let length = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        256 + length(&self.key) + length(&self.payload)
    }
}

/// What the thread and the runner know in common.
#[derive(Debug)]
pub(super) struct Shared {
    topic: String,
    assignment: Mutex<Assignment>,
    outstanding: AtomicUsize,
    outstanding_bytes: AtomicUsize,
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
    fn new(topic: String) -> Self {
        Self {
            topic,
            assignment: Mutex::default(),
            outstanding: AtomicUsize::new(0),
            outstanding_bytes: AtomicUsize::new(0),
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

    /// Whether some broker is connected, as of the last statistics.
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

    fn polled(&self) {
        *self
            .polled_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = clock::monotonic();
    }

    fn is_full(&self, share: usize) -> bool {
        self.outstanding() >= RECORDS_MAX / share
            || self.outstanding_bytes.load(Ordering::Relaxed) >= BYTES_MAX / share
    }
}

/// The callbacks of the client; they run on the thread that polls.
struct Context {
    shared: Arc<Shared>,
    consumer: &'static str,
}

/// The part of librdkafka's statistics that is read.
#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Statistics {
    brokers: HashMap<String, BrokerStatistics>,
    topics: HashMap<String, TopicStatistics>,
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

enum Command {
    Store(Vec<Storable>),
    Stop,
}

/// The thread that polls, as the runner sees it.
pub(super) struct Poller {
    pub(super) shared: Arc<Shared>,
    pub(super) records: mpsc::UnboundedReceiver<Record>,
    commands: std_mpsc::Sender<Command>,
    ended: oneshot::Receiver<()>,
}

impl Poller {
    /// Makes the client, subscribes, and starts the thread.
    pub(super) fn start(
        config: &ConsumerConfig,
        consumer: contracts::ConsumerName,
    ) -> Result<Self, ConsumerError> {
        let topic = config.names.topic(consumer.topic());
        let shared = Arc::new(Shared::new(topic.clone()));
        let context = Context {
            shared: shared.clone(),
            consumer: consumer.as_str(),
        };
        let client_id = format!("{}-{}", consumer.group(), config.instance);
        let group = config.names.group(consumer);
        let client: BaseConsumer<Context> =
            client::member(&config.brokers, &client_id, &group, context)
                .map_err(ConsumerError::Create)?;
        client
            .subscribe(&[&topic])
            .map_err(ConsumerError::Subscribe)?;
        let (out, records) = mpsc::unbounded_channel();
        let (commands, inbox) = std_mpsc::channel();
        let (end, ended) = oneshot::channel();
        let thread = Thread {
            client,
            shared: shared.clone(),
            out,
            commands: inbox,
            paused: None,
        };
        std::thread::Builder::new()
            .name(format!("poll-{}", consumer.as_str()))
            .spawn(move || {
                thread.run();
                let _ = end.send(());
            })
            .map_err(ConsumerError::Thread)?;
        Ok(Self {
            shared,
            records,
            commands,
            ended,
        })
    }

    /// Has offsets stored, of partitions that are still ours.
    pub(super) fn store(&self, offsets: Vec<Storable>) {
        if !offsets.is_empty() {
            // the thread is gone only at the end
            let _ = self.commands.send(Command::Store(offsets));
        }
    }

    /// Has what is stored sent to the broker and the group left; `false` when that takes longer
    /// than `bound`: then the thread is left to the end of the process.
    pub(super) async fn stop(self, bound: Duration) -> bool {
        let _ = self.commands.send(Command::Stop);
        tokio::time::timeout(bound, self.ended).await.is_ok()
    }
}

struct Thread {
    client: BaseConsumer<Context>,
    shared: Arc<Shared>,
    out: mpsc::UnboundedSender<Record>,
    commands: std_mpsc::Receiver<Command>,
    /// The assignment that is paused, by the number of its last change.
    paused: Option<Epoch>,
}

impl Thread {
    fn run(mut self) {
        let mut full_since: Option<Instant> = None;
        let mut last_error = None;
        loop {
            self.shared.polled();
            if self.obey() {
                break;
            }
            if self.paused.is_none() && self.shared.is_full(1) {
                let since = *full_since.get_or_insert_with(clock::monotonic);
                if since.elapsed() < WAIT_FOR_ROOM {
                    std::thread::sleep(Duration::from_millis(2));
                    continue;
                }
            } else {
                full_since = None;
            }
            self.adjust();
            match self.client.poll(POLL) {
                Some(Ok(message)) => {
                    last_error = None;
                    self.push(&message);
                }
                Some(Err(error)) => self.say(&error, &mut last_error),
                None => {}
            }
        }
        // ending the client sends what is stored and leaves the group
        drop(self.client);
    }

    /// Takes commands; `true` when it is told to stop, or nobody is left to tell.
    fn obey(&self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Store(offsets)) => self.store(&offsets),
                Ok(Command::Stop) | Err(std_mpsc::TryRecvError::Disconnected) => return true,
                Err(std_mpsc::TryRecvError::Empty) => return false,
            }
        }
    }

    fn store(&self, offsets: &[Storable]) {
        for stored in offsets
            .iter()
            .filter(|s| self.shared.owns(s.partition, s.epoch))
        {
            // librdkafka stores the offset of the last record that was handled
            let last = stored.offset - 1;
            if let Err(error) = self
                .client
                .store_offset(&self.shared.topic, stored.partition, last)
            {
                // not ours any more, by a rebalance that is not yet told: the new owner repeats
                tracing::debug!(%error, partition = stored.partition, "offset was not stored");
            }
        }
    }

    /// Pauses all partitions while there is no room, new ones too; resumes at half.
    fn adjust(&mut self) {
        let last = self.shared.assignment().last;
        if self.shared.is_full(1) && self.paused != Some(last) {
            self.paused = Some(last);
            self.on_assignment("pause", |client, list| client.pause(list));
        } else if self.paused.is_some() && !self.shared.is_full(2) {
            self.paused = None;
            self.on_assignment("resume", |client, list| client.resume(list));
        }
    }

    fn on_assignment(
        &self,
        what: &str,
        change: impl Fn(&BaseConsumer<Context>, &TopicPartitionList) -> KafkaResult<()>,
    ) {
        let changed = self
            .client
            .assignment()
            .and_then(|list| change(&self.client, &list));
        if let Err(error) = changed {
            tracing::warn!(%error, what, "partitions could not be paused or resumed");
        }
    }

    fn push(&self, message: &BorrowedMessage<'_>) {
        let partition = message.partition();
        let Some(epoch) = self.shared.assignment().epochs.get(&partition).copied() else {
            return;
        };
        let record = Record {
            partition,
            epoch,
            offset: message.offset(),
            key: message.key().map(<[u8]>::to_vec),
            payload: message.payload().map(<[u8]>::to_vec),
            headers: read_headers(message),
            first_seen: clock::now(),
        };
        self.shared.connected.store(true, Ordering::Relaxed);
        self.shared.outstanding.fetch_add(1, Ordering::Relaxed);
        self.shared
            .outstanding_bytes
            .fetch_add(record.bytes(), Ordering::Relaxed);
        // the runner is gone only at the end
        let _ = self.out.send(record);
    }

    /// A missing topic, missing rights, a broker that is away: all are waited out, and said once.
    fn say(&self, error: &KafkaError, last: &mut Option<KafkaError>) {
        if last.as_ref() != Some(error) {
            tracing::warn!(%error, topic = self.shared.topic, "reading fails; it goes on trying");
            *last = Some(error.clone());
        }
    }
}
