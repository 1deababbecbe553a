//! The look-up behind every refusal of the gate: a key that stands for an order gets its order, so
//! that Redis can never turn an accepted order into a 410, whatever it forgot (P2). Batched: one
//! read for all that gathered meanwhile.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use contracts::{Code, HoldId, OrderId, Sku};
use platform::clock;
use store::{
    Order, Store, StoreError,
    idempotency::{self, KeyRow},
    orders,
    skus::{self, SkuRow},
};
use tokio::sync::mpsc;

use crate::{
    accept_batch::{self, accepted_id, what_was_answered},
    deciding::Deciding,
    place_orders::{Asked, Placed, Refused},
    sync_gate::SyncGate,
};

/// The most keys of one read.
const BATCH_MAX: usize = 256;

/// How long one read may take before nothing is known.
const READ_WITHIN: Duration = Duration::from_secs(1);

/// What the gate says, to be believed only when the key stands for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A rule says no.
    Refused(Code),
    /// The hold is there with other lines.
    OtherHold,
    /// Another attempt with this key is being decided.
    BeingDecided,
}

/// An order that the gate has refused.
#[derive(Debug)]
pub(crate) struct LookUp {
    pub(crate) asked: Asked,
    pub(crate) verdict: Verdict,
}

/// What one read found.
#[derive(Debug, Default)]
struct Found {
    keys: HashMap<HoldId, KeyRow>,
    orders: HashMap<OrderId, Order>,
    /// Of SKUs whose sale is not open.
    skus: BTreeMap<Sku, SkuRow>,
}

/// Looks keys up until the entrance is closed and the queue is empty.
pub(crate) async fn run(
    store: Store,
    sync: SyncGate,
    deciding: Deciding,
    mut queue: mpsc::Receiver<LookUp>,
) {
    let mut batch: Vec<LookUp> = Vec::with_capacity(BATCH_MAX);
    while queue.recv_many(&mut batch, BATCH_MAX).await > 0 {
        metrics::gauge!("queue_depth_orders", "stage" => "look-up")
            .set(f64::from(u32::try_from(queue.len()).unwrap_or(u32::MAX)));
        let now = clock::monotonic();
        let (late, timely): (Vec<_>, Vec<_>) =
            batch.drain(..).partition(|one| one.asked.is_late(now));
        for one in late {
            one.asked.answer(Placed::Unavailable);
        }
        if timely.is_empty() {
            continue;
        }
        let timely = note_undecided(timely, &deciding);
        match tokio::time::timeout(READ_WITHIN, read(&store, &timely)).await {
            Ok(Ok(found)) => {
                for one in timely {
                    answer(one, &found, &sync);
                }
            }
            Ok(Err(error)) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "keys could not be looked up"
                );
                give_up(timely);
            }
            Err(_) => {
                tracing::warn!("keys were not looked up in time");
                give_up(timely);
            }
        }
    }
}

/// A key whose first attempt is still being decided in this process is refused nothing: should the
/// look-up find no row for it, one may come in a moment.
fn note_undecided(batch: Vec<LookUp>, deciding: &Deciding) -> Vec<LookUp> {
    batch
        .into_iter()
        .map(|one| match deciding.contains(one.asked.request.hold_id) {
            true => LookUp {
                verdict: Verdict::BeingDecided,
                ..one
            },
            false => one,
        })
        .collect()
}

/// Without the look-up no refusal is believed.
fn give_up(batch: Vec<LookUp>) {
    for one in batch {
        one.asked.answer(Placed::Unavailable);
    }
}

async fn read(store: &Store, batch: &[LookUp]) -> Result<Found, StoreError> {
    let holds: Vec<HoldId> = batch.iter().map(|one| one.asked.request.hold_id).collect();
    let mut conn = store.conn().await?;
    let keys = idempotency::find(&mut conn, &holds).await?;
    let ids: Vec<OrderId> = keys.values().filter_map(accepted_id).collect();
    let orders = if ids.is_empty() {
        HashMap::new()
    } else {
        let orders = orders::find_many(&mut conn, &ids).await?;
        orders.into_iter().map(|order| (order.id, order)).collect()
    };
    drop(conn);
    let mut early: Vec<Sku> = batch
        .iter()
        .filter(|one| one.verdict == Verdict::Refused(Code::SaleNotOpen))
        .flat_map(|one| one.asked.request.lines.iter().map(|line| line.sku.clone()))
        .collect();
    early.sort();
    early.dedup();
    let skus = if early.is_empty() {
        BTreeMap::new()
    } else {
        skus::find_many(store, &early).await?
    };
    Ok(Found { keys, orders, skus })
}

fn answer(one: LookUp, found: &Found, sync: &SyncGate) {
    let LookUp { asked, verdict } = one;
    let request = &asked.request;
    let before = found.keys.get(&request.hold_id).map(|row| {
        // Two waiters of one key may both be here: the row and its order stay for the other.
        let order = accepted_id(row).and_then(|id| found.orders.get_key_value(&id));
        let mut order: HashMap<OrderId, Order> = order
            .map(|(id, order)| (*id, order.clone()))
            .into_iter()
            .collect();
        what_was_answered(request.fingerprint, row.clone(), &mut order)
    });
    let placed = match before {
        Some(accept_batch::Verdict::Before(order)) => {
            metrics::counter!("look_ups_total", "found" => "replayed").increment(1);
            sync.later(request);
            Placed::Replayed(Arc::new(order))
        }
        Some(accept_batch::Verdict::KeyReused) => Placed::KeyReused,
        Some(accept_batch::Verdict::Rejected { code, .. }) => Placed::Refused(Refused {
            code,
            sku: None,
            opens_at: None,
        }),
        Some(_) => Placed::Unavailable,
        None => match verdict {
            Verdict::OtherHold | Verdict::BeingDecided => Placed::InFlight,
            Verdict::Refused(code) => Placed::Refused(refused(&asked, code, &found.skus)),
        },
    };
    asked.answer(placed);
}

/// The refusal with what can be said of it: the gate names no SKU, but one line has only one.
fn refused(asked: &Asked, code: Code, skus: &BTreeMap<Sku, SkuRow>) -> Refused {
    let lines = &asked.request.lines;
    if code == Code::SaleNotOpen {
        let first = lines
            .iter()
            .filter_map(|line| skus.get(&line.sku))
            .filter_map(|row| row.opens_at.map(|opens_at| (opens_at, &row.sku)))
            .max();
        if let Some((opens_at, sku)) = first {
            return Refused {
                code,
                sku: Some(sku.clone()),
                opens_at: Some(opens_at),
            };
        }
    }
    let sku = match lines.as_slice() {
        [line] => Some(line.sku.clone()),
        _ => None,
    };
    Refused {
        code,
        sku,
        opens_at: None,
    }
}
