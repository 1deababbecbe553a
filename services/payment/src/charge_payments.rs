//! Charges orders that wait for their payment, and takes refund requests. Guarantee: an order is
//! charged under one constant key, only while it is RESERVED with time left, and only after its
//! PENDING row is committed; so there is no capture that nobody knows of.
//!
//! Steps, for a batch of `orders.v1`:
//! 1. In the transaction of the inbox: lock the orders that wait (P5); for each a PENDING payment,
//!    if it has none; refund requests as in [`crate::execute_refunds`].
//!    Dies: nothing is written; the batch comes again.
//! 2. COMMIT. Dies after: PENDING rows that nobody tried; when their lease is over the sweep asks
//!    the gateway by key, finds nothing and charges or cancels ([`crate::sweep_payments`]).
//! 3. After the commit: untried payments go to a bounded pool; when it is full, the consumer waits,
//!    for seconds. Dies: as in 2. A job that waited too long is left to the sweep, which looks at
//!    its order first.
//! 4. The pool charges, key = `order-ID`.
//!    Dies before or in it: as in 2; the gateway gives the first result for the same key.
//! 5. The result is recorded ([`crate::record_results`]). Dies before: as in 4.
//!
//! A decline that is not final ends the payment and not the order: nobody charges a card again
//! unasked. The order waits for its deadline, or for a payment from elsewhere.

use std::{collections::BTreeSet, time::Instant};

use contracts::{
    ConsumerName, Envelope, OrderId, PaymentId, RefundKey, Timestamp,
    events::{OrderEvent, RefundRequested},
};
use domain::deadline::{HoldRules, MIN_LEFT_MAX, Renewal};
use messaging::{Aside, Class, HandleError, Handler, Inbound, Rejection};
use platform::clock;
use store::{
    Store, StoreError, Tx, orders, outbox,
    payments::{self, PendingPayment, WaitingOrder},
    refund_executions,
};

use crate::{
    LEASE, execute_refunds,
    pool::{Job, Pool},
};

/// What `orders.v1` asks of payment.
#[derive(Debug)]
pub enum Work {
    /// An order waits for its payment. Nothing else of the event is believed: PostgreSQL is read.
    Reserved(OrderId),
    /// Money is to go back.
    Refund(RefundRequested),
}

/// The consumer of `orders.v1`.
#[derive(Debug, Clone)]
pub struct ChargePayments {
    store: Store,
    /// Without one, what is begun is left to the sweep.
    pool: Option<Pool>,
    rules: HoldRules,
}

/// The idempotency key of an order's charge: constant, so that there is at most one live charge.
#[must_use]
pub fn gateway_key(order: OrderId) -> String {
    format!("order-{order}")
}

impl ChargePayments {
    /// A handler that gives its jobs to `pool`.
    #[must_use]
    pub fn new(store: Store, pool: Pool) -> Self {
        Self {
            store,
            pool: Some(pool),
            rules: HoldRules::default(),
        }
    }

    /// A handler beside the running service, as for a redrive: what it begins is charged by the
    /// service's sweep, when its lease is over.
    #[must_use]
    pub fn without_pool(store: Store) -> Self {
        Self {
            store,
            pool: None,
            rules: HoldRules::default(),
        }
    }

    /// Other rules of how holds are renewed.
    #[must_use]
    pub fn with_rules(mut self, rules: HoldRules) -> Self {
        self.rules = rules;
        self
    }

    /// Begins and charges payments of these orders, as if they were announced once more.
    ///
    /// # Errors
    /// The database. What was committed before is charged by the sweep.
    pub(crate) async fn begin(&self, orders: &[OrderId]) -> Result<(), StoreError> {
        let since = clock::monotonic();
        let mut tx = self.store.begin().await?;
        begin_payments(&mut tx, orders, &self.rules).await?;
        tx.commit().await?;
        let jobs = self.jobs(orders, &[]).await?;
        self.submit(jobs, since).await;
        Ok(())
    }

    async fn submit(&self, jobs: Vec<Job>, since: Instant) {
        let Some(pool) = &self.pool else { return };
        for job in jobs {
            pool.submit(job, since).await;
        }
    }

    async fn jobs(&self, orders: &[OrderId], keys: &[RefundKey]) -> Result<Vec<Job>, StoreError> {
        let mut conn = self.store.conn().await?;
        let mut jobs = Vec::new();
        if !orders.is_empty() {
            let payments = payments::untried(&mut conn, orders).await?;
            jobs.extend(payments.into_iter().map(Job::Charge));
        }
        if !keys.is_empty() {
            let refunds = refund_executions::untried(&mut conn, keys).await?;
            jobs.extend(refunds.into_iter().map(Job::Refund));
        }
        Ok(jobs)
    }
}

fn reserved(events: &[Inbound<Work>]) -> Vec<OrderId> {
    let orders: BTreeSet<OrderId> = events
        .iter()
        .filter_map(|inbound| match &inbound.event {
            Work::Reserved(order) => Some(*order),
            Work::Refund(_) => None,
        })
        .collect();
    orders.into_iter().collect()
}

fn requests(events: &[Inbound<Work>]) -> impl Iterator<Item = &RefundRequested> {
    events.iter().filter_map(|inbound| match &inbound.event {
        Work::Reserved(_) => None,
        Work::Refund(request) => Some(request),
    })
}

fn refund_keys(events: &[Inbound<Work>]) -> Vec<RefundKey> {
    let keys: BTreeSet<RefundKey> = requests(events)
        .map(|request| request.refund_key.clone())
        .collect();
    keys.into_iter().collect()
}

/// Writes a PENDING payment for each of these orders that still waits and has none; gives those that
/// do not exist.
async fn begin_payments(
    tx: &mut Tx,
    orders: &[OrderId],
    rules: &HoldRules,
) -> Result<BTreeSet<OrderId>, StoreError> {
    let waiting = payments::lock_waiting_orders(tx, orders, MIN_LEFT_MAX).await?;
    let unknown = unknown(tx, orders, &waiting).await?;
    let too_late = orders.len() - waiting.len();
    let renewed: Vec<(OrderId, Timestamp)> = waiting
        .iter()
        .filter_map(|order| {
            let why = Renewal::PaymentBegins;
            let until = rules.renewed(why, order.created_at, order.reserved_until, order.now)?;
            Some((order.order_id, until))
        })
        .collect();
    let renewed = orders::renew(tx, &renewed).await?;
    metrics::counter!("holds_renewed_total", "why" => "payment-begins").increment(renewed);
    let mut pending = Vec::with_capacity(waiting.len());
    for order in waiting {
        // A UUID is always a payment id.
        let Ok(id) = PaymentId::parse(&contracts::ids::generate().to_string()) else {
            continue;
        };
        pending.push(PendingPayment {
            id,
            order_id: order.order_id,
            gateway_key: gateway_key(order.order_id),
            amount: order.total,
            method: order.method,
            attempts: 0,
        });
    }
    let begun = payments::insert_pending(tx, &pending, LEASE).await?;
    metrics::counter!("payments_begun_total").increment(begun);
    let too_late = u64::try_from(too_late).unwrap_or(u64::MAX);
    metrics::counter!("payments_too_late_total").increment(too_late);
    Ok(unknown)
}

/// Of those that do not wait, the orders that are not there at all.
async fn unknown(
    tx: &mut Tx,
    orders: &[OrderId],
    waiting: &[WaitingOrder],
) -> Result<BTreeSet<OrderId>, StoreError> {
    let mut unknown: BTreeSet<OrderId> = orders.iter().copied().collect();
    for order in waiting {
        unknown.remove(&order.order_id);
    }
    if !unknown.is_empty() {
        let asked: Vec<OrderId> = unknown.iter().copied().collect();
        for order in store::orders::find_many(tx, &asked).await? {
            unknown.remove(&order.id);
        }
    }
    Ok(unknown)
}

/// Events about orders that do not exist are set aside: nobody is charged for them.
fn phantoms(events: &[Inbound<Work>], unknown: &BTreeSet<OrderId>) -> Vec<Aside> {
    let mut asides = Vec::new();
    for (index, inbound) in events.iter().enumerate() {
        if let Work::Reserved(order) = &inbound.event
            && unknown.contains(order)
        {
            inbound.alarm_if_phantom(*order);
            asides.push(Aside {
                index,
                reason: "the order does not exist".to_owned(),
                class: Class::UnknownSubject,
            });
        }
    }
    asides
}

impl Handler for ChargePayments {
    type Event = Work;
    type Prepared = ();

    fn consumer(&self) -> ConsumerName {
        ConsumerName::Payment
    }

    fn decode(&self, envelope: &Envelope, data: &[u8]) -> Result<Option<Work>, Rejection> {
        // The other types of this topic say that an order has ended: the sweep reads that itself.
        if !matches!(&*envelope.event_type, "ORDER_RESERVED" | "REFUND_REQUESTED") {
            return Ok(None);
        }
        Ok(match OrderEvent::decode(&envelope.event_type, data)? {
            Some(OrderEvent::Reserved(reserved)) => Some(Work::Reserved(reserved.order_id)),
            Some(OrderEvent::RefundRequested(request)) => Some(Work::Refund(request)),
            Some(
                OrderEvent::Confirmed(_)
                | OrderEvent::Canceled(_)
                | OrderEvent::Expired(_)
                | OrderEvent::Rejected(_),
            )
            | None => None,
        })
    }

    async fn prepare(&self, _: &[Inbound<Work>]) -> Result<(), HandleError> {
        Ok(())
    }

    async fn handle(
        &self,
        tx: &mut Tx,
        events: &[Inbound<Work>],
        (): (),
    ) -> Result<Vec<Aside>, HandleError> {
        let unknown = begin_payments(tx, &reserved(events), &self.rules).await?;
        let requests: Vec<&RefundRequested> = requests(events).collect();
        let told = execute_refunds::take_requests(tx, &requests).await?;
        if !told.is_empty() {
            outbox::insert(tx, &told).await?;
        }
        Ok(phantoms(events, &unknown))
    }

    async fn after_commit(&self, events: &[Inbound<Work>]) {
        if self.pool.is_none() {
            return;
        }
        let since = clock::monotonic();
        match self.jobs(&reserved(events), &refund_keys(events)).await {
            Ok(jobs) => self.submit(jobs, since).await,
            Err(error) => tracing::warn!(%error, "fresh payments are left to the sweep"),
        }
    }
}
