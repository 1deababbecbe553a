//! Order requests by Kafka (`ORDER_REQUESTED` on `orders.requests.v1`): the same gate and the same
//! accept as by HTTP. (`ce_source`, `ce_id`) is the key, also when the topic is replayed from its
//! start. The answer is `ORDER_RESERVED`, or `ORDER_REJECTED` with a code of HTTP (P9, P11).
//!
//! Requests belong to the shop of `HOLDFAST_SHOP`: there is one, and its customers are the same
//! whichever way their orders come. A reader's own deadline does not exist here: what can't be
//! decided now is decided later, and no failure of ours turns into a refusal.
//!
//! Steps: look the keys up; ask the gate about those that are new; in the transaction of the inbox
//! take the keys, decide, write orders or stored refusals with their events; after the commit make
//! the gate match.
//! When the process dies: before the commit everything is done again (holds are found by id); after
//! it the inbox knows the requests, or, when its rows are gone, the keys do: an accepted request has
//! no further effect, a rejected one has its `ORDER_REJECTED` repeated.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use contracts::{
    Code, ConsumerName, Envelope, HoldId, OrderId, Shop, Timestamp, Topic,
    events::{NewEvent, OrderRejected, OrderRequestEvent},
};
use domain::{Buyer, Hold, OrderRequest, Shard};
use messaging::{Aside, Class, HandleError, Handler, Inbound, Rejection};
use reservations::{Gate, ReserveOutcome};
use sha2::{Digest, Sha256};
use store::{
    PgClock, Store, Tx,
    idempotency::{self, Answer, Claim, KeyRow},
    outbox,
};

use crate::{
    accept_batch::{self, Batch, Verdict},
    catalogue::{Catalogue, Route},
    parse::{BodyError, order::OrderDraft},
    place_orders::{BATCH_MAX, Refused},
    sync_gate::SyncGate,
};

/// Where the key counts.
const ROUTE: &str = Topic::OrderRequests.as_str();

/// The longest detail of a refusal, in characters.
const DETAIL_MAX: usize = 500;

/// The deadline of what has none: the last second that RFC 3339 can name.
const NEVER: Timestamp = match Timestamp::from_timestamp(253_402_300_799, 0) {
    Some(never) => never,
    None => Timestamp::MAX_UTC,
};

/// A request that could be read.
#[derive(Debug)]
pub(crate) struct Requested {
    hold_id: HoldId,
    fingerprint: [u8; 32],
    /// What is asked for, or which rules the request breaks.
    wanted: Result<OrderRequest, String>,
}

/// What the gate and the keys say before the transaction: refusals by hold id.
pub(crate) type Prepared = HashMap<HoldId, Code>;

/// Handles order requests.
#[derive(Debug)]
pub(crate) struct RequestOrders {
    pub(crate) store: Store,
    pub(crate) gate: Gate,
    pub(crate) clock: PgClock,
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) sync: SyncGate,
    pub(crate) shop: Shop,
}

/// An answer that is an event.
#[derive(Debug)]
struct Refusal<'a> {
    event: &'a Inbound<Requested>,
    code: Code,
    detail: String,
    /// Whether it is to be stored under its key; a repeated one is stored already.
    store: bool,
}

impl Handler for RequestOrders {
    type Event = Requested;
    type Prepared = Prepared;

    fn consumer(&self) -> ConsumerName {
        ConsumerName::Order
    }

    fn decode(&self, envelope: &Envelope, data: &[u8]) -> Result<Option<Requested>, Rejection> {
        if !OrderRequestEvent::TYPES.contains(&envelope.event_type.as_str()) {
            return Ok(None);
        }
        let hold_id = HoldId::derive(&format!("kafka:{}", envelope.source), ROUTE, &envelope.id);
        let (fingerprint, wanted) = match OrderDraft::parse(data) {
            Ok(draft) => {
                let fingerprint = draft.fingerprint();
                let request = OrderRequest {
                    hold_id,
                    fingerprint,
                    order_id: OrderId::generate(),
                    buyer: Buyer {
                        shop: self.shop.clone(),
                        customer: draft.customer_id,
                    },
                    lines: draft.lines,
                    payment_method: draft.payment_method,
                };
                (fingerprint, Ok(request))
            }
            Err(BodyError::Malformed(detail)) => {
                return Err(Rejection::new(Class::Malformed, detail));
            }
            Err(BodyError::Invalid(errors)) => {
                let all: Vec<String> = errors
                    .iter()
                    .map(|error| format!("{} {}", error.field, error.detail))
                    .collect();
                (Sha256::digest(data).into(), Err(printable(&all.join("; "))))
            }
        };
        Ok(Some(Requested {
            hold_id,
            fingerprint,
            wanted,
        }))
    }

    async fn prepare(&self, events: &[Inbound<Requested>]) -> Result<Prepared, HandleError> {
        let holds: Vec<HoldId> = events.iter().map(|event| event.event.hold_id).collect();
        let mut conn = self.store.conn().await?;
        let known = idempotency::find(&mut conn, &holds).await?;
        drop(conn);
        let mut asked = HashSet::new();
        let mut shards: BTreeMap<Shard, Vec<Hold>> = BTreeMap::new();
        for request in events
            .iter()
            .filter_map(|event| event.event.wanted.as_ref().ok())
        {
            if known.contains_key(&request.hold_id) || !asked.insert(request.hold_id) {
                continue;
            }
            if let (Route::Shard(shard), _) = self.catalogue.route(&request.lines, 0) {
                shards.entry(shard).or_default().push(hold(request));
            }
        }
        let now_ms = self.now().await?.timestamp_millis();
        let mut refused = Prepared::new();
        for (shard, holds) in shards {
            for holds in holds.chunks(BATCH_MAX) {
                let outcomes = self.gate.reserve(shard, now_ms, holds).await;
                for (hold, outcome) in holds.iter().zip(outcomes) {
                    if let Some(code) = refusal_of(outcome) {
                        refused.insert(hold.hold_id, code);
                    }
                }
            }
        }
        Ok(refused)
    }

    async fn handle(
        &self,
        tx: &mut Tx,
        events: &[Inbound<Requested>],
        prepared: Prepared,
    ) -> Result<Vec<Aside>, HandleError> {
        let (to_decide, refused) = split(events, &prepared);
        let mut refusals = self.decide(tx, &to_decide).await?;
        refusals.extend(take_keys(tx, refused).await?);
        write(tx, refusals).await?;
        Ok(Vec::new())
    }

    async fn after_commit(&self, events: &[Inbound<Requested>]) {
        // Whatever the gate believes of these holds, it is told what PostgreSQL says.
        for request in events
            .iter()
            .filter_map(|event| event.event.wanted.as_ref().ok())
        {
            self.sync.later(request);
        }
    }
}

impl RequestOrders {
    async fn now(&self) -> Result<Timestamp, HandleError> {
        match self.clock.now() {
            Some(now) => Ok(now),
            None => Ok(self.store.clock().await?),
        }
    }

    /// Runs the accept for what the gate let through; returns what is refused.
    async fn decide<'a>(
        &self,
        tx: &mut Tx,
        to_decide: &[(&'a Inbound<Requested>, &'a OrderRequest)],
    ) -> Result<Vec<Refusal<'a>>, HandleError> {
        if to_decide.is_empty() {
            return Ok(Vec::new());
        }
        let batch = Batch {
            requests: to_decide
                .iter()
                .map(|(_, request)| (*request).clone())
                .collect(),
            deadlines: vec![NEVER; to_decide.len()],
            traceparents: to_decide
                .iter()
                .map(|(event, _)| event.traceparent.clone())
                .collect(),
            by_kafka: true,
            attempts: Arc::default(),
        };
        let decided = accept_batch::decide(tx, &batch, &self.catalogue).await?;
        let mut refusals = Vec::new();
        for ((event, _), verdict) in to_decide.iter().zip(decided.verdicts) {
            refusals.extend(refusal(event, verdict));
        }
        Ok(refusals)
    }
}

fn hold(request: &OrderRequest) -> Hold {
    Hold {
        hold_id: request.hold_id,
        buyer: request.buyer.clone(),
        lines: request.lines.clone(),
    }
}

/// The code of a refusal of the gate. Its key has been looked up before. `OTHER` is decided by the
/// accept: the key tells whether it is a reuse.
fn refusal_of(outcome: ReserveOutcome) -> Option<Code> {
    match outcome {
        ReserveOutcome::NotOpen => Some(Code::SaleNotOpen),
        ReserveOutcome::Over => Some(Code::SaleOver),
        ReserveOutcome::Limit => Some(Code::PurchaseLimit),
        ReserveOutcome::SoldOut => Some(Code::SoldOut),
        ReserveOutcome::Ok
        | ReserveOutcome::Known
        | ReserveOutcome::Other
        | ReserveOutcome::NoGate
        | ReserveOutcome::Damaged => None,
    }
}

type ToDecide<'a> = Vec<(&'a Inbound<Requested>, &'a OrderRequest)>;

/// What goes to the accept, and what is refused without it.
fn split<'a>(
    events: &'a [Inbound<Requested>],
    prepared: &Prepared,
) -> (ToDecide<'a>, Vec<Refusal<'a>>) {
    let mut to_decide = ToDecide::with_capacity(events.len());
    let mut refused = Vec::new();
    for event in events {
        let code = prepared.get(&event.event.hold_id).copied();
        match (&event.event.wanted, code) {
            (Ok(request), None) => to_decide.push((event, request)),
            (Ok(request), Some(code)) => {
                let sku = match request.lines.as_slice() {
                    [line] => Some(line.sku.clone()),
                    _ => None,
                };
                let detail = Refused {
                    code,
                    sku,
                    opens_at: None,
                }
                .detail();
                refused.push(Refusal {
                    event,
                    code,
                    detail,
                    store: true,
                });
            }
            (Err(detail), _) => refused.push(Refusal {
                event,
                code: Code::Invalid,
                detail: detail.clone(),
                store: true,
            }),
        }
    }
    (to_decide, refused)
}

/// Takes the keys of what was refused without the accept. A key that is taken already says what was
/// answered before; that is what counts.
async fn take_keys<'a>(
    tx: &mut Tx,
    refused: Vec<Refusal<'a>>,
) -> Result<Vec<Refusal<'a>>, HandleError> {
    if refused.is_empty() {
        return Ok(refused);
    }
    let claims: Vec<Claim> = refused
        .iter()
        .map(|refusal| Claim {
            hold_id: refusal.event.event.hold_id,
            fingerprint: refusal.event.event.fingerprint,
            order_id: OrderId::generate(),
            deadline: NEVER,
        })
        .collect();
    let mine: HashSet<HoldId> = idempotency::claim(tx, &claims, true)
        .await?
        .into_iter()
        .collect();
    let others: Vec<HoldId> = claims
        .iter()
        .map(|claim| claim.hold_id)
        .filter(|hold| !mine.contains(hold))
        .collect();
    let mut before = if others.is_empty() {
        HashMap::new()
    } else {
        idempotency::find(tx, &others).await?
    };
    let mut out = Vec::with_capacity(refused.len());
    for refusal in refused {
        let hold = refusal.event.event.hold_id;
        if mine.contains(&hold) {
            out.push(refusal);
        } else if let Some(row) = before.remove(&hold) {
            out.extend(repeated(refusal.event, row));
        }
    }
    Ok(out)
}

/// What is answered to a request whose key was used before.
fn repeated(event: &Inbound<Requested>, row: KeyRow) -> Option<Refusal<'_>> {
    if row.fingerprint != event.event.fingerprint {
        return Some(key_reused(event));
    }
    match row.answer {
        // Its ORDER_RESERVED went out with the order.
        Answer::Accepted(_) => None,
        Answer::Rejected { code, detail } => Some(Refusal {
            event,
            code,
            detail,
            store: false,
        }),
    }
}

/// The refusal that a verdict of the accept means; `None` when the order stands.
fn refusal(event: &Inbound<Requested>, verdict: Verdict) -> Option<Refusal<'_>> {
    let outcome = match &verdict {
        Verdict::Accepted(_) => "accepted",
        Verdict::Before(_) => "replayed",
        Verdict::Rejected { code, .. } => code.as_str(),
        Verdict::KeyReused => "key-reused",
        Verdict::Refused(_) => "refused",
        Verdict::Late => "late",
    };
    metrics::counter!("order_requests_total", "outcome" => outcome).increment(1);
    match verdict {
        Verdict::Accepted(_) | Verdict::Before(_) => None,
        Verdict::Rejected { code, detail } => Some(Refusal {
            event,
            code,
            detail,
            store: false,
        }),
        Verdict::KeyReused => Some(key_reused(event)),
        Verdict::Refused(refusal) => {
            let refused = Refused::from(refusal);
            let detail = refused.detail();
            Some(Refusal {
                event,
                code: refused.code,
                detail,
                store: true,
            })
        }
        Verdict::Late => {
            // Only a key whose order has been removed by hand.
            tracing::warn!(
                event.id = event.event_id,
                "a request's key stands for no order"
            );
            None
        }
    }
}

fn key_reused(event: &Inbound<Requested>) -> Refusal<'_> {
    let detail = "the same source and id were used with another body".to_owned();
    Refusal {
        event,
        code: Code::KeyReused,
        detail,
        store: false,
    }
}

/// Stores what is new, and answers all.
async fn write(tx: &mut Tx, refusals: Vec<Refusal<'_>>) -> Result<(), HandleError> {
    if refusals.is_empty() {
        return Ok(());
    }
    let new: Vec<(HoldId, Code, String)> = refusals
        .iter()
        .filter(|refusal| refusal.store)
        .map(|refusal| {
            (
                refusal.event.event.hold_id,
                refusal.code,
                refusal.detail.clone(),
            )
        })
        .collect();
    if !new.is_empty() {
        idempotency::reject(tx, &new).await?;
    }
    let answers: Vec<NewEvent> = refusals
        .into_iter()
        .map(|refusal| {
            let rejected = OrderRejected {
                request_source: refusal.event.source.clone(),
                request_id: refusal.event.event_id.clone(),
                code: refusal.code,
                detail: refusal.detail,
            };
            let mut answer = NewEvent::rejection(refusal.event.event.hold_id, rejected);
            answer.traceparent.clone_from(&refusal.event.traceparent);
            answer
        })
        .collect();
    outbox::insert(tx, &answers).await?;
    Ok(())
}

/// What a request said may stand in a detail: no control characters (PostgreSQL refuses a zero byte,
/// and the event would be a poison), no novels.
fn printable(text: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(clean).take(DETAIL_MAX).collect()
}
