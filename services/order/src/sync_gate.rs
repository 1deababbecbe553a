//! Makes the gate match what PostgreSQL says of holds and SKUs, after the transaction and off the
//! response path (P7): after DIRECT accepts and replays (keep), after refusals of what the gate had
//! let through (release), after cancellations and changes of stock (registers).
//!
//! It ignores why it is called, so it may be called late, twice or never: the sweep and the audit of
//! the stock service are the nets. When the queue is full or the gate is away for longer than a moment,
//! work is dropped.
//!
//! Steps: read what PostgreSQL says of the holds by key, and of their SKUs; a hold without an order
//! is released; tell the gate, per shard; once more where that added a hold. When the process dies in
//! between, the nets hold. Of a SKU whose holds are all live the gate is told nothing: its register may
//! say what a settlement has sold whose holds are still to go, and those units would count twice.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    time::Duration,
};

use contracts::{HoldId, Sku};
use domain::{Hold, HoldState, HoldView, OrderRequest, Register, Shard};
use platform::Shutdown;
use reservations::Gate;
use store::{Store, StoreError, holds, skus};
use tokio::sync::mpsc;

/// The most holds of one sync.
const BATCH_MAX: usize = 128;

/// The most holds that wait.
const QUEUE_MAX: usize = 8_192;

/// How long what is to be synced later waits for a gate that does not answer. A reply that is late
/// once closes the gate for a moment, in which a thousand orders may pass it by; nothing was lost
/// then, so nobody builds it anew. One that is away for longer is compared with PostgreSQL.
const GATE_WITHIN: Duration = Duration::from_secs(30);

/// How often it is looked at meanwhile.
const GATE_LOOK: Duration = Duration::from_millis(50);

/// How long a caller that waits for the gate waits.
const NOW_WITHIN: Duration = Duration::from_millis(500);

/// Syncs now, or later in batches. Cloning shares it; the task ends when the last clone is dropped.
#[derive(Debug, Clone)]
pub(crate) struct SyncGate {
    store: Store,
    gate: Gate,
    queue: mpsc::Sender<Hold>,
}

impl SyncGate {
    /// Starts the task that syncs in batches.
    pub(crate) fn start(store: Store, gate: Gate, tasks: &Shutdown) -> Self {
        let (queue, mut waiting) = mpsc::channel::<Hold>(QUEUE_MAX);
        let (task_store, task_gate) = (store.clone(), gate.clone());
        let ends = tasks.clone();
        tasks.spawn(async move {
            let mut batch = Vec::with_capacity(BATCH_MAX);
            while waiting.recv_many(&mut batch, BATCH_MAX).await > 0 {
                tokio::select! {
                    () = until_it_answers(&task_gate) => {}
                    () = ends.begun() => {}
                }
                sync(&task_store, &task_gate, &batch, BTreeSet::new()).await;
                batch.clear();
            }
        });
        Self { store, gate, queue }
    }

    /// Has the hold of a request synced soon.
    pub(crate) fn later(&self, request: &OrderRequest) {
        let hold = Hold {
            hold_id: request.hold_id,
            buyer: request.buyer.clone(),
            lines: request.lines.clone(),
        };
        if self.queue.try_send(hold).is_err() {
            metrics::counter!("gate_syncs_dropped_total").increment(1);
        }
    }

    /// Syncs a hold and its SKUs before the caller answers, for a bounded time.
    pub(crate) async fn hold_now(&self, hold: Hold) {
        self.within(sync(&self.store, &self.gate, &[hold], BTreeSet::new()))
            .await;
    }

    /// Tells the gate about a SKU before the caller answers, for a bounded time.
    pub(crate) async fn sku_now(&self, sku: Sku) {
        self.within(sync(&self.store, &self.gate, &[], BTreeSet::from([sku])))
            .await;
    }

    async fn within(&self, work: impl Future<Output = ()>) {
        if tokio::time::timeout(NOW_WITHIN, work).await.is_err() {
            metrics::counter!("gate_syncs_dropped_total").increment(1);
        }
    }
}

/// Waits for the gate, for [`GATE_WITHIN`] at most.
async fn until_it_answers(gate: &Gate) {
    let answers = async {
        while !gate.is_available() {
            tokio::time::sleep(GATE_LOOK).await;
        }
    };
    drop(tokio::time::timeout(GATE_WITHIN, answers).await);
}

async fn sync(store: &Store, gate: &Gate, holds: &[Hold], asked: BTreeSet<Sku>) {
    // While the gate is away nothing is asked of PostgreSQL for it: the rebuild finds all.
    if !gate.is_available() {
        metrics::counter!("gate_syncs_dropped_total").increment(1);
        return;
    }
    // Where a hold was added, once more: its order may have ended after it was read, and what the
    // gate was told of that have come before.
    for _ in 0..2 {
        match read(store, holds, &asked).await {
            Ok(work) => {
                if tell(gate, work).await == 0 {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "holds could not be read to sync"
                );
                return;
            }
        }
    }
}

/// Tells the gate; how many holds it had not.
async fn tell(gate: &Gate, work: Work) -> usize {
    let mut added = 0;
    for (shard, (views, registers)) in work {
        match gate.sync(shard, &views, &registers).await {
            Ok(report) => added += report.added,
            Err(error) => {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "a gate was not synced"
                );
                metrics::counter!("gate_syncs_failed_total").increment(1);
            }
        }
    }
    added
}

type Work = BTreeMap<Shard, (Vec<HoldView>, Vec<Register>)>;

async fn read(store: &Store, holds: &[Hold], asked: &BTreeSet<Sku>) -> Result<Work, StoreError> {
    let ids: Vec<HoldId> = holds.iter().map(|hold| hold.hold_id).collect();
    let mut known = if ids.is_empty() {
        HashMap::new()
    } else {
        holds::by_hold(store, &ids).await?
    };
    let mut skus = asked.clone();
    skus.extend(holds.iter().flat_map(skus_of).cloned());
    let skus: Vec<Sku> = skus.into_iter().collect();
    let registers = skus::registers(store, &skus).await?;
    let shards: BTreeMap<&Sku, Shard> = registers
        .iter()
        .map(|(shard, register)| (&register.sku, *shard))
        .collect();
    let mut views: Vec<(Shard, HoldView)> = Vec::with_capacity(holds.len());
    // Replays of one key queue its hold again and again: the second copy would look as if it had no
    // order.
    let mut seen = HashSet::with_capacity(holds.len());
    for hold in holds.iter().filter(|hold| seen.insert(hold.hold_id)) {
        match known.remove(&hold.hold_id) {
            Some(of_order) => views.extend(of_order),
            // No order: the gate holds it for nobody. Only a hold of one shard can be at a gate.
            None => {
                let shard = hold.lines.first().and_then(|line| shards.get(&line.sku));
                views.extend(shard.map(|shard| {
                    let view = HoldView {
                        hold: hold.clone(),
                        state: HoldState::Released,
                    };
                    (*shard, view)
                }));
            }
        }
    }
    let ended = views
        .iter()
        .filter(|(_, view)| view.state != HoldState::Live);
    let mut told = asked.clone();
    told.extend(ended.flat_map(|(_, view)| skus_of(&view.hold)).cloned());
    let mut work = Work::new();
    for (shard, register) in registers {
        if told.contains(&register.sku) {
            work.entry(shard).or_default().1.push(register);
        }
    }
    for (shard, view) in views {
        work.entry(shard).or_default().0.push(view);
    }
    Ok(work)
}

fn skus_of(hold: &Hold) -> impl Iterator<Item = &Sku> {
    hold.lines.iter().map(|line| &line.sku)
}
