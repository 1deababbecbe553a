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

mod refusals;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use contracts::{
    Code, ConsumerName, Envelope, HoldId, OrderId, Shop, Timestamp, Topic,
    events::OrderRequestEvent,
};
use domain::{Buyer, Hold, OrderRequest, Shard};
use messaging::{Aside, Class, HandleError, Handler, Inbound, Rejection};
use reservations::{Gate, ReserveOutcome};
use sha2::{Digest, Sha256};
use store::{PgClock, Store, Tx, idempotency};

use self::refusals::Refusal;
use crate::{
    accept_batch::{self, Batch},
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
        refusals.extend(refusals::take_keys(tx, refused).await?);
        refusals::write(tx, refusals).await?;
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
            // An id says when its order came to be: a request may have waited for minutes to be decided,
            // and whoever reads orders along their ids has passed by then.
            requests: to_decide
                .iter()
                .map(|(_, request)| OrderRequest {
                    order_id: OrderId::generate(),
                    ..(*request).clone()
                })
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
            refusals.extend(refusals::of_verdict(event, verdict));
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

/// What a request said may stand in a detail: no control characters (PostgreSQL refuses a zero byte,
/// and the event would be a poison), no novels.
fn printable(text: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(clean).take(DETAIL_MAX).collect()
}
