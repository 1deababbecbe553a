//! `docs/asyncapi.yaml` says what the code does: topics, groups, types, headers.

use std::collections::{BTreeMap, BTreeSet};

use contracts::{
    ConsumerName, Envelope, Topic,
    envelope::header,
    events::{OrderEvent, OrderRequestEvent, PaymentEvent, StockEvent},
    schema,
};
use serde_json::Value;

use crate::{
    lexer,
    tree::{self, read},
};

fn document() -> Value {
    serde_saphyr::from_str(&read("docs/asyncapi.yaml")).unwrap()
}

fn keys(object: &Value) -> BTreeSet<&str> {
    object
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

fn topics() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let types = |topic| match topic {
        Topic::Orders => OrderEvent::TYPES,
        Topic::Payments => PaymentEvent::TYPES,
        Topic::Stock => StockEvent::TYPES,
        Topic::OrderRequests => OrderRequestEvent::TYPES,
        Topic::Coupons => &[],
    };
    Topic::ALL
        .into_iter()
        .map(|topic| (topic.as_str(), types(topic).iter().copied().collect()))
        .collect()
}

/// What is missing in the document, or is in it and not in the code.
fn complaints(document: &Value) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut written: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for channel in document["channels"].as_object().unwrap().values() {
        let address = channel["address"].as_str().unwrap();
        if channel["bindings"]["kafka"]["topic"] != address {
            complaints.push(format!("{address}: its binding names another topic"));
        }
        written.insert(address, keys(&channel["messages"]));
    }
    let mut real = topics();
    let dead_letters: Vec<String> = ConsumerName::ALL.iter().map(|one| one.dlq()).collect();
    real.extend(
        dead_letters
            .iter()
            .map(|name| (name.as_str(), BTreeSet::from(["deadLetter"]))),
    );
    for (topic, types) in &real {
        if written.get(topic) != Some(types) {
            complaints.push(format!(
                "{topic}: should carry {types:?}: {:?}",
                written.get(topic)
            ));
        }
    }
    complaints.extend(
        written
            .keys()
            .filter(|topic| !real.contains_key(*topic))
            .map(|one| format!("{one}: gone")),
    );
    for (event_type, _) in schema::all() {
        let message = &document["components"]["messages"][event_type];
        let payload = format!("./schemas/{}", schema::file_name(event_type));
        if message["name"] != event_type || message["payload"]["$ref"] != payload {
            complaints.push(format!("{event_type}: its message is not named {payload}"));
        }
    }
    complaints
}

#[test]
fn every_topic_and_type_is_in_the_document_and_nothing_else() {
    let mut document = document();
    tree::none(&complaints(&document));
    document["components"]["messages"]["ORDER_RESERVED"]["name"] = "ORDER_TAKEN".into();
    document["channels"]["coupons"]["address"] = "coupons.v2".into();
    document["channels"]["stock"]["messages"]["STOCK_LOST"] = serde_json::json!({});
    assert_eq!(complaints(&document).len(), 5);
}

#[test]
fn every_consumer_of_ours_is_an_operation_with_its_group() {
    let document = document();
    let operations = document["operations"].as_object().unwrap().values();
    let written: BTreeSet<(&str, &str)> = operations
        .filter(|operation| operation["action"] == "receive")
        .map(|operation| {
            let channel = operation["channel"]["$ref"]
                .as_str()
                .unwrap()
                .trim_start_matches('#');
            let topic = document.pointer(channel).unwrap()["address"]
                .as_str()
                .unwrap();
            (
                operation["bindings"]["kafka"]["groupId"]["const"]
                    .as_str()
                    .unwrap(),
                topic,
            )
        })
        .collect();
    let real = ConsumerName::ALL.map(|consumer| (consumer.group(), consumer.topic().as_str()));
    assert_eq!(written, BTreeSet::from(real));
}

#[test]
fn headers_are_those_that_are_written_and_needed() {
    let document = document();
    let schema = &document["components"]["schemas"]["cloudEvent"];
    let all = Envelope {
        id: "e".to_owned(),
        source: "s".to_owned(),
        event_type: "t".to_owned(),
        time: "2026-03-01T12:00:00Z".parse().ok(),
        subject: Some("k".to_owned()),
        dataschema: Some("urn:x:v1".to_owned()),
        aggregate_version: Some(1),
        traceparent: Some("00-x".to_owned()),
    };
    let written = all.to_headers();
    let names: BTreeSet<&str> = written.iter().map(|(name, _)| *name).collect();
    assert_eq!(keys(&schema["properties"]), names);

    let needed: BTreeSet<&str> = names
        .iter()
        .copied()
        .filter(|name| {
            let others = written.iter().filter(|(other, _)| other != name);
            let pairs = others.map(|(name, value)| (*name, value.as_bytes()));
            Envelope::from_headers(pairs).is_err()
        })
        .collect();
    let required = schema["required"].as_array().unwrap();
    assert_eq!(
        required
            .iter()
            .filter_map(Value::as_str)
            .collect::<BTreeSet<_>>(),
        needed
    );
    assert_eq!(schema["properties"][header::SPECVERSION]["const"], "1.0");
}

#[test]
fn headers_of_dead_letters_are_those_that_messaging_writes() {
    let document = document();
    let schema = &document["components"]["schemas"]["deadLetter"];
    let mut files = tree::ending(".rs");
    files.retain(|file| file.path.starts_with("crates/messaging/src/"));
    let written: BTreeSet<String> = files
        .iter()
        .flat_map(|file| lexer::without_tests(&file.text).strings)
        .map(|(_, string)| string)
        .filter(|string| string.starts_with("dlq_"))
        .collect();
    let documented = keys(&schema["properties"]);
    assert_eq!(documented, written.iter().map(String::as_str).collect());
    let required = schema["required"].as_array().unwrap();
    assert_eq!(
        required
            .iter()
            .filter_map(Value::as_str)
            .collect::<BTreeSet<_>>(),
        documented
    );
}

#[test]
fn every_reference_leads_somewhere() {
    let document = document();
    let mut references = Vec::new();
    collect(&document, &mut references);
    assert!(references.len() > 20);
    for reference in references {
        match reference.strip_prefix('#') {
            Some(pointer) => assert!(document.pointer(pointer).is_some(), "{reference}"),
            None => assert!(
                tree::root().join("docs").join(reference).exists(),
                "{reference}"
            ),
        }
    }
}

fn collect<'a>(value: &'a Value, references: &mut Vec<&'a str>) {
    match value {
        Value::Object(object) => {
            references.extend(object.get("$ref").and_then(Value::as_str));
            object.values().for_each(|value| collect(value, references));
        }
        Value::Array(items) => items.iter().for_each(|value| collect(value, references)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
