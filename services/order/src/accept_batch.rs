//! The transaction of the accept: who gets units is decided here and nowhere else (P1). HTTP and
//! Kafka share it; the caller begins and commits. When the process dies before the commit, nothing
//! of it is there; after the commit, every retry of a key is a replay.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use contracts::{Code, HoldId, OrderId, Sku, Timestamp};
use domain::{Buyer, BuyerView, Decision, OrderRequest, Plan, Refusal, plan_batch};
use store::{
    Order, StoreError, Tx, buyer_units,
    idempotency::{self, Answer, Claim, KeyRow},
    orders::{self, NewOrder},
    stock::{self, AcceptView},
};

use crate::{catalogue::Catalogue, deciding::Attempt};

/// Requests to be decided together, first come first served; no hold id comes twice.
#[derive(Debug)]
pub struct Batch {
    pub(crate) requests: Vec<OrderRequest>,
    /// One per request: after it nothing is taken.
    pub(crate) deadlines: Vec<Timestamp>,
    /// One per request.
    pub(crate) traceparents: Vec<Option<String>>,
    /// Whether refusals are stored, as for requests by Kafka.
    pub(crate) by_kafka: bool,
    /// Of requests by HTTP: over when every run of the batch has ended.
    pub(crate) attempts: Arc<Vec<Attempt>>,
}

impl Batch {
    /// Requests with their deadlines that no queue has gathered: for whoever compares this
    /// transaction with the model.
    #[must_use]
    pub fn of(requests: Vec<(OrderRequest, Timestamp)>) -> Self {
        let (requests, deadlines): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
        Self {
            traceparents: vec![None; requests.len()],
            requests,
            deadlines,
            by_kafka: false,
            attempts: Arc::default(),
        }
    }
}

/// What became of one request, if the transaction commits.
#[derive(Debug, Clone)]
pub enum Verdict {
    /// It was accepted now.
    Accepted(Order),
    /// It was accepted before: the order as it is now.
    Before(Order),
    /// It was rejected before; only requests by Kafka are.
    Rejected {
        /// Why.
        code: Code,
        /// For people.
        detail: String,
    },
    /// Its key was used with another body.
    KeyReused,
    /// A rule says no.
    Refused(Refusal),
    /// Its deadline has passed.
    Late,
}

/// What a batch came to.
#[derive(Debug)]
pub struct Decided {
    /// One per request, in their order.
    pub verdicts: Vec<Verdict>,
    /// PostgreSQL's clock under the locks, when anything was locked.
    pub now: Option<Timestamp>,
}

impl Decided {
    /// Whether there is nothing that a COMMIT would make lasting, of a batch that stores no refusals:
    /// a refusal leaves no row, and what was accepted before is another transaction's.
    pub(crate) fn took_nothing(&self) -> bool {
        self.verdicts.iter().all(|verdict| match verdict {
            Verdict::Accepted(_) => false,
            Verdict::Before(_)
            | Verdict::Rejected { .. }
            | Verdict::KeyReused
            | Verdict::Refused(_)
            | Verdict::Late => true,
        })
    }
}

/// Decides a batch in the seven steps of P1. Step 1, twins in memory, is the caller's.
///
/// # Errors
/// The database; [`StoreError::must_rerun`] asks for the same batch again.
pub async fn decide(
    tx: &mut Tx,
    batch: &Batch,
    catalogue: &Catalogue,
) -> Result<Decided, StoreError> {
    let claims: Vec<Claim> = batch
        .requests
        .iter()
        .zip(&batch.deadlines)
        .map(|(request, deadline)| Claim {
            hold_id: request.hold_id,
            fingerprint: request.fingerprint,
            order_id: request.order_id,
            deadline: *deadline,
        })
        .collect();
    let mine: HashSet<HoldId> = idempotency::claim(tx, &claims, batch.by_kafka)
        .await?
        .into_iter()
        .collect();
    let mut known = HashMap::with_capacity(batch.requests.len());
    let now = if mine.is_empty() {
        None
    } else {
        Some(decide_mine(tx, batch, &mine, catalogue, &mut known).await?)
    };
    if mine.len() < batch.requests.len() {
        read_others(tx, batch, &mine, &mut known).await?;
    }
    let verdicts = batch
        .requests
        .iter()
        .map(|request| known.remove(&request.hold_id).unwrap_or(Verdict::Late))
        .collect();
    Ok(Decided { verdicts, now })
}

/// Steps 3 to 6 for the keys that this transaction has taken.
async fn decide_mine(
    tx: &mut Tx,
    batch: &Batch,
    mine: &HashSet<HoldId>,
    catalogue: &Catalogue,
    known: &mut HashMap<HoldId, Verdict>,
) -> Result<Timestamp, StoreError> {
    let some;
    let requests: &[OrderRequest] = if mine.len() == batch.requests.len() {
        &batch.requests
    } else {
        some = batch
            .requests
            .iter()
            .filter(|request| mine.contains(&request.hold_id))
            .cloned()
            .collect::<Vec<_>>();
        &some
    };
    let skus: BTreeSet<&Sku> = requests
        .iter()
        .flat_map(|request| request.lines.iter().map(|line| &line.sku))
        .collect();
    let limited: BTreeSet<Sku> = skus
        .iter()
        .filter(|sku| catalogue.is_limited(sku))
        .map(|sku| (*sku).clone())
        .collect();
    let buyers = lock_buyers(tx, requests, &limited).await?;
    let skus: Vec<Sku> = skus.into_iter().cloned().collect();
    let view = stock::lock_for_accept(tx, &skus).await?;
    catalogue.learn(view.skus.iter());
    let unlocked = view
        .skus
        .iter()
        .find(|(sku, view)| view.per_customer_limit.is_some() && !limited.contains(*sku));
    if let Some((sku, _)) = unlocked {
        return Err(StoreError::CatalogueMoved {
            sku: sku.to_string(),
        });
    }
    let mut plan = plan_batch(requests, &view.skus, &buyers, view.now);
    for (request, decision) in requests.iter().zip(&mut plan.decisions) {
        if let Decision::Accept(order) = decision {
            let rules = catalogue.rules();
            order.ttl_seconds = rules.ttl_seconds(order.ttl_seconds, &request.payment_method);
        }
    }
    write(tx, batch, requests, &plan, &view, known).await?;
    buyer_units::forget_empty(tx, &refused_buyers(&buyers, &plan)).await?;
    Ok(view.now)
}

async fn lock_buyers(
    tx: &mut Tx,
    requests: &[OrderRequest],
    limited: &BTreeSet<Sku>,
) -> Result<BuyerView, StoreError> {
    if limited.is_empty() {
        return Ok(BuyerView::new());
    }
    let mut keys: Vec<(Sku, Buyer)> = Vec::new();
    for request in requests {
        for line in request
            .lines
            .iter()
            .filter(|line| limited.contains(&line.sku))
        {
            keys.push((line.sku.clone(), request.buyer.clone()));
        }
    }
    buyer_units::lock(tx, &keys).await
}

/// Buyers whose rows are there for a refusal alone.
fn refused_buyers(locked: &BuyerView, plan: &Plan) -> BTreeSet<(Sku, Buyer)> {
    let refuses = |decision: &Decision| matches!(decision, Decision::Refuse(_));
    if !plan.decisions.iter().any(refuses) {
        return BTreeSet::new();
    }
    let empty = locked
        .iter()
        .filter(|(key, units)| **units == 0 && !plan.bought.contains_key(*key));
    empty.map(|(key, _)| key.clone()).collect()
}

/// Step 6: one stock write, buyers' units, then orders, lines, history and outbox at once.
async fn write(
    tx: &mut Tx,
    batch: &Batch,
    requests: &[OrderRequest],
    plan: &Plan,
    view: &AcceptView,
    known: &mut HashMap<HoldId, Verdict>,
) -> Result<(), StoreError> {
    let mut rows = BTreeMap::new();
    for (sku, units) in &plan.taken {
        if let Some(row) = view.rows.get(sku) {
            let mut row = *row;
            row.held += units;
            rows.insert(sku.clone(), row);
        }
    }
    buyer_units::add(tx, &plan.bought).await?;
    stock::write(tx, &rows).await?;
    let mut accepted = Vec::with_capacity(requests.len());
    let mut refused = Vec::new();
    for (request, decision) in requests.iter().zip(&plan.decisions) {
        match decision {
            Decision::Accept(order) => accepted.push(NewOrder {
                request,
                accepted: order,
                traceparent: traceparent_of(batch, request.hold_id),
            }),
            Decision::Refuse(refusal) => {
                refused.push(request.hold_id);
                known.insert(request.hold_id, Verdict::Refused(refusal.clone()));
            }
        }
    }
    if batch.by_kafka {
        // Stored as refusals by the caller, in this transaction.
        refused.clear();
    }
    for order in orders::insert_accepted(tx, &accepted, &refused, view.now).await? {
        known.insert(order.hold_id, Verdict::Accepted(order));
    }
    platform::crash_point!(
        "cp9",
        if accepted.len() < requests.len(),
        err => return Err(StoreError::no_connection())
    );
    Ok(())
}

/// Traces are rare: looked for only when any request has one.
fn traceparent_of(batch: &Batch, hold_id: HoldId) -> Option<&str> {
    if batch.traceparents.iter().all(Option::is_none) {
        return None;
    }
    let at = batch
        .requests
        .iter()
        .position(|request| request.hold_id == hold_id)?;
    batch.traceparents.get(at)?.as_deref()
}

/// Step 7: what the other keys stand for.
async fn read_others(
    tx: &mut Tx,
    batch: &Batch,
    mine: &HashSet<HoldId>,
    known: &mut HashMap<HoldId, Verdict>,
) -> Result<(), StoreError> {
    let others: Vec<&OrderRequest> = batch
        .requests
        .iter()
        .filter(|request| !mine.contains(&request.hold_id))
        .collect();
    let holds: Vec<HoldId> = others.iter().map(|request| request.hold_id).collect();
    let mut rows = idempotency::find(tx, &holds).await?;
    let ids: Vec<OrderId> = rows.values().filter_map(accepted_id).collect();
    let mut orders: HashMap<OrderId, Order> = if ids.is_empty() {
        HashMap::new()
    } else {
        orders::find_many(tx, &ids)
            .await?
            .into_iter()
            .map(|order| (order.id, order))
            .collect()
    };
    for request in others {
        if let Some(row) = rows.remove(&request.hold_id) {
            let verdict = what_was_answered(request.fingerprint, row, &mut orders);
            known.insert(request.hold_id, verdict);
        }
    }
    Ok(())
}

/// The order that a key stands for.
pub(crate) fn accepted_id(row: &KeyRow) -> Option<OrderId> {
    match row.answer {
        Answer::Accepted(id) => Some(id),
        Answer::Rejected { .. } => None,
    }
}

/// The verdict on a key that was used before.
pub(crate) fn what_was_answered(
    fingerprint: [u8; 32],
    row: KeyRow,
    orders: &mut HashMap<OrderId, Order>,
) -> Verdict {
    if row.fingerprint != fingerprint {
        return Verdict::KeyReused;
    }
    match row.answer {
        // A key and its order are committed together; without the order nothing can be said.
        Answer::Accepted(id) => orders.remove(&id).map_or(Verdict::Late, Verdict::Before),
        Answer::Rejected { code, detail } => Verdict::Rejected { code, detail },
    }
}
