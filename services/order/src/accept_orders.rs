//! The accept stage: one batch in the database at a time, because the hot row's lock outlasts the
//! flush; the next gathers meanwhile (P1). A commit whose reply is lost is run again with the same
//! keys until the deadline, and the primary key decides (P4). Nothing is ever compensated.
//!
//! Steps: gather, fold twins, run the transaction, answer, tell the gate.
//! When the process dies: before the commit nothing happened; after it the orders stand and every
//! retry is a replay; before the gate was told, the sweep tells it.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use domain::deadline::ACCEPT_WITHIN;
use platform::clock;
use store::{PgClock, Store, StoreError};
use tokio::sync::mpsc;

use crate::{
    accept_batch::{self, Batch, Decided, Verdict},
    admit_orders::drop_late,
    catalogue::Catalogue,
    place_orders::{Admission, Asked, BATCH_MAX, Placed},
    rerun::GivenUp,
    sync_gate::SyncGate,
};

/// The longest that a batch gathers under load.
const GATHER_MAX: Duration = Duration::from_millis(5);

/// From this size of the last batch on there is load, and gathering pays.
const LOADED_FROM: usize = 16;

/// How long one run of the transaction may take before it counts as unknown and is run again on
/// another connection. The first run is left to end by itself, since dropping it would not undo it;
/// but one that has not begun its commit by then does not commit any more, so that the next run's
/// refusal is the last word: what has begun it has taken its keys, and the next run waits for them.
const ATTEMPT_WITHIN: Duration = Duration::from_millis(700);

/// How long a COMMIT may still arrive that had been sent when its batch was given up, over a link that
/// keeps what it is given: then its transaction has been silent for too long, and the server ends it.
const COMMIT_MAY_COME: Duration = store::SILENT_IN_TRANSACTION;

/// Between two runs of a batch.
const PAUSE: Duration = Duration::from_millis(10);

/// How often a batch is tried when its connection fails before the commit.
const TRIES: u32 = 2;

/// What the stage works with.
#[derive(Debug, Clone)]
pub(crate) struct AcceptOrders {
    pub(crate) store: Store,
    pub(crate) clock: PgClock,
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) sync: SyncGate,
}

/// Requests of one key and body, and everyone who waits for their answer.
#[derive(Debug)]
struct Waiting {
    first: Asked,
    twins: Vec<Asked>,
}

impl AcceptOrders {
    /// Decides batches until the entrance is closed and the queue is empty.
    pub(crate) async fn run(self, mut queue: mpsc::Receiver<Asked>) {
        let mut batch: Vec<Asked> = Vec::with_capacity(BATCH_MAX);
        let mut last = 0;
        while queue.recv_many(&mut batch, BATCH_MAX).await > 0 {
            if last >= LOADED_FROM {
                gather(&mut queue, &mut batch, last).await;
            }
            metrics::gauge!("queue_depth_orders", "stage" => "accept")
                .set(f64::from(u32::try_from(queue.len()).unwrap_or(u32::MAX)));
            let asked = drop_late(&mut batch);
            last = asked.len();
            if last > 0 {
                self.decide(fold_twins(asked)).await;
            }
        }
    }

    async fn decide(&self, mut waiting: Vec<Waiting>) {
        let begun = clock::monotonic();
        metrics::histogram!("accept_batch_orders")
            .record(f64::from(u32::try_from(waiting.len()).unwrap_or(u32::MAX)));
        // With the batch, whose last run may outlive the answers: until it has ended its keys are
        // being decided.
        let attempts = waiting
            .iter_mut()
            .flat_map(|one| std::iter::once(&mut one.first).chain(&mut one.twins))
            .filter_map(|asked| asked.attempt.take());
        let attempts = Arc::new(attempts.collect::<Vec<_>>());
        let batch = Arc::new(Batch {
            attempts: Arc::clone(&attempts),
            requests: waiting
                .iter()
                .map(|one| one.first.request.clone())
                .collect(),
            deadlines: waiting.iter().map(|one| one.first.deadline).collect(),
            traceparents: waiting
                .iter()
                .map(|one| one.first.traceparent.clone())
                .collect(),
            by_kafka: false,
        });
        let until = waiting
            .iter()
            .map(|one| one.first.received)
            .max()
            .unwrap_or(begun);
        let answers = self.run_batch(batch, until + ACCEPT_WITHIN, false).await;
        metrics::histogram!("accept_duration_seconds").record(begun.elapsed().as_secs_f64());
        if answers
            .iter()
            .any(|placed| matches!(placed, Placed::Unknown))
        {
            // Until then a refusal of the gate would be a guess (P11).
            tokio::spawn(async move {
                tokio::time::sleep(COMMIT_MAY_COME).await;
                drop(attempts);
            });
        }
        for (one, placed) in waiting.into_iter().zip(answers) {
            self.answer(one, placed);
        }
    }

    /// Runs a batch until it is decided or `until` has passed: one answer per request. `unknown`:
    /// whether a run of it may have been committed already.
    async fn run_batch(&self, batch: Arc<Batch>, until: Instant, mut unknown: bool) -> Vec<Placed> {
        let mut tries = 0;
        loop {
            tries += 1;
            let error = match self.attempt(&batch).await {
                Ok(decided) => return self.read(&batch, decided, unknown),
                Err(error) => error,
            };
            unknown |= error.is_unknown_outcome();
            let fleeting = error.must_rerun() || error.is_transient();
            if !fleeting && batch.requests.len() > 1 {
                return Box::pin(self.run_halves(&batch, until, unknown)).await;
            }
            // A session that died with its server's last breath: the next one may be sound.
            let again = error.must_rerun() || unknown || (fleeting && tries < TRIES);
            if !again || clock::monotonic() + PAUSE >= until {
                report(&error, unknown);
                let placed = if unknown {
                    Placed::Unknown
                } else {
                    Placed::Unavailable
                };
                return vec![placed; batch.requests.len()];
            }
            metrics::counter!("accept_reruns_total").increment(1);
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// One request that can't be decided must not take the others along.
    async fn run_halves(&self, batch: &Batch, until: Instant, unknown: bool) -> Vec<Placed> {
        let middle = batch.requests.len() / 2;
        let part = |range: std::ops::Range<usize>| {
            Arc::new(Batch {
                attempts: Arc::clone(&batch.attempts),
                requests: batch.requests[range.clone()].to_vec(),
                deadlines: batch.deadlines[range.clone()].to_vec(),
                traceparents: batch.traceparents[range].to_vec(),
                by_kafka: batch.by_kafka,
            })
        };
        let mut answers = self.run_batch(part(0..middle), until, unknown).await;
        let later = part(middle..batch.requests.len());
        answers.extend(self.run_batch(later, until, unknown).await);
        answers
    }

    /// One transaction, in a task of its own: it is awaited for a bounded time and never dropped.
    async fn attempt(&self, batch: &Arc<Batch>) -> Result<Decided, StoreError> {
        let (store, catalogue) = (self.store.clone(), Arc::clone(&self.catalogue));
        let batch = Arc::clone(batch);
        let given_up = GivenUp::default();
        let run = given_up.clone();
        let work = tokio::spawn(async move {
            platform::crash_point!("cp3", err => return Err(StoreError::no_connection()));
            let mut tx = store.begin().await?;
            let decided = accept_batch::decide(&mut tx, &batch, &catalogue).await?;
            if decided.took_nothing() {
                // Its COMMIT would make nothing lasting, and were its reply lost, what is known now
                // would be unknown again. Nor is the end of the transaction waited for.
                drop(tx);
                return Ok(decided);
            }
            platform::crash_point!("cp4", err => return Err(StoreError::no_connection()));
            platform::crash_point!("cp6", err => return Err(commit_unheard(tx)));
            run.commit(tx).await?;
            platform::crash_point!("cp5", err => return Err(StoreError::no_answer()));
            Ok(decided)
        });
        match tokio::time::timeout(ATTEMPT_WITHIN, work).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) | Err(_) => {
                given_up.give_up();
                Err(StoreError::no_answer())
            }
        }
    }

    fn read(&self, batch: &Batch, decided: Decided, unknown: bool) -> Vec<Placed> {
        if let Some(now) = decided.now {
            self.clock.observe(now, clock::monotonic());
        }
        decided
            .verdicts
            .into_iter()
            .zip(&batch.requests)
            .map(|(verdict, request)| match verdict {
                Verdict::Accepted(order) => {
                    if unknown {
                        count_unknown("run_again");
                    }
                    Placed::Accepted(Arc::new(order))
                }
                // An earlier run of this very batch, whose reply was lost.
                Verdict::Before(order) if order.id == request.order_id => {
                    count_unknown("committed");
                    Placed::Accepted(Arc::new(order.as_of_version_1()))
                }
                Verdict::Before(order) => Placed::Replayed(Arc::new(order)),
                Verdict::KeyReused => Placed::KeyReused,
                Verdict::Refused(refusal) => Placed::Refused(refusal.into()),
                Verdict::Rejected { code, .. } => Placed::Refused(crate::place_orders::Refused {
                    code,
                    sku: None,
                    opens_at: None,
                }),
                Verdict::Late => {
                    metrics::counter!("accept_late_total").increment(1);
                    if unknown {
                        Placed::Unknown
                    } else {
                        Placed::Unavailable
                    }
                }
            })
            .collect()
    }

    /// Answers everyone, and has the gate told what it does not know yet.
    fn answer(&self, one: Waiting, placed: Placed) {
        let gate_is_right = match &placed {
            Placed::Accepted(_) => one.first.admission != Admission::Direct,
            Placed::Unavailable | Placed::Unknown => true,
            _ => one.first.admission == Admission::Direct && !matches!(placed, Placed::Replayed(_)),
        };
        count(one.first.admission, &placed);
        if !gate_is_right {
            self.sync.later(&one.first.request);
        }
        let twins_get = match &placed {
            Placed::Accepted(order) => Placed::Replayed(Arc::clone(order)),
            other => other.clone(),
        };
        one.first.answer(placed);
        for twin in one.twins {
            twin.answer(twins_get.clone());
        }
    }
}

/// Waits for more orders while there is load: until the batch is as large as the last one was, or
/// for 5 ms.
async fn gather(queue: &mut mpsc::Receiver<Asked>, batch: &mut Vec<Asked>, last: usize) {
    let wanted = (last + last / 4).min(BATCH_MAX);
    let until = tokio::time::Instant::now() + GATHER_MAX;
    while batch.len() < wanted {
        let room = BATCH_MAX - batch.len();
        match tokio::time::timeout_at(until, queue.recv_many(batch, room)).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
}

/// Twins of one body share the answer; another body under the same key is refused (P1 step 1).
fn fold_twins(asked: Vec<Asked>) -> Vec<Waiting> {
    let mut places: HashMap<_, usize> = HashMap::with_capacity(asked.len());
    let mut waiting: Vec<Waiting> = Vec::with_capacity(asked.len());
    for one in asked {
        match places
            .get(&one.request.hold_id)
            .and_then(|at| waiting.get_mut(*at))
        {
            Some(first) if first.first.request.fingerprint == one.request.fingerprint => {
                first.twins.push(one);
            }
            Some(_) => one.answer(Placed::KeyReused),
            None => {
                places.insert(one.request.hold_id, waiting.len());
                waiting.push(Waiting {
                    first: one,
                    twins: Vec::new(),
                });
            }
        }
    }
    waiting
}

/// A COMMIT that the server still works on when nobody waits for it any more: the next run's insert
/// meets the keys in an open transaction.
#[cfg(feature = "failpoints")]
fn commit_unheard(tx: store::Tx) -> StoreError {
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(150)).await;
        tx.commit().await.ok();
    });
    StoreError::no_answer()
}

/// What became of an order whose COMMIT had an unknown outcome.
fn count_unknown(found: &'static str) {
    metrics::counter!("accept_unknown_commits_total", "found" => found).increment(1);
}

/// Whether the gate and PostgreSQL were of one mind.
fn count(admission: Admission, placed: &Placed) {
    let way = match admission {
        Admission::Held => "gate",
        Admission::Known => "known",
        Admission::Direct => "direct",
    };
    match placed {
        Placed::Accepted(_) => {
            metrics::counter!("orders_accepted_total", "way" => way).increment(1);
        }
        Placed::Refused(_) if admission != Admission::Direct => {
            metrics::counter!("accept_refused_after_gate_total").increment(1);
        }
        _ => {}
    }
}

fn report(error: &StoreError, unknown: bool) {
    metrics::counter!("accept_failures_total").increment(1);
    let error = error as &dyn std::error::Error;
    if unknown {
        tracing::warn!(error, "a batch of orders has an unknown outcome");
    } else {
        tracing::warn!(error, "a batch of orders could not be decided");
    }
}
