//! The events of the contract, one enum per topic. The value of a record is the data alone; the
//! type travels in `ce_type`.

use chrono::Utc;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use uuid::Uuid;

use crate::{
    Code, CustomerId, HoldId, Line, Money, OrderId, PaymentId, PaymentMethod, RefundKey, Sku,
    Timestamp, Topic,
};

/// Why the data of an event can't be read. Always permanent.
#[derive(Debug, thiserror::Error)]
#[error("{event_type} data: {source}")]
pub struct DecodeError {
    /// The type that was read.
    pub event_type: String,
    /// What the parser says.
    #[source]
    pub source: serde_json::Error,
}

/// A line of an order, with the price that the catalogue had when the order was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PricedLine {
    /// What.
    pub sku: Sku,
    /// How many.
    pub quantity: crate::Quantity,
    /// The price of one unit.
    pub unit_price: Money,
}

/// `ORDER_RESERVED`: the units are the buyer's until `reserved_until`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OrderReserved {
    /// The order.
    pub order_id: OrderId,
    /// The buyer.
    pub customer_id: CustomerId,
    /// Its lines.
    pub lines: Vec<PricedLine>,
    /// What it costs.
    pub total: Money,
    /// How the buyer pays.
    pub payment_method: PaymentMethod,
    /// The deadline.
    pub reserved_until: Timestamp,
    /// Of the order: 1.
    pub version: i64,
}

/// `ORDER_CONFIRMED`, `ORDER_CANCELED`, `ORDER_EXPIRED`: the order has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OrderEnded {
    /// The order.
    pub order_id: OrderId,
    /// The buyer.
    pub customer_id: CustomerId,
    /// Of the order: 2.
    pub version: i64,
    /// Its lines.
    pub lines: Vec<PricedLine>,
    /// Why.
    pub reason: String,
}

/// `ORDER_REJECTED`: the answer to an `ORDER_REQUESTED` that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OrderRejected {
    /// `ce_source` of the request.
    pub request_source: String,
    /// `ce_id` of the request.
    pub request_id: String,
    /// As in HTTP.
    pub code: Code,
    /// For people.
    pub detail: String,
}

/// `REFUND_REQUESTED`: money that belongs to no confirmed order is to go back. Asked again, under
/// a new event id and the same `refund_key`, until `PAYMENT_REFUNDED` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RefundRequested {
    /// At most one refund is executed per key.
    pub refund_key: RefundKey,
    /// The payment.
    pub payment_id: PaymentId,
    /// The order that it names.
    pub order_id: OrderId,
    /// What was captured.
    pub amount: Money,
    /// Why.
    pub reason: String,
}

/// `PAYMENT_COMPLETED`: the money was captured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PaymentCompleted {
    /// The payment.
    pub payment_id: PaymentId,
    /// The order that it pays.
    pub order_id: OrderId,
    /// What was captured.
    pub amount: Money,
    /// How.
    pub method: PaymentMethod,
    /// When.
    pub completed_at: Timestamp,
}

/// `PAYMENT_FAILED`: only a final failure ends the order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PaymentFailed {
    /// The payment.
    pub payment_id: PaymentId,
    /// The order that it was to pay.
    pub order_id: OrderId,
    /// Why, as a slug.
    pub reason_code: String,
    /// Whether no other attempt will follow.
    #[serde(rename = "final")]
    pub is_final: bool,
}

/// `PAYMENT_REFUNDED`: the money went back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PaymentRefunded {
    /// As requested.
    pub refund_key: RefundKey,
    /// The payment.
    pub payment_id: PaymentId,
    /// The order that it names.
    pub order_id: OrderId,
    /// What went back.
    pub amount: Money,
}

/// `STOCK_COMMITTED`, `STOCK_RELEASED`: one per SKU and settled batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StockSettled {
    /// What.
    pub sku: Sku,
    /// Units in this batch.
    pub quantity: i64,
    /// The orders of this batch.
    pub order_ids: Vec<OrderId>,
    /// After the change.
    pub on_hand: i64,
    /// After the change.
    pub held: i64,
    /// After the change.
    pub sold: i64,
    /// After the change; may rise by more than one from event to event.
    pub version: i64,
}

/// `STOCK_ADJUSTED`: units were received or written off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StockAdjusted {
    /// What.
    pub sku: Sku,
    /// Signed: received units are positive.
    pub quantity: i64,
    /// The adjustment.
    pub adjustment_id: Uuid,
    /// After the change.
    pub on_hand: i64,
    /// After the change.
    pub held: i64,
    /// After the change.
    pub sold: i64,
    /// After the change.
    pub version: i64,
}

/// `ORDER_REQUESTED`: an upstream service asks for an order. (`ce_source`, `ce_id`) is the
/// idempotency key. Unknown fields are refused: a price or a total that the sender believes in
/// must not be dropped in silence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OrderRequested {
    /// The buyer.
    pub customer_id: CustomerId,
    /// What the buyer wants; lines of one SKU are summed.
    pub lines: Vec<Line>,
    /// How the buyer pays.
    pub payment_method: PaymentMethod,
}

/// Defines an enum whose variants are event types, with encode, decode and the type names.
macro_rules! event_enum {
    ($(#[$doc:meta])* $name:ident on $topic:ident { $($variant:ident($data:ty) = $type_name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(tag = "type", content = "data")]
        pub enum $name {
            $(
                #[doc = concat!("`", $type_name, "`.")]
                #[serde(rename = $type_name)]
                $variant($data),
            )*
        }

        impl $name {
            /// The types of this topic that are events of this enum.
            pub const TYPES: &[&str] = &[$($type_name),*];

            /// The topic that carries them.
            pub const TOPIC: Topic = Topic::$topic;

            /// The value of `ce_type`.
            #[must_use]
            pub fn event_type(&self) -> &'static str {
                match self { $(Self::$variant(_) => $type_name,)* }
            }

            /// Reads the data of an event; `None` when the type is not one of this enum: such
            /// an event is skipped and counted.
            ///
            /// # Errors
            /// [`DecodeError`] when the data breaks the contract.
            pub fn decode(event_type: &str, data: &[u8]) -> Result<Option<Self>, DecodeError> {
                match event_type {
                    $($type_name => parse::<$data>(event_type, data).map(|data| Some(Self::$variant(data))),)*
                    _ => Ok(None),
                }
            }

            /// The value of the record: the data alone, as JSON.
            #[must_use]
            pub fn data(&self) -> String {
                match self { $(Self::$variant(data) => to_json(data),)* }
            }
        }
    };
}

event_enum! {
    /// What the `orders.v1` topic carries.
    OrderEvent on Orders {
        Reserved(OrderReserved) = "ORDER_RESERVED",
        Confirmed(OrderEnded) = "ORDER_CONFIRMED",
        Canceled(OrderEnded) = "ORDER_CANCELED",
        Expired(OrderEnded) = "ORDER_EXPIRED",
        Rejected(OrderRejected) = "ORDER_REJECTED",
        RefundRequested(RefundRequested) = "REFUND_REQUESTED",
    }
}
event_enum! {
    /// What the `payments.v1` topic carries.
    PaymentEvent on Payments {
        Completed(PaymentCompleted) = "PAYMENT_COMPLETED",
        Failed(PaymentFailed) = "PAYMENT_FAILED",
        Refunded(PaymentRefunded) = "PAYMENT_REFUNDED",
    }
}
event_enum! {
    /// What the `stock.v1` topic carries.
    StockEvent on Stock {
        Committed(StockSettled) = "STOCK_COMMITTED",
        Released(StockSettled) = "STOCK_RELEASED",
        Adjusted(StockAdjusted) = "STOCK_ADJUSTED",
    }
}
event_enum! {
    /// What the `orders.requests.v1` topic carries.
    OrderRequestEvent on OrderRequests {
        Requested(OrderRequested) = "ORDER_REQUESTED",
    }
}

fn parse<T: DeserializeOwned>(event_type: &str, data: &[u8]) -> Result<T, DecodeError> {
    serde_json::from_slice(data).map_err(|source| DecodeError {
        event_type: event_type.to_owned(),
        source,
    })
}

fn to_json<T: Serialize>(data: &T) -> String {
    serde_json::to_string(data).unwrap_or_default()
}

/// An event to be published: what a use case hands to the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// `ce_id`; all copies carry it. Time-ordered.
    pub event_id: Uuid,
    /// The topic's name without suffix.
    pub topic: String,
    /// The record key: events of one key stay in order.
    pub key: String,
    /// `ce_type`.
    pub event_type: String,
    /// `ce_source`.
    pub source: &'static str,
    /// `ce_aggregateversion`.
    pub aggregate_version: i64,
    /// The record value.
    pub data: String,
    /// `traceparent`, when a trace is sampled.
    pub traceparent: Option<String>,
}

impl NewEvent {
    fn new(
        topic: Topic,
        key: String,
        event_type: &'static str,
        source: &'static str,
        aggregate_version: i64,
        data: String,
    ) -> Self {
        Self {
            event_id: crate::ids::generate(),
            topic: topic.as_str().to_owned(),
            key,
            event_type: event_type.to_owned(),
            source,
            aggregate_version,
            data,
            traceparent: None,
        }
    }

    /// An event about an order; the key is the order's id.
    #[must_use]
    pub fn order(source: &'static str, order: OrderId, version: i64, event: &OrderEvent) -> Self {
        Self::new(
            Topic::Orders,
            order.to_string(),
            event.event_type(),
            source,
            version,
            event.data(),
        )
    }

    /// An `ORDER_REJECTED`; there is no order, so the key is the hold's id.
    #[must_use]
    pub fn rejection(hold: HoldId, rejected: OrderRejected) -> Self {
        let event = OrderEvent::Rejected(rejected);
        Self::new(
            Topic::Orders,
            hold.to_string(),
            event.event_type(),
            crate::envelope::source::ORDER,
            1,
            event.data(),
        )
    }

    /// An event about a payment; the key is the order's id.
    #[must_use]
    pub fn payment(order: OrderId, version: i64, event: &PaymentEvent) -> Self {
        Self::new(
            Topic::Payments,
            order.to_string(),
            event.event_type(),
            crate::envelope::source::PAYMENT,
            version,
            event.data(),
        )
    }

    /// An event about stock; the key is the SKU.
    #[must_use]
    pub fn stock(source: &'static str, sku: &Sku, version: i64, event: &StockEvent) -> Self {
        Self::new(
            Topic::Stock,
            sku.to_string(),
            event.event_type(),
            source,
            version,
            event.data(),
        )
    }

    /// The envelope, as written at `time`.
    #[must_use]
    pub fn envelope(&self, time: chrono::DateTime<Utc>) -> crate::Envelope {
        crate::Envelope {
            id: self.event_id.to_string(),
            source: self.source.to_owned(),
            event_type: self.event_type.clone(),
            time: Some(time),
            subject: Some(self.key.clone()),
            dataschema: Some(crate::envelope::dataschema(&self.event_type)),
            aggregate_version: Some(self.aggregate_version),
            traceparent: self.traceparent.clone(),
        }
    }
}
