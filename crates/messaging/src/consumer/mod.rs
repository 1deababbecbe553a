//! The consumer runner: every record of a topic has its effect once, or is a dead letter with a
//! reason; nothing is passed over and nothing bad holds the rest up (P9).
//!
//! - All partitions are merged into batches; a batch is one transaction of inbox rows, the effect
//!   and dead letters. What was handled before is told by the inbox, in that transaction.
//! - Transient failures are waited out for ever. Permanent ones become dead letters at once. What
//!   is neither is halved until the event that fails is alone; it is tried again beside the others.
//! - Offsets are stored after the commit, per partition up to the first record that is not done,
//!   and only while the partition is still ours.
//! - A dead letter can be handled again, in a transaction of its own ([`redrive()`]).
//! - A thread of its own polls the client, so that membership outlives a short outage of the database.
//!   A member that has not reached it for long leaves the group, since another may reach it, and comes
//!   back once it answers. When it is away for all, all wait outside.

mod attempt;
mod handler;
mod offsets;
mod poller;
mod probe;
mod redrive;
mod runner;
mod shared;
mod statistics;
mod stuck;
mod unit;
mod watch;

use std::{sync::Arc, time::Duration};

use contracts::{ConsumerName, TopicNames};
use platform::{Ops, Shutdown, periodic};
use store::Store;
use tokio::sync::Notify;

pub use handler::{Aside, Class, HandleError, Handler, Inbound, Position, Rejection};
pub use redrive::{Redriven, redrive};

/// How long a consumer may take from the begin of the shutdown to its end.
const END: Duration = Duration::from_secs(8);
/// What [`ConsumerConfig::leaves_after`] is in the services: longer than a failover of the database
/// takes, since leaving costs two rebalances.
const LEAVES_AFTER: Duration = Duration::from_secs(30);

/// What a consumer needs besides its handler.
#[derive(Debug, Clone)]
pub struct ConsumerConfig {
    /// Bootstrap servers, comma-separated.
    pub brokers: String,
    /// Names of topics and groups.
    pub names: TopicNames,
    /// The process, as shown in the broker's list of members.
    pub instance: String,
    /// When an event that fails alone for no known reason becomes a dead letter.
    pub unclassified: Unclassified,
    /// When lag without progress is taken for what it is.
    pub stall: Stall,
    /// How long the database may not answer here before the member leaves its group, so that its
    /// partitions go to one that it answers.
    pub leaves_after: Duration,
}

/// How long there may be lag without any progress (P9): records in hand, records that the client
/// knows of, or records that another client can read and this one does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// Then the process is not ready.
    pub unready_after: Duration,
    /// Then the consumer ends, and the process with it. It is counted anew from the return of a server
    /// that was away.
    pub ends_after: Duration,
}

impl Stall {
    /// Not ready after so long, at an end after twice as long.
    #[must_use]
    pub fn after(bound: Duration) -> Self {
        Self {
            unready_after: bound,
            ends_after: 2 * bound,
        }
    }
}

/// How often and how long an event may fail alone, while others are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unclassified {
    /// Failures, at least 2.
    pub attempts: i32,
    /// From the first to the last.
    pub over: Duration,
}

impl ConsumerConfig {
    /// The defaults of everything but the addresses: five failures over a minute.
    #[must_use]
    pub fn new(brokers: impl Into<String>, names: TopicNames, instance: impl Into<String>) -> Self {
        Self {
            brokers: brokers.into(),
            names,
            instance: instance.into(),
            unclassified: Unclassified {
                attempts: 5,
                over: Duration::from_secs(60),
            },
            stall: Stall::after(Duration::from_secs(60)),
            leaves_after: LEAVES_AFTER,
        }
    }

    /// The pause between two tries of an event that fails alone.
    fn unclassified_every(&self) -> Duration {
        self.unclassified.over
            / u32::try_from(self.unclassified.attempts - 1)
                .unwrap_or(1)
                .max(1)
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
    /// The runner panicked; that is a bug of the runner, since a handler's panic is caught.
    #[error("the runner ended early")]
    Runner(#[source] tokio::task::JoinError),
    /// There is lag and nothing moves, for longer than [`Stall::ends_after`]. The process should end:
    /// a new one begins at the stored offsets.
    #[error("the consumer has lag and makes no progress")]
    Stalled,
    /// The client ended by itself: a fatal error of librdkafka. The process should end too.
    #[error("the consumer's client ended by itself")]
    Ended,
}

/// Consumes until shutdown begins: then finishes the attempt in hand, stores offsets and leaves
/// the group, within 8 seconds even when the broker is away.
///
/// # Errors
/// [`ConsumerError`] at the start, or after a bug of the runner; what fails later is waited out or
/// set aside.
pub async fn run<H: Handler>(
    handler: H,
    config: ConsumerConfig,
    store: Store,
    ops: Ops,
    shutdown: Shutdown,
) -> Result<(), ConsumerError> {
    let consumer = handler.consumer();
    let poller = poller::Poller::start(&config, consumer)?;
    let progress = Arc::new(watch::Progress::new(config.leaves_after));
    watch::begin(consumer, &ops);
    let watched = (store.clone(), ops, poller.shared.clone(), progress.clone());
    let (stall, hopeless) = (config.stall, Arc::new(Notify::new()));
    let tell = hopeless.clone();
    periodic::spawn(&shutdown, watch::EVERY, move || {
        let ((store, ops, shared, progress), tell) = (watched.clone(), tell.clone());
        async move {
            let judged = watch::look(consumer, stall, &store, &ops, &shared, &progress).await;
            if judged == watch::Judgement::Hopeless {
                tell.notify_one();
            }
        }
    });
    ask_beside(&config, consumer, &poller.shared, &progress, &shutdown);
    let runner = runner::Runner::new(handler, config, store, shutdown.clone(), poller, progress);
    // a task of its own: a caller that drops this future must not cut a transaction (P14)
    let mut task = shutdown.spawn(runner.run());
    let cut = async {
        shutdown.begun().await;
        tokio::time::sleep(END).await;
    };
    tokio::select! {
        ended = &mut task => match ended.map_err(ConsumerError::Runner)? {
            true => Ok(()),
            false => Err(ConsumerError::Ended),
        },
        () = hopeless.notified() => {
            tracing::error!(consumer = consumer.as_str(), "lag without progress: the consumer ends, and a new process is to begin where it stopped");
            metrics::counter!("consumer_stalls_total", "consumer" => consumer.as_str()).increment(1);
            task.abort();
            Err(ConsumerError::Stalled)
        }
        () = cut => {
            tracing::warn!(consumer = consumer.as_str(), "consumer did not end in time; its records come again");
            task.abort();
            Ok(())
        }
    }
}

/// Asks the broker now and then, beside the client that reads, whether records wait.
fn ask_beside(
    config: &ConsumerConfig,
    consumer: ConsumerName,
    shared: &Arc<shared::Shared>,
    progress: &Arc<watch::Progress>,
    shutdown: &Shutdown,
) {
    let place = probe::Place {
        brokers: config.brokers.clone(),
        topic: config.names.topic(consumer.topic()),
        group: config.names.group(consumer),
    };
    let every = probe::every(config.stall);
    let own = (
        place,
        Arc::clone(shared),
        Arc::clone(progress),
        shutdown.clone(),
    );
    periodic::spawn(shutdown, every, move || {
        let (place, shared, progress, shutdown) = own.clone();
        async move { probe::look(place, every, &shared, &progress, &shutdown).await }
    });
}
