//! The accept's one statement: orders, lines, history and outbox appear together, and the keys of
//! the refused go (P1 step 6).

use std::time::Duration;

use contracts::{
    HoldId, Timestamp,
    envelope::source,
    events::{NewEvent, OrderEvent, OrderReserved},
};
use domain::{Accepted, OrderRequest, OrderStatus};
use uuid::Uuid;

use super::Order;
use crate::{
    Tx,
    error::{Bounded, Result, expect_rows},
    idempotency,
    text::{column, uuids},
};

/// An order that is to be written.
#[derive(Debug, Clone, Copy)]
pub struct NewOrder<'a> {
    /// Who asks and for what.
    pub request: &'a OrderRequest,
    /// What was decided.
    pub accepted: &'a Accepted,
    /// W3C trace context for its event, when sampled.
    pub traceparent: Option<&'a str>,
}

/// Writes accepted orders with lines, history and `ORDER_RESERVED`, and deletes the keys of the
/// refused. `now` is [`crate::stock::AcceptView::now`]: creation, deadline and event agree on it.
/// Returns the orders in the order given.
///
/// # Errors
/// [`crate::StoreError::Mismatch`] when a refused key was not this transaction's.
pub async fn insert_accepted(
    tx: &mut Tx,
    orders: &[NewOrder<'_>],
    refused: &[HoldId],
    now: Timestamp,
) -> Result<Vec<Order>> {
    let written: Vec<Order> = orders.iter().map(|new| reserved(new, now)).collect();
    if orders.is_empty() {
        if !refused.is_empty() {
            idempotency::unclaim(tx, refused).await?;
        }
        return Ok(written);
    }
    let events: Vec<NewEvent> = orders
        .iter()
        .zip(&written)
        .map(|(new, order)| event(new, order))
        .collect();
    write(tx, &written, &events, refused, now).await?;
    Ok(written)
}

fn reserved(new: &NewOrder<'_>, now: Timestamp) -> Order {
    let NewOrder {
        request, accepted, ..
    } = new;
    Order {
        id: request.order_id,
        hold_id: request.hold_id,
        buyer: request.buyer.clone(),
        status: OrderStatus::Reserved,
        version: 1,
        total: accepted.total,
        payment_method: request.payment_method.clone(),
        reserved_until: now + Duration::from_secs(u64::from(accepted.ttl_seconds.unsigned_abs())),
        first_until: None,
        created_at: now,
        ended_at: None,
        end_reason: None,
        lines: accepted.lines.clone(),
    }
}

fn event(new: &NewOrder<'_>, order: &Order) -> NewEvent {
    let event = OrderEvent::Reserved(OrderReserved {
        order_id: order.id,
        customer_id: order.buyer.customer.clone(),
        lines: order.lines.clone(),
        total: order.total,
        payment_method: order.payment_method.clone(),
        reserved_until: order.reserved_until,
        version: order.version,
    });
    NewEvent {
        traceparent: new.traceparent.map(str::to_owned),
        ..NewEvent::order(source::ORDER, order.id, order.version, &event)
    }
}

/// The columns of the lines of all orders.
#[derive(Default)]
struct Lines<'a> {
    orders: Vec<Uuid>,
    skus: Vec<&'a str>,
    quantities: Vec<i32>,
    prices: Vec<i64>,
}

impl<'a> Lines<'a> {
    fn of(orders: &'a [Order]) -> Self {
        let mut columns = Self::default();
        for order in orders {
            for line in &order.lines {
                columns.orders.push(order.id.0);
                columns.skus.push(line.sku.as_str());
                columns.quantities.push(i32::from(line.quantity.get()));
                columns.prices.push(line.unit_price.amount_minor);
            }
        }
        columns
    }
}

async fn write(
    tx: &mut Tx,
    orders: &[Order],
    events: &[NewEvent],
    refused: &[HoldId],
    now: Timestamp,
) -> Result<()> {
    let lines = Lines::of(orders);
    let done = sqlx::query!(
        r#"with accepted as (
               insert into orders (id, hold_id, shop, customer_id, status, total_minor, currency,
                                   payment_method, reserved_until, created_at)
               select id, hold, shop, customer, 'RESERVED', total, currency, method, until, $9
               from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::bigint[],
                           $6::text[], $7::text[], $8::timestamptz[])
                        as o (id, hold, shop, customer, total, currency, method, until)),
           lines as (insert into order_lines (order_id, sku, quantity, unit_price_minor)
               select * from unnest($10::uuid[], $11::text[], $12::integer[], $13::bigint[])),
           history as (insert into order_history (order_id, version, to_status, cause, at)
               select id, 1, 'RESERVED', 'accept', $9 from unnest($1::uuid[]) as o (id)),
           events as (
               insert into outbox (event_id, topic, key, type, source, aggregate_version, data,
                                   headers)
               select id, topic, key, type, source, 1, data,
                      case when trace is not null then jsonb_build_object('traceparent', trace) end
               from unnest($14::uuid[], $15::text[], $16::text[], $17::text[], $18::text[], $19::text[],
                           $20::text[]) as e (id, topic, key, type, source, data, trace)),
           refused as (delete from idempotency where hold_id = any($21) returning 1)
           select count(*) as "refused!" from refused"#,
        &column(orders, |order| order.id.0),
        &column(orders, |order| order.hold_id.0),
        &column(orders, |order| order.buyer.shop.as_str()) as &[&str],
        &column(orders, |order| order.buyer.customer.as_str()) as &[&str],
        &column(orders, |order| order.total.amount_minor),
        &column(orders, |order| order.total.currency.as_str()) as &[&str],
        &column(orders, |order| order.payment_method.as_str()) as &[&str],
        &column(orders, |order| order.reserved_until),
        now,
        &lines.orders,
        &lines.skus as &[&str],
        &lines.quantities,
        &lines.prices,
        &column(events, |event| event.event_id),
        &column(events, |event| event.topic.as_str()) as &[&str],
        &column(events, |event| event.key.as_str()) as &[&str],
        &column(events, |event| event.event_type.as_str()) as &[&str],
        &column(events, |event| event.source) as &[&str],
        &column(events, |event| event.data.as_str()) as &[&str],
        &column(events, |event| event.traceparent.as_deref()) as &[Option<&str>],
        &uuids(refused),
    )
    .fetch_one(&mut **tx)
    .answer("insert orders")
    .await?;
    expect_rows(
        "give refused keys back",
        refused.len(),
        done.refused.unsigned_abs(),
    )
}
