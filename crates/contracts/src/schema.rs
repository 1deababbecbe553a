//! JSON Schemas of the data of every event, generated from the types. `docs/schemas` holds them as
//! files, which a test compares byte for byte.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::events;

/// (type, schema) of every event, in the order of the contract. A schema's `$id` is the value of
/// `ce_dataschema`.
#[must_use]
pub fn all() -> Vec<(&'static str, Value)> {
    macro_rules! schemas {
        ($($event_type:literal => $data:ty,)*) => {
            vec![$(($event_type, named($event_type, schemars::schema_for!($data).to_value())),)*]
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

/// The file of a type's schema under `docs/schemas`.
#[must_use]
pub fn file_name(event_type: &str) -> String {
    format!("{event_type}.v{}.json", crate::envelope::MAJOR)
}

/// A schema as its file holds it: indented, keys sorted whatever the JSON library was built with,
/// a newline at the end.
#[must_use]
pub fn to_text(schema: &Value) -> String {
    format!("{:#}\n", sorted(schema))
}

/// Two types may share one Rust type; each schema says which type it is of.
fn named(event_type: &str, mut schema: Value) -> Value {
    if let Some(object) = schema.as_object_mut() {
        object.insert(
            "$id".to_owned(),
            json!(crate::envelope::dataschema(event_type)),
        );
        object.insert("title".to_owned(), json!(event_type));
    }
    schema
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(object) => {
            let by_key: BTreeMap<&String, &Value> = object.iter().collect();
            let entries = by_key
                .into_iter()
                .map(|(key, value)| (key.clone(), sorted(value)));
            Value::Object(entries.collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}
