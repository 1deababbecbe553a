//! Places orders: a 201 means that the units are the buyer's until the deadline; whatever else is
//! answered took nothing, or says that nobody knows (P1, P2, P4, P11).
//!
//! An order passes through three stages, each with a bounded queue, each working in batches:
//!
//! 1. [`admit_orders`](crate::admit_orders): the gate. OK, KNOWN and no answer go on to 2; refusals
//!    go to 3.
//! 2. [`accept_orders`](crate::accept_orders): one transaction per batch decides.
//! 3. [`look_up`](crate::look_up): the key behind a refusal is looked up before it is believed.
//!
//! The stages own the work: a client that hangs up drops its end of a channel and cancels nothing
//! (P14). Work older than 2 s is dropped before each stage, and by the accept's own statement.
//!
//! When the process dies:
//! - before 1: nothing happened; a retry is a first request;
//! - after 1: the hold belongs to no order and goes by the sweep within 7 s; a retry before that
//!   finds its own hold;
//! - in 2 before the commit: rolled back, as after 1;
//! - in 2 after the commit: the order stands, its events are in the outbox; a retry is a replay;
//! - after 2 before the gate was told (DIRECT, replays, refusals): the sweep and the audit tell it.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::Instant,
};

use contracts::{Code, Sku, Timestamp};
use domain::{OrderRequest, Refusal, Shard, deadline::ACCEPT_WITHIN};
use platform::{Shutdown, clock};
use reservations::Gate;
use store::{Order, PgClock};
use tokio::sync::{mpsc, oneshot};

use crate::{
    admit_orders,
    catalogue::{Catalogue, Route},
    deciding::Attempt,
    mode::{Backlog, QUEUE_MAX},
};

/// The most orders of one call of the gate and of one transaction.
pub(crate) const BATCH_MAX: usize = 128;

/// What became of a request.
#[derive(Debug, Clone)]
pub(crate) enum Placed {
    /// Now.
    Accepted(Arc<Order>),
    /// Before, under the same key with the same body: the order as it was then.
    Replayed(Arc<Order>),
    /// The key was used with another body.
    KeyReused,
    /// A request with this key is being decided at this moment.
    InFlight,
    /// A rule says no; nothing is stored.
    Refused(Refused),
    /// Nothing was taken: a server behind is away, a queue is full, or it took too long.
    Unavailable,
    /// Nobody knows whether the order was accepted; the same key tells.
    Unknown,
}

impl Placed {
    /// The label in metrics.
    pub(crate) fn outcome(&self) -> &'static str {
        match self {
            Self::Accepted(_) => "accepted",
            Self::Replayed(_) => "replayed",
            Self::KeyReused => "key-reused",
            Self::InFlight => "request-in-flight",
            Self::Refused(refused) => refused.code.as_str(),
            Self::Unavailable => "unavailable",
            Self::Unknown => "unknown",
        }
    }
}

/// A rule that says no.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) code: Code,
    /// The SKU whose rule it is, where it is known.
    pub(crate) sku: Option<Sku>,
    pub(crate) opens_at: Option<Timestamp>,
}

impl Refused {
    /// For people.
    pub(crate) fn detail(&self) -> String {
        let what = match self.code {
            Code::SoldOut => "not enough units are left",
            Code::SaleOver => "the sale has ended",
            Code::SaleNotOpen => "the sale has not begun",
            Code::PurchaseLimit => "the customer would have more units than one customer may",
            Code::UnknownSku => "there is no such SKU",
            _ => "the lines have several currencies, or their sum is too great",
        };
        match &self.sku {
            Some(sku) => format!("{sku}: {what}"),
            None => what.to_owned(),
        }
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        let of = |code, sku| Self {
            code,
            sku: Some(sku),
            opens_at: None,
        };
        match refusal {
            Refusal::SoldOut { sku } => of(Code::SoldOut, sku),
            Refusal::PurchaseLimit { sku } => of(Code::PurchaseLimit, sku),
            Refusal::NotOpen { sku, opens_at } => Self {
                opens_at,
                ..of(Code::SaleNotOpen, sku)
            },
            Refusal::SaleOver { sku } => of(Code::SaleOver, sku),
            Refusal::UnknownSku { sku } => of(Code::UnknownSku, sku),
            Refusal::Total => Self {
                code: Code::Invalid,
                sku: None,
                opens_at: None,
            },
        }
    }
}

/// How far the gate has let an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The gate holds its units, for the first time.
    Held,
    /// The gate held them before: a retry, a twin, or a replay.
    Known,
    /// The gate was not asked or has not answered.
    Direct,
}

/// An order on its way.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) request: OrderRequest,
    /// The caller's trace, for the event.
    pub(crate) traceparent: Option<String>,
    pub(crate) received: Instant,
    /// After it the accept takes nothing, in PostgreSQL's clock.
    pub(crate) deadline: Timestamp,
    pub(crate) admission: Admission,
    /// While the accept has it.
    pub(crate) attempt: Option<Attempt>,
    answer: oneshot::Sender<Placed>,
}

impl Asked {
    /// Whether nobody can be served any more.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.received) >= ACCEPT_WITHIN
    }

    /// Answers. That nobody listens any more is no failure: the same key gets the same answer.
    pub(crate) fn answer(self, placed: Placed) {
        metrics::counter!("reservations_total", "outcome" => placed.outcome()).increment(1);
        drop(self.answer.send(placed));
    }
}

/// The entrance of the stages. Cloning shares it; the stages end when the last clone is dropped.
#[derive(Debug, Clone)]
pub(crate) struct PlaceOrders {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    lanes: RwLock<HashMap<Shard, mpsc::Sender<Asked>>>,
    stages: admit_orders::Next,
    gate: Gate,
    clock: PgClock,
    catalogue: Arc<Catalogue>,
    backlog: Backlog,
    default_ttl: i32,
    tasks: Shutdown,
}

impl PlaceOrders {
    pub(crate) fn new(
        stages: admit_orders::Next,
        gate: Gate,
        clock: PgClock,
        catalogue: Arc<Catalogue>,
        backlog: Backlog,
        default_ttl: i32,
        tasks: Shutdown,
    ) -> Self {
        let inner = Inner {
            lanes: RwLock::default(),
            stages,
            gate,
            clock,
            catalogue,
            backlog,
            default_ttl,
            tasks,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Hands a request to the stages and waits for its answer. The wait is bounded: a stage that
    /// hangs has an unknown outcome.
    pub(crate) async fn place(&self, request: OrderRequest, traceparent: Option<String>) -> Placed {
        let Some(answered) = self.submit(request, traceparent) else {
            metrics::counter!("reservations_total", "outcome" => "unavailable").increment(1);
            return Placed::Unavailable;
        };
        // A little longer than the accept may take, so that its own answer comes first.
        match tokio::time::timeout(ACCEPT_WITHIN + ACCEPT_WITHIN / 2, answered).await {
            Ok(Ok(placed)) => placed,
            // A stage dropped the order unanswered: its task died, perhaps after its commit.
            Ok(Err(_)) | Err(_) => Placed::Unknown,
        }
    }

    fn submit(
        &self,
        request: OrderRequest,
        traceparent: Option<String>,
    ) -> Option<oneshot::Receiver<Placed>> {
        let inner = &*self.inner;
        let received = clock::monotonic();
        let deadline = inner.clock.deadline(received, ACCEPT_WITHIN)?;
        let (route, ttl) = inner.catalogue.route(&request.lines, inner.default_ttl);
        if inner.backlog.is_longer_than_quarter_of(ttl) {
            return None;
        }
        let (answer, answered) = oneshot::channel();
        let asked = Asked {
            request,
            traceparent,
            received,
            deadline,
            admission: Admission::Direct,
            attempt: None,
            answer,
        };
        match route {
            Route::Several => inner.stages.accept(asked).ok()?,
            Route::Shard(shard) => self.lane(shard).try_send(asked).ok()?,
        }
        Some(answered)
    }

    /// What holds new orders back.
    pub(crate) fn backlog(&self) -> Backlog {
        self.inner.backlog.clone()
    }

    fn lane(&self, shard: Shard) -> mpsc::Sender<Asked> {
        let inner = &*self.inner;
        let lanes = inner.lanes.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(lane) = lanes.get(&shard) {
            return lane.clone();
        }
        drop(lanes);
        let mut lanes = inner.lanes.write().unwrap_or_else(PoisonError::into_inner);
        lanes
            .entry(shard)
            .or_insert_with(|| {
                let (lane, queue) = mpsc::channel(QUEUE_MAX);
                inner.tasks.spawn(admit_orders::run(
                    shard,
                    queue,
                    inner.gate.clone(),
                    inner.clock.clone(),
                    inner.stages.clone(),
                ));
                lane
            })
            .clone()
    }
}
