//! Golden files: how to add one is in `golden/README.md`.

use std::{collections::BTreeSet, fmt::Write, fs, path::PathBuf};

use contracts::{
    Envelope, Topic,
    events::{OrderEvent, OrderRequestEvent, PaymentEvent, StockEvent},
};

use crate::examples::{self, Example};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden")
}

fn headers_text(example: &Example) -> String {
    let mut text = format!("key: {}\n", example.key);
    for (name, value) in example.envelope.to_headers() {
        writeln!(text, "{name}: {value}").expect("a string takes everything");
    }
    text
}

/// Files that exist are never rewritten, whatever is asked for.
fn compare(file: &str, written: &str) {
    let path = folder().join(file);
    if !path.exists() && std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, written).expect("the golden file is written");
    }
    let golden = fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{file}: {error}; UPDATE_GOLDEN=1 writes a new one"));
    assert_eq!(
        golden, written,
        "{file} has changed: outsiders rely on it (golden/README.md)"
    );
}

#[test]
fn what_is_written_is_byte_for_byte_what_was_promised() {
    for example in examples::all() {
        compare(&format!("{}.json", example.name), &example.data);
        compare(
            &format!("{}.headers", example.name),
            &headers_text(&example),
        );
    }
}

#[test]
fn no_golden_file_is_left_without_its_example() {
    let known: BTreeSet<String> = examples::all()
        .iter()
        .flat_map(|example| [".json", ".headers"].map(|end| format!("{}{end}", example.name)))
        .chain(["README.md".to_owned()])
        .collect();
    let found: BTreeSet<String> = fs::read_dir(folder())
        .expect("the folder")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    assert_eq!(found, known);
}

#[test]
fn every_type_has_a_golden_file_named_after_it() {
    let types = [
        OrderEvent::TYPES,
        PaymentEvent::TYPES,
        StockEvent::TYPES,
        OrderRequestEvent::TYPES,
    ]
    .concat();
    let examples = examples::all();
    for event_type in types {
        let name = format!("{event_type}.v1");
        assert!(
            examples.iter().any(|example| example.name == name),
            "{name} has no example"
        );
    }
    for example in &examples {
        assert!(
            example
                .name
                .starts_with(&format!("{}.v1", example.envelope.event_type))
        );
    }
}

#[test]
fn golden_files_are_read_back_to_what_was_written() {
    for example in examples::all() {
        let headers = fs::read_to_string(folder().join(format!("{}.headers", example.name)))
            .expect("golden headers");
        let pairs = headers
            .lines()
            .map(|line| line.split_once(": ").expect("name: value"));
        let envelope = Envelope::from_headers(pairs.map(|(name, value)| (name, value.as_bytes())));
        assert_eq!(envelope.as_ref(), Ok(&example.envelope), "{}", example.name);

        let data = fs::read(folder().join(format!("{}.json", example.name))).expect("golden data");
        assert_eq!(decoded(&example, &data), example.data, "{}", example.name);
    }
}

/// Reads the data as the consumer of its topic does, and writes it again.
fn decoded(example: &Example, data: &[u8]) -> String {
    let event_type = &example.envelope.event_type;
    let topic = Topic::ALL
        .into_iter()
        .find(|topic| topic.as_str() == example.topic);
    let again = match topic.expect("a topic of the contract") {
        Topic::Orders => OrderEvent::decode(event_type, data)
            .expect("data")
            .map(|event| event.data()),
        Topic::Payments => PaymentEvent::decode(event_type, data)
            .expect("data")
            .map(|event| event.data()),
        Topic::Stock => StockEvent::decode(event_type, data)
            .expect("data")
            .map(|event| event.data()),
        Topic::OrderRequests => OrderRequestEvent::decode(event_type, data)
            .expect("data")
            .map(|event| event.data()),
        Topic::Coupons => None,
    };
    again.expect("a type of its topic")
}

#[test]
fn a_type_of_another_topic_is_skipped_and_not_an_error() {
    assert_eq!(
        OrderEvent::decode("PAYMENT_COMPLETED", b"{}").expect("skipped"),
        None
    );
    assert_eq!(
        PaymentEvent::decode("PAYMENT_AUTHORIZED", b"not json").expect("skipped"),
        None
    );
}

#[test]
fn a_later_producer_may_add_fields_to_an_event_but_not_to_a_request() {
    for example in examples::all() {
        let mut data: serde_json::Value = serde_json::from_str(&example.data).expect("JSON");
        data["added_later"] = serde_json::json!({ "deep": [1, 2] });
        let data = data.to_string();
        if example.topic == Topic::OrderRequests.as_str() {
            let read = OrderRequestEvent::decode(&example.envelope.event_type, data.as_bytes());
            assert!(
                read.is_err(),
                "a price that the sender believes in is not dropped in silence"
            );
        } else {
            assert_eq!(decoded(&example, data.as_bytes()), example.data);
        }
    }
}
