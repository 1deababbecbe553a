//! JSON Schemas of the data of every event, generated from the types.

use serde_json::Value;

use crate::events;

/// (type, schema) of every event, in the order of the contract.
#[must_use]
pub fn all() -> Vec<(&'static str, Value)> {
    macro_rules! schemas {
        ($($event_type:literal => $data:ty,)*) => {
            vec![$(($event_type, schemars::schema_for!($data).to_value()),)*]
        };
    }
    schemas! {
        "ORDER_RESERVED" => events::OrderReserved,
        "ORDER_CONFIRMED" => events::OrderEnded,
        "ORDER_CANCELED" => events::OrderEnded,
        "ORDER_EXPIRED" => events::OrderEnded,
        "ORDER_REJECTED" => events::OrderRejected,
        "REFUND_REQUESTED" => events::RefundRequested,
        "PAYMENT_COMPLETED" => events::PaymentCompleted,
        "PAYMENT_FAILED" => events::PaymentFailed,
        "PAYMENT_REFUNDED" => events::PaymentRefunded,
        "STOCK_COMMITTED" => events::StockSettled,
        "STOCK_RELEASED" => events::StockSettled,
        "STOCK_ADJUSTED" => events::StockAdjusted,
        "ORDER_REQUESTED" => events::OrderRequested,
    }
}
