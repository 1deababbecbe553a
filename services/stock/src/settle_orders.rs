//! Payment news ends orders (P6): confirm and commit, or cancel and release; money that confirms no
//! order goes back.
//!
//! In the transaction that holds the inbox rows of the batch:
//! 1. Lock the orders, then the payments, then the refunds that the batch names, each sorted.
//! 2. Fold the events in offset order through the table, each on the state that those before it
//!    have left ([`crate::ledger`]).
//! 3. Write payments and refunds, then end orders: one history row and event each, one stock write
//!    and one stock event per SKU. Stock comes last: its rows are the hot ones.
//! 4. Write `REFUND_REQUESTED`; events that can never be handled are set aside as dead letters.
//!
//! *Dies anywhere up to here:* nothing of it is there, and the events are delivered again.
//!
//! 5. After the commit, `sync` makes the gate match. *Dies before:* the events are delivered again,
//!    the inbox knows them, and `sync` runs for duplicates too; if not even that, the sweep.

use std::collections::{BTreeMap, BTreeSet};

use contracts::{
    ConsumerName, Envelope, OrderId, PaymentId, RefundKey, Timestamp,
    envelope::source,
    events::{NewEvent, OrderEvent, PaymentEvent, RefundRequested},
};
use domain::{
    EndReason, OrderStatus,
    deadline::{HoldRules, Renewal},
    settlement::Action,
};
use messaging::{Aside, Class, HandleError, Handler, Inbound, Rejection};
use store::{
    Order, Tx,
    orders::{Ending, Transitioned, transition},
    refunds::{RefundRow, RefundState},
};

use crate::{
    Stock,
    health::Health,
    ledger::{self, Ledger, OrderFacts, Verdict},
    request_refunds::FIRST_WAIT,
    sync_gate::sync_orders,
};

/// The consumer of `payments.v1`.
#[derive(Debug)]
pub struct SettleOrders {
    stock: Stock,
    rules: HoldRules,
    sync: Health,
}

impl SettleOrders {
    /// A handler over the stores.
    #[must_use]
    pub fn new(stock: Stock) -> Self {
        Self {
            stock,
            rules: HoldRules::default(),
            sync: Health::new("syncing settled orders with the gate"),
        }
    }
}

impl SettleOrders {
    /// Other rules of how holds are renewed.
    #[must_use]
    pub fn with_rules(mut self, rules: HoldRules) -> Self {
        self.rules = rules;
        self
    }
}

impl Handler for SettleOrders {
    type Event = PaymentEvent;
    type Prepared = ();

    fn consumer(&self) -> ConsumerName {
        ConsumerName::Stock
    }

    fn decode(&self, envelope: &Envelope, data: &[u8]) -> Result<Option<PaymentEvent>, Rejection> {
        Ok(PaymentEvent::decode(&envelope.event_type, data)?)
    }

    async fn prepare(&self, _: &[Inbound<PaymentEvent>]) -> Result<(), HandleError> {
        Ok(())
    }

    async fn handle(
        &self,
        tx: &mut Tx,
        events: &[Inbound<PaymentEvent>],
        (): (),
    ) -> Result<Vec<Aside>, HandleError> {
        settle(tx, events, &self.rules).await
    }

    async fn after_commit(&self, events: &[Inbound<PaymentEvent>]) {
        platform::crash_point!("cp18", err => return);
        let orders: BTreeSet<OrderId> = events
            .iter()
            .map(|inbound| order_of(&inbound.event))
            .collect();
        let orders: Vec<OrderId> = orders.into_iter().collect();
        self.sync.note(&sync_orders(&self.stock, &orders).await);
        platform::crash_point!("cp19");
    }
}

/// Steps 1 to 4.
async fn settle(
    tx: &mut Tx,
    events: &[Inbound<PaymentEvent>],
    rules: &HoldRules,
) -> Result<Vec<Aside>, HandleError> {
    let ids: BTreeSet<OrderId> = events
        .iter()
        .map(|inbound| order_of(&inbound.event))
        .collect();
    let ids: Vec<OrderId> = ids.into_iter().collect();
    let orders = store::orders::lock(tx, &ids).await?;
    let mut ledger = load(tx, events, &orders, &ids).await?;

    let mut asides = Vec::new();
    for (index, inbound) in events.iter().enumerate() {
        let verdict = ledger.fold(&inbound.event);
        metrics::counter!("settled_total", "action" => verdict.as_str()).increment(1);
        if let Verdict::Aside(action, why) = verdict {
            if why == ledger::Aside::UnknownOrder {
                inbound.alarm_if_phantom(order_of(&inbound.event));
            }
            asides.push(Aside {
                index,
                reason: reason_of(action, why),
                class: class_of(why),
            });
        }
    }
    record_money(tx, &ledger).await?;
    renew_holds(tx, events, &orders, &ledger, rules).await?;
    end_orders(tx, &orders, &ledger).await?;
    ask_for_refunds(tx, &ledger).await?;
    raise_flags(&ledger);
    Ok(asides)
}

async fn load(
    tx: &mut Tx,
    events: &[Inbound<PaymentEvent>],
    orders: &[Order],
    ids: &[OrderId],
) -> Result<Ledger, HandleError> {
    let payments: BTreeSet<PaymentId> = events
        .iter()
        .map(|inbound| payment_of(&inbound.event).clone())
        .collect();
    let payments: Vec<PaymentId> = payments.into_iter().collect();
    let keys: Vec<RefundKey> = events
        .iter()
        .filter_map(|inbound| match &inbound.event {
            PaymentEvent::Refunded(data) => Some(data.refund_key.clone()),
            PaymentEvent::Completed(_) | PaymentEvent::Failed(_) => None,
        })
        .chain(payments.iter().map(RefundKey::of))
        .collect();
    let rows = store::settlement::lock_payments(tx, &payments).await?;
    let mut applied = store::settlement::applied_payments(tx, ids).await?;
    let refunds = store::refunds::lock(tx, &payments, &keys).await?;
    let facts: BTreeMap<OrderId, OrderFacts> = orders
        .iter()
        .map(|order| {
            let facts = OrderFacts {
                status: order.status,
                version: order.version,
                total: order.total,
                method: order.payment_method.clone(),
                applied: applied.remove(&order.id),
            };
            (order.id, facts)
        })
        .collect();
    Ok(Ledger::new(facts, rows, refunds))
}

/// An attempt that failed and was not final leaves the buyer time for another, where the rules say so.
async fn renew_holds(
    tx: &mut Tx,
    events: &[Inbound<PaymentEvent>],
    orders: &[Order],
    ledger: &Ledger,
    rules: &HoldRules,
) -> Result<(), HandleError> {
    let why = Renewal::AttemptFailed;
    let failed: BTreeSet<OrderId> = events
        .iter()
        .filter_map(|inbound| match &inbound.event {
            PaymentEvent::Failed(data) if !data.is_final => Some(data.order_id),
            _ => None,
        })
        .collect();
    if failed.is_empty() || !rules.renews(why) {
        return Ok(());
    }
    let now = store::settlement::now(tx).await?;
    let ended: BTreeSet<OrderId> = ledger.endings().iter().map(|e| e.order_id).collect();
    let renewed: Vec<(OrderId, Timestamp)> = orders
        .iter()
        .filter(|order| failed.contains(&order.id) && !ended.contains(&order.id))
        .filter(|order| order.status == OrderStatus::Reserved)
        .filter_map(|order| {
            let until = rules.renewed(why, order.created_at, order.reserved_until, now)?;
            Some((order.id, until))
        })
        .collect();
    let renewed = store::orders::renew(tx, &renewed).await?;
    metrics::counter!("holds_renewed_total", "why" => "attempt-failed").increment(renewed);
    Ok(())
}

async fn end_orders(tx: &mut Tx, orders: &[Order], ledger: &Ledger) -> Result<(), HandleError> {
    let by_id: BTreeMap<OrderId, &Order> = orders.iter().map(|order| (order.id, order)).collect();
    let mut endings = Vec::with_capacity(ledger.endings().len());
    for ending in ledger.endings() {
        let Some(order) = by_id.get(&ending.order_id) else {
            continue;
        };
        let (cause, reason) = if ending.to == OrderStatus::Confirmed {
            (format!("payment:{}", ending.by), EndReason::Paid)
        } else {
            (
                format!("payment-failed:{}", ending.by),
                EndReason::PaymentFailed,
            )
        };
        endings.push(Ending {
            order,
            to: ending.to,
            cause,
            reason: reason.as_str().to_owned(),
        });
    }
    if endings.is_empty() {
        return Ok(());
    }
    let now = store::settlement::now(tx).await?;
    for outcome in transition(tx, &endings, now, source::STOCK).await? {
        if let Transitioned::Stale(order) = outcome {
            // Impossible under its lock; never go on with half a batch.
            return Err(HandleError::transient(format!(
                "order {order} moved under its lock"
            )));
        }
    }
    Ok(())
}

async fn record_money(tx: &mut Tx, ledger: &Ledger) -> Result<(), HandleError> {
    let fresh = ledger.fresh_payments();
    expect_all(
        store::settlement::insert_payments(tx, &fresh).await?,
        fresh.len(),
        "payment",
    )?;
    store::settlement::update_payments(tx, &ledger.changed_payments()).await?;
    let fresh = ledger.fresh_refunds();
    let inserted = store::refunds::insert(tx, &fresh, FIRST_WAIT.as_secs_f64()).await?;
    expect_all(inserted, fresh.len(), "refund")?;
    let reopened = ledger.reopened_refunds();
    store::refunds::ask_for_the_rest(tx, &reopened, FIRST_WAIT.as_secs_f64()).await?;
    // After it: the rest may be asked for and go back within one batch.
    let closed: Vec<PaymentId> = ledger
        .closed_refunds()
        .into_iter()
        .map(|refund| refund.payment_id)
        .collect();
    store::refunds::close(tx, &closed).await?;
    Ok(())
}

async fn ask_for_refunds(tx: &mut Tx, ledger: &Ledger) -> Result<(), HandleError> {
    let fresh = ledger.fresh_refunds();
    let reopened = ledger.reopened_refunds();
    let asked: Vec<NewEvent> = fresh
        .iter()
        .chain(&reopened)
        .filter(|refund| refund.state == RefundState::Requested)
        .map(|refund| refund_requested(refund, ledger.version_of(refund.order_id)))
        .collect();
    if !asked.is_empty() {
        metrics::counter!("refunds_requested_total")
            .increment(u64::try_from(asked.len()).unwrap_or(u64::MAX));
        store::outbox::insert(tx, &asked).await?;
        platform::crash_point!("cp23", err => return Err(store::StoreError::no_connection().into()));
    }
    Ok(())
}

/// Another transaction has recorded a row that was unknown when this one looked: run it again.
fn expect_all(inserted: u64, given: usize, what: &str) -> Result<(), HandleError> {
    if usize::try_from(inserted).is_ok_and(|inserted| inserted == given) {
        return Ok(());
    }
    Err(HandleError::transient(format!(
        "a {what} was recorded by another transaction"
    )))
}

/// The event that asks for a refund; each ask is an event of its own.
pub(crate) fn refund_requested(refund: &RefundRow, order_version: i64) -> NewEvent {
    let event = OrderEvent::RefundRequested(RefundRequested {
        refund_key: refund.refund_key.clone(),
        payment_id: refund.payment_id.clone(),
        order_id: refund.order_id,
        amount: refund.amount,
        reason: refund.reason.clone(),
    });
    NewEvent::order(source::STOCK, refund.order_id, order_version, &event)
}

fn raise_flags(ledger: &Ledger) {
    for (payment, flag) in ledger.flags() {
        metrics::counter!("alarms_total", "kind" => flag.as_str()).increment(1);
        tracing::error!(payment.id = %payment, flag = flag.as_str(), "a payment needs people to look at it");
    }
}

fn reason_of(action: Action, why: ledger::Aside) -> String {
    match action {
        Action::DeadLetterAndRefund => format!("{}; its money goes back", why.reason()),
        _ => why.reason().to_owned(),
    }
}

fn class_of(why: ledger::Aside) -> Class {
    match why {
        ledger::Aside::UnknownOrder | ledger::Aside::UnknownPayment => Class::UnknownSubject,
        ledger::Aside::OtherOrder | ledger::Aside::OtherRefund => Class::Conflict,
    }
}

fn order_of(event: &PaymentEvent) -> OrderId {
    match event {
        PaymentEvent::Completed(data) => data.order_id,
        PaymentEvent::Failed(data) => data.order_id,
        PaymentEvent::Refunded(data) => data.order_id,
    }
}

fn payment_of(event: &PaymentEvent) -> &PaymentId {
    match event {
        PaymentEvent::Completed(data) => &data.payment_id,
        PaymentEvent::Failed(data) => &data.payment_id,
        PaymentEvent::Refunded(data) => &data.payment_id,
    }
}
