//! The loop: gather records, run them as one transaction, sort out what fails, store offsets.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use platform::{Shutdown, clock};
use store::Store;

use super::{
    ConsumerConfig,
    attempt::{Tally, attempt},
    handler::{Class, HandleError, Handler, Rejection},
    offsets::Offsets,
    poller::{Poller, Record},
    stuck::Stuck,
    unit::{self, Records, Unit},
    watch::Progress,
};
use crate::backoff::Backoff;

/// Records of one transaction.
const BATCH_MAX: usize = 500;
/// How long a batch waits for more: while records flow, and when one came alone.
const LINGER: Duration = Duration::from_millis(10);
const LINGER_ALONE: Duration = Duration::from_millis(1);
/// More events than this that fail for no known reason are rather our fault than theirs: reading
/// goes on in small bites, for only when others are handled beside them is the fault shown to be
/// their own.
const STUCK_MAX: usize = 200;
/// Such a bite, and the pause before it.
const BITE: usize = 20;
const BITE_EVERY: Duration = Duration::from_millis(500);
/// How long leaving the group may take.
const LEAVE: Duration = Duration::from_secs(3);

/// A unit that was tried so often for want of a dependency is halved: a statement that takes longer
/// than its answer is waited for fails like a server that is away, and would for ever.
const TRIES_WHOLE: u32 = 6;

/// Why a unit was not done.
enum Failed {
    /// Shutdown began: it stays undone and comes again.
    Interrupted,
    /// Nothing is known against any of it, but it may be too much at once.
    TooMuch,
    /// Not all of it can be handled.
    Classified(Failure),
}

enum Failure {
    Permanent(Rejection),
    Unclassified(String),
}

impl Failure {
    fn reason(&self) -> &str {
        match self {
            Self::Permanent(rejection) => &rejection.reason,
            Self::Unclassified(reason) => reason,
        }
    }
}

pub(super) struct Runner<H: Handler> {
    handler: H,
    topic: Arc<str>,
    config: ConsumerConfig,
    store: Store,
    shutdown: Shutdown,
    poller: Poller,
    progress: Arc<Progress>,
    offsets: Offsets,
    stuck: Vec<Stuck<H::Event>>,
    /// Transactions so far.
    commits: u64,
    last_batch: usize,
    read_at: Instant,
}

impl<H: Handler> Runner<H> {
    pub(super) fn new(
        handler: H,
        config: ConsumerConfig,
        store: Store,
        shutdown: Shutdown,
        poller: Poller,
        progress: Arc<Progress>,
    ) -> Self {
        let topic = config.names.topic(handler.consumer().topic()).into();
        Self {
            handler,
            topic,
            config,
            store,
            shutdown,
            poller,
            progress,
            offsets: Offsets::default(),
            stuck: Vec::new(),
            commits: 0,
            last_batch: 0,
            read_at: clock::monotonic(),
        }
    }

    /// Runs until shutdown begins; then leaves the group. `false` when the client ended before.
    pub(super) async fn run(mut self) -> bool {
        while !self.shutdown.has_begun() {
            let Some(records) = self.gather().await else {
                return false;
            };
            self.take(records).await;
            self.retry_stuck().await;
            self.poller.store(self.offsets.storable());
        }
        let consumer = self.handler.consumer().as_str();
        if self.poller.stop(LEAVE).await {
            tracing::info!(consumer, "consumer left its group");
        } else {
            tracing::warn!(
                consumer,
                "consumer could not leave its group in time; its session will time out"
            );
        }
        true
    }

    /// The next batch; empty when a stuck event is due or shutdown began; `None` when nothing will
    /// ever come, because the client has ended.
    async fn gather(&mut self) -> Option<Vec<Record>> {
        let mut batch = Vec::new();
        let due = self.stuck.iter().map(|stuck| stuck.next_at).min();
        let wake = async {
            match due {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        let troubled = self.stuck.len() >= STUCK_MAX;
        let most = if troubled { BITE } else { BATCH_MAX };
        let (records, not_before) = (&mut self.poller.records, self.read_at + BITE_EVERY);
        let read = async {
            if troubled {
                tokio::time::sleep_until(not_before.into()).await;
            }
            records.recv_many(&mut batch, most).await
        };
        tokio::select! {
            biased;
            () = self.shutdown.begun() => return Some(batch),
            read = read => {
                if read == 0 {
                    return None;
                }
            }
            () = wake => return Some(batch),
        }
        self.read_at = clock::monotonic();
        let linger = if self.last_batch > 8 {
            LINGER
        } else {
            LINGER_ALONE
        };
        let until = tokio::time::Instant::now() + linger;
        while batch.len() < most {
            let room = most - batch.len();
            let more = self.poller.records.recv_many(&mut batch, room);
            if tokio::time::timeout_at(until, more).await.is_err() {
                break;
            }
        }
        self.last_batch = batch.len();
        Some(batch)
    }

    /// Handles a batch: when it returns, each record is done or stuck, or shutdown began.
    async fn take(&mut self, records: Vec<Record>) {
        let shared = &self.poller.shared;
        let (ours, lost): (Vec<_>, Vec<_>) = records
            .into_iter()
            .partition(|r| shared.owns(r.partition, r.epoch));
        lost.iter().for_each(|record| shared.release(record));
        if ours.is_empty() {
            return;
        }
        for record in &ours {
            self.offsets
                .seen(record.partition, record.epoch, record.offset);
        }
        let read = unit::read(&self.handler, &self.topic, ours);
        if !read.skipped.is_empty() {
            self.count("skipped", read.skipped.len());
            self.done(&read.skipped);
        }
        if read.unit.len() > 0 {
            self.process(read.unit).await;
        } else {
            self.progress.moved();
        }
    }

    /// Runs a unit; what fails is halved until the one that fails is alone.
    async fn process(&mut self, unit: Unit<H::Event>) {
        let mut backoff = pauses();
        let mut todo = vec![unit];
        while let Some(mut unit) = todo.pop() {
            match self.through(&mut unit, &mut backoff).await {
                Ok(tally) => self.finish(&unit, tally),
                Err(Failed::Interrupted) => return,
                Err(Failed::TooMuch | Failed::Classified(_)) if unit.len() > 1 => {
                    let later = unit.split();
                    todo.push(later);
                    todo.push(unit);
                }
                Err(Failed::TooMuch) => todo.push(unit),
                Err(Failed::Classified(failure)) => {
                    if let Some(reject) = self.set_aside(unit, failure) {
                        todo.push(reject);
                    }
                }
            }
        }
    }

    /// Runs a unit through all transient failures: for ever when it is alone, else until it is to be
    /// halved. The pauses grow on from unit to unit, so that the halves of a batch do not press on
    /// a server that is away.
    async fn through(
        &mut self,
        unit: &mut Unit<H::Event>,
        backoff: &mut Backoff,
    ) -> Result<Tally, Failed> {
        let consumer = self.handler.consumer().as_str();
        let mut tries = 0;
        let mut waiting = false;
        loop {
            let failure = match attempt(&self.handler, &self.store, unit).await {
                Ok(tally) => {
                    if waiting {
                        tracing::info!(consumer, "consumer goes on");
                    }
                    self.progress.waits(false);
                    backoff.reset();
                    return Ok(tally);
                }
                Err(HandleError::Permanent(rejection)) => Failure::Permanent(rejection),
                Err(HandleError::Unclassified(cause)) => {
                    Failure::Unclassified(chain(cause.as_ref()))
                }
                Err(HandleError::Transient(cause)) => {
                    metrics::counter!("consumer_retries_total", "consumer" => consumer)
                        .increment(1);
                    if !std::mem::replace(&mut waiting, true) {
                        tracing::warn!(
                            consumer,
                            error = chain(cause.as_ref()),
                            "consumer waits and tries again"
                        );
                    }
                    self.progress.waits(true);
                    tokio::select! {
                        () = tokio::time::sleep(backoff.pause()) => {}
                        () = self.shutdown.begun() => return Err(Failed::Interrupted),
                    }
                    tries += 1;
                    if tries >= TRIES_WHOLE && unit.len() > 1 {
                        return Err(Failed::TooMuch);
                    }
                    continue;
                }
            };
            self.progress.waits(false);
            return Err(Failed::Classified(failure));
        }
    }

    fn finish(&mut self, unit: &Unit<H::Event>, tally: Tally) {
        self.commits += 1;
        self.count("handled", tally.handled);
        self.count("duplicate", tally.duplicates);
        self.count("dead_letter", tally.dead);
        let records: Records = unit.all_records().cloned().collect();
        self.done(&records);
        self.progress.moved();
    }

    /// A unit of one that failed: gives the reject to run, when it is to be a dead letter now.
    fn set_aside(&mut self, mut unit: Unit<H::Event>, failure: Failure) -> Option<Unit<H::Event>> {
        match (failure, unit.records.pop()) {
            (Failure::Permanent(rejection), Some(records)) => {
                Some(Unit::of_reject(unit::reject(records, rejection, 1)))
            }
            (Failure::Unclassified(reason), Some(records)) => {
                unit.records.push(records);
                tracing::warn!(
                    consumer = self.handler.consumer().as_str(),
                    event.id = unit.events.first().map(|event| event.event_id.as_str()),
                    reason,
                    "event fails alone; it is tried again beside the others"
                );
                self.keep(unit);
                None
            }
            (failure, None) => {
                tracing::error!(
                    consumer = self.handler.consumer().as_str(),
                    reason = failure.reason(),
                    "a dead letter can't be written; it is tried again and holds its offset back"
                );
                self.keep(unit);
                None
            }
        }
    }

    fn keep(&mut self, unit: Unit<H::Event>) {
        let every = self.config.unclassified_every();
        self.stuck.push(Stuck::new(unit, self.commits, every));
        self.progress.stuck(self.stuck.len());
    }

    /// Tries what is stuck and due, each alone.
    async fn retry_stuck(&mut self) {
        let shared = self.poller.shared.clone();
        self.stuck.retain(|stuck| {
            let ours = stuck
                .unit
                .all_records()
                .any(|r| shared.owns(r.partition, r.epoch));
            if !ours {
                stuck
                    .unit
                    .all_records()
                    .for_each(|record| shared.release(record));
            }
            ours
        });
        let now = clock::monotonic();
        let (due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.stuck)
            .into_iter()
            .partition(|stuck| stuck.next_at <= now);
        self.stuck = later;
        for stuck in due {
            self.retry(stuck).await;
        }
        self.progress.stuck(self.stuck.len());
    }

    async fn retry(&mut self, mut stuck: Stuck<H::Event>) {
        let failure = match self.through(&mut stuck.unit, &mut pauses()).await {
            Ok(tally) => return self.finish(&stuck.unit, tally),
            Err(Failed::Interrupted) => return,
            Err(Failed::TooMuch) => return self.stuck.push(stuck),
            Err(Failed::Classified(failure)) => failure,
        };
        let every = self.config.unclassified_every();
        stuck.failed_again(every);
        let rejection = match failure {
            Failure::Permanent(rejection) => rejection,
            Failure::Unclassified(reason)
                if stuck.is_hopeless(self.config.unclassified, self.commits) =>
            {
                Rejection::new(Class::Unclassified, reason)
            }
            Failure::Unclassified(_) => return self.stuck.push(stuck),
        };
        match stuck.unit.records.pop() {
            Some(records) => {
                let reject = unit::reject(records, rejection, stuck.failures);
                self.process(Unit::of_reject(reject)).await;
            }
            // it is a dead letter already, that can't be written
            None => self.stuck.push(stuck),
        }
    }

    fn done(&mut self, records: &Records) {
        for record in records {
            self.offsets
                .done(record.partition, record.epoch, record.offset);
            self.poller.shared.release(record);
        }
    }

    fn count(&self, result: &'static str, events: usize) {
        let consumer = self.handler.consumer().as_str();
        metrics::counter!("events_handled_total", "consumer" => consumer, "result" => result)
            .increment(u64::try_from(events).unwrap_or(u64::MAX));
    }
}

fn pauses() -> Backoff {
    Backoff::new(Duration::from_millis(50), Duration::from_secs(5))
}

/// An error with all its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut out = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let text = next.to_string();
        if !out.ends_with(&text) {
            out = format!("{out}: {text}");
        }
        cause = next.source();
    }
    out
}
