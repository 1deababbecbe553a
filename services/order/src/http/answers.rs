//! What answers look like: the shapes of the contract, made from rows.

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::Response,
};
use contracts::{Timestamp, events::PricedLine};
use serde::Serialize;
use store::{Order, adjustments::Adjustment, skus::SkuRow, timeline::Step};
use utoipa::ToSchema;

/// An amount of money.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Money")]
pub(crate) struct MoneyBody {
    /// In the currency's minor unit: cents, whole won
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64, example = 12_900)]
    pub(crate) amount_minor: i64,
    /// ISO 4217
    #[schema(pattern = "^[A-Z]{3}$", example = "KRW")]
    pub(crate) currency: String,
}

impl From<contracts::Money> for MoneyBody {
    fn from(money: contracts::Money) -> Self {
        Self {
            amount_minor: money.amount_minor,
            currency: money.currency.to_string(),
        }
    }
}

/// A line of an order.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LineBody<'a> {
    #[schema(example = "SKU-1")]
    sku: &'a str,
    #[schema(minimum = 1, maximum = 1000)]
    quantity: u16,
    unit_price: MoneyBody,
}

impl<'a> From<&'a PricedLine> for LineBody<'a> {
    fn from(line: &'a PricedLine) -> Self {
        Self {
            sku: line.sku.as_str(),
            quantity: line.quantity.get(),
            unit_price: line.unit_price.into(),
        }
    }
}

/// An order.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Order")]
pub(crate) struct OrderBody<'a> {
    #[schema(value_type = String, format = Uuid)]
    order_id: contracts::OrderId,
    /// RESERVED, CONFIRMED, CANCELED or EXPIRED
    #[schema(
        pattern = "^(RESERVED|CONFIRMED|CANCELED|EXPIRED)$",
        example = "RESERVED"
    )]
    status: &'static str,
    /// 1, and one more with each change
    #[schema(minimum = 1)]
    version: i64,
    #[schema(example = "c-42")]
    customer_id: &'a str,
    lines: Vec<LineBody<'a>>,
    total: MoneyBody,
    /// Until then the units are the buyer's
    #[schema(value_type = String, format = DateTime)]
    reserved_until: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    ended_at: Option<Timestamp>,
    /// Why it ended
    reason: Option<&'a str>,
}

impl<'a> From<&'a Order> for OrderBody<'a> {
    fn from(order: &'a Order) -> Self {
        Self {
            order_id: order.id,
            status: order.status.as_str(),
            version: order.version,
            customer_id: order.buyer.customer.as_str(),
            lines: order.lines.iter().map(LineBody::from).collect(),
            total: order.total.into(),
            reserved_until: order.reserved_until,
            created_at: order.created_at,
            ended_at: order.ended_at,
            reason: order.end_reason.as_deref(),
        }
    }
}

/// Some orders, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OrderList<'a> {
    pub(crate) data: Vec<OrderBody<'a>>,
    /// Whether older ones follow: ask again with `starting_after` = the last `order_id`
    pub(crate) has_more: bool,
}

/// A SKU: catalogue and stock.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Sku")]
pub(crate) struct SkuBody<'a> {
    #[schema(example = "SKU-1")]
    sku: &'a str,
    /// Units received and not written off
    on_hand: i64,
    /// Units of orders that wait for their payment
    held: i64,
    /// Units of confirmed orders
    sold: i64,
    /// `on_hand - held - sold`
    available: i64,
    /// Rises with every change but a new order
    version: i64,
    unit_price: MoneyBody,
    per_customer_limit: Option<i32>,
    #[schema(value_type = Option<String>, format = DateTime)]
    opens_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    closes_at: Option<Timestamp>,
    reservation_ttl_seconds: i32,
    /// off, on or auto
    waiting_room: &'static str,
}

impl<'a> From<&'a SkuRow> for SkuBody<'a> {
    fn from(row: &'a SkuRow) -> Self {
        Self {
            sku: row.sku.as_str(),
            on_hand: row.on_hand,
            held: row.held,
            sold: row.sold,
            available: row.available(),
            version: row.version,
            unit_price: row.unit_price.into(),
            per_customer_limit: row.per_customer_limit,
            opens_at: row.opens_at,
            closes_at: row.closes_at,
            reservation_ttl_seconds: row.reservation_ttl_seconds,
            waiting_room: row.waiting_room.as_str(),
        }
    }
}

/// Units received or written off, and the stock after it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Adjustment")]
pub(crate) struct AdjustmentBody<'a> {
    #[schema(value_type = String, format = Uuid)]
    adjustment_id: uuid::Uuid,
    sku: &'a str,
    delta: i64,
    reason: &'a str,
    on_hand: i64,
    held: i64,
    sold: i64,
    available: i64,
    version: i64,
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
}

impl<'a> From<&'a Adjustment> for AdjustmentBody<'a> {
    fn from(done: &'a Adjustment) -> Self {
        Self {
            adjustment_id: done.id,
            sku: done.sku.as_str(),
            delta: done.delta,
            reason: &done.reason,
            on_hand: done.on_hand,
            held: done.held,
            sold: done.sold,
            available: done.on_hand - done.held - done.sold,
            version: done.version,
            at: done.at,
        }
    }
}

/// The story of an order.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Timeline<'a> {
    pub(crate) data: Vec<StepBody<'a>>,
}

/// One step of it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Step")]
pub(crate) struct StepBody<'a> {
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    #[schema(example = "ORDER_RESERVED")]
    what: &'a str,
    /// The table, or the topic of an event
    #[serde(rename = "where")]
    place: &'a str,
    /// The cause, or the source of an event
    by: &'a str,
    version: Option<i64>,
    /// Of an event
    #[schema(value_type = Option<String>, format = Uuid)]
    event_id: Option<uuid::Uuid>,
}

impl<'a> From<&'a Step> for StepBody<'a> {
    fn from(step: &'a Step) -> Self {
        Self {
            at: step.at,
            what: &step.what,
            place: &step.place,
            by: &step.by,
            version: step.version,
            event_id: step.event.map(|(_, id)| id),
        }
    }
}

/// That the answer is of an earlier request with the same key.
pub(crate) const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// An answer in JSON.
pub(crate) fn json<T: Serialize>(status: StatusCode, body: &T) -> Response {
    let body = serde_json::to_vec(body).unwrap_or_default();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

/// Marks an answer as a replay.
pub(crate) fn replayed(mut response: Response) -> Response {
    response
        .headers_mut()
        .insert(REPLAYED, HeaderValue::from_static("true"));
    response
}
