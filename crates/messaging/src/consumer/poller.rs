//! The client and the thread that polls it. The thread does nothing else, so that polling, group
//! membership and rebalances go on while a database is away; it stores offsets itself, so that no
//! offset is stored for a partition that was lost meanwhile.

use std::{
    sync::{Arc, mpsc as std_mpsc},
    time::{Duration, Instant},
};

use contracts::Timestamp;
use platform::clock;
use rdkafka::{
    Message, TopicPartitionList,
    consumer::{BaseConsumer, Consumer},
    error::{KafkaError, KafkaResult},
    message::BorrowedMessage,
};
use tokio::sync::{mpsc, oneshot};

use super::{
    ConsumerConfig, ConsumerError,
    offsets::{Epoch, Storable},
    shared::{Context, Shared},
};
use crate::{
    client,
    record::{RawHeaders, read_headers},
};

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
    pub(super) fn bytes(&self) -> usize {
        let length = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        let headers = match &self.headers {
            RawHeaders::Readable(headers) => headers
                .iter()
                .map(|(name, value)| 48 + name.len() + length(value))
                .sum(),
            RawHeaders::Unreadable => 0,
        };
        256 + length(&self.key) + length(&self.payload) + headers
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
            flows: None,
            left: false,
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
    /// The assignment that was resumed, likewise: the client keeps the pause of a partition that is taken
    /// from us, and would have it paused when it comes back.
    flows: Option<Epoch>,
    /// Whether the group was left.
    left: bool,
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
            self.come_or_go();
            self.adjust();
            match self.client.poll(POLL) {
                Some(Ok(message)) => {
                    last_error = None;
                    self.push(&message);
                }
                Some(Err(error @ KafkaError::MessageConsumptionFatal(_))) => {
                    tracing::error!(%error, topic = self.shared.topic, "the client is dead");
                    break;
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

    /// Leaves the group while it is to be kept out of, and joins it again; the client lives on. What is
    /// in hand is finished by whoever has it: its records are nobody's of ours any more.
    fn come_or_go(&mut self) {
        let out = self.shared.is_out();
        if out == self.left {
            return;
        }
        let topic = self.shared.topic.as_str();
        if out {
            self.client.unsubscribe();
            tracing::warn!(
                topic,
                "consumer leaves its group: the database does not answer"
            );
        } else {
            if let Err(error) = self.client.subscribe(&[topic]) {
                tracing::warn!(%error, topic, "consumer can't join its group again; it goes on trying");
                return;
            }
            tracing::info!(topic, "consumer joins its group again");
        }
        self.left = out;
    }

    /// Pauses all partitions while there is no room, new ones too; resumes at half, and with every
    /// assignment.
    fn adjust(&mut self) {
        let last = self.shared.last_change();
        if self.shared.is_full(1) {
            if self.paused != Some(last) {
                (self.paused, self.flows) = (Some(last), None);
                self.on_assignment("pause", |client, list| client.pause(list));
            }
        } else if self.flows != Some(last) && !self.shared.is_full(2) {
            (self.paused, self.flows) = (None, Some(last));
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
        let Some(epoch) = self.shared.epoch(partition) else {
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
        self.shared.took(&record);
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
