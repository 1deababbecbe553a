//! Headers: what is written is read, and nothing that arrives is a panic.

use contracts::{
    Envelope, EnvelopeError, Timestamp,
    envelope::{ID_MAX, header},
};
use proptest::prelude::*;

const VALID: [(&str, &str); 4] = [
    (header::SPECVERSION, "1.0"),
    (header::ID, "e-1"),
    (header::SOURCE, "/upstream/payments"),
    (header::TYPE, "PAYMENT_COMPLETED"),
];

fn read(headers: &[(&str, &str)]) -> Result<Envelope, EnvelopeError> {
    Envelope::from_headers(
        headers
            .iter()
            .map(|(name, value)| (*name, value.as_bytes())),
    )
}

/// The valid headers with one of them replaced or added.
fn with(name: &'static str, value: &[u8]) -> Result<Envelope, EnvelopeError> {
    let others = VALID.iter().filter(|(other, _)| *other != name);
    let all = others
        .map(|(name, value)| (*name, value.as_bytes()))
        .chain([(name, value)]);
    Envelope::from_headers(all)
}

#[test]
fn the_four_required_headers_suffice() {
    let envelope = read(&VALID).expect("an envelope");
    assert_eq!(envelope.id, "e-1");
    assert_eq!(envelope.time, None);
    assert_eq!(envelope.dataschema, None);
}

#[test]
fn each_required_header_is_missed_by_name() {
    for (missing, _) in VALID {
        let rest: Vec<_> = VALID
            .into_iter()
            .filter(|(name, _)| *name != missing)
            .collect();
        assert_eq!(read(&rest), Err(EnvelopeError::Missing(missing)));
        assert_eq!(with(missing, b""), Err(EnvelopeError::Missing(missing)));
    }
}

#[test]
fn headers_that_are_not_of_their_type_are_malformed() {
    let long = "x".repeat(ID_MAX + 1);
    let table: [(&'static str, &[u8]); 9] = [
        (header::ID, b"\xff\xfe"),
        (header::ID, b"a\0b"),
        (header::ID, long.as_bytes()),
        (header::SOURCE, long.as_bytes()),
        (header::TYPE, b"PAYMENT\nCOMPLETED"),
        (header::TIME, b"yesterday"),
        (header::AGGREGATE_VERSION, b"1.5"),
        (header::AGGREGATE_VERSION, b"9223372036854775808"),
        (header::DATASCHEMA, b"\xc3\x28"),
    ];
    for (name, value) in table {
        assert_eq!(
            with(name, value),
            Err(EnvelopeError::Malformed(name)),
            "{value:?}"
        );
    }
}

#[test]
fn a_broken_trace_is_no_reason_to_lose_an_event() {
    assert_eq!(
        with(header::TRACEPARENT, b"\xff")
            .expect("an envelope")
            .traceparent,
        None
    );
}

#[test]
fn only_cloudevents_1_0_is_read() {
    for version in ["0.3", "1.1", "2.0", "1"] {
        assert_eq!(
            with(header::SPECVERSION, version.as_bytes()),
            Err(EnvelopeError::SpecVersion(version.to_owned()))
        );
    }
}

#[test]
fn data_of_an_unknown_major_version_is_refused() {
    for known in [
        "urn:holdfast:schema:PAYMENT_COMPLETED:v1",
        "https://x.example/payment.json",
    ] {
        assert!(
            with(header::DATASCHEMA, known.as_bytes()).is_ok(),
            "{known}"
        );
    }
    for unknown in [
        "urn:holdfast:schema:PAYMENT_COMPLETED:v0",
        "https://x.example/y/v2",
        "https://x.example/payment.v3.json",
        "urn:x:v4294967297",
    ] {
        assert_eq!(
            with(header::DATASCHEMA, unknown.as_bytes()),
            Err(EnvelopeError::Major(unknown.to_owned()))
        );
    }
}

#[test]
fn times_of_other_zones_are_read_as_utc() {
    let envelope = with(header::TIME, b"2026-03-01T21:00:00+09:00").expect("an envelope");
    assert_eq!(
        envelope.time,
        Some("2026-03-01T12:00:00Z".parse().expect("a time"))
    );
}

fn word() -> impl Strategy<Value = String> {
    // Any text without control characters, within the greatest length in bytes.
    "[^\\p{Cc}]{1,60}"
}

fn time() -> impl Strategy<Value = Timestamp> {
    // Microseconds, as they are written: from 1970 to 2100.
    (0_i64..4_102_444_800_000_000)
        .prop_map(|micros| Timestamp::from_timestamp_micros(micros).expect("within range"))
}

fn envelope() -> impl Strategy<Value = Envelope> {
    let schema = prop_oneof![
        Just("urn:holdfast:schema:X:v1".to_owned()),
        "https://x\\.example/[a-u]{1,9}\\.json",
    ];
    (
        (word(), word(), word()),
        proptest::option::of(time()),
        proptest::option::of(word()),
        proptest::option::of(schema),
        proptest::option::of(any::<i64>()),
        proptest::option::of("00-[0-9a-f]{32}-[0-9a-f]{16}-01"),
    )
        .prop_map(
            |((id, source, event_type), time, subject, dataschema, version, trace)| Envelope {
                id,
                source,
                event_type,
                time,
                subject,
                dataschema,
                aggregate_version: version,
                traceparent: trace,
            },
        )
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(envelope in envelope()) {
        let headers = envelope.to_headers();
        let again = Envelope::from_headers(
            headers.iter().map(|(name, value)| (*name, value.as_bytes())),
        );
        prop_assert_eq!(again, Ok(envelope));
    }

    #[test]
    fn headers_come_in_any_order_among_others(
        (envelope, headers) in envelope().prop_flat_map(|envelope| {
            let mut headers = envelope.to_headers();
            headers.push(("x-tenant", "7".to_owned()));
            (Just(envelope), Just(headers).prop_shuffle())
        }),
    ) {
        let again = Envelope::from_headers(
            headers.iter().map(|(name, value)| (*name, value.as_bytes())),
        );
        prop_assert_eq!(again, Ok(envelope));
    }

    #[test]
    fn no_bytes_of_headers_are_a_panic(
        headers in proptest::collection::vec(
            (
                prop_oneof![
                    Just(header::SPECVERSION), Just(header::ID), Just(header::SOURCE),
                    Just(header::TYPE), Just(header::TIME), Just(header::SUBJECT),
                    Just(header::DATASCHEMA), Just(header::AGGREGATE_VERSION),
                    Just(header::CONTENT_TYPE), Just(header::TRACEPARENT), Just("other"),
                ],
                prop_oneof![
                    proptest::collection::vec(any::<u8>(), 0..300),
                    Just(b"1.0".to_vec()),
                    word().prop_map(String::into_bytes),
                ],
            ),
            0..12,
        ),
    ) {
        let read = Envelope::from_headers(
            headers.iter().map(|(name, value)| (*name, value.as_slice())),
        );
        if let Ok(envelope) = read {
            // What was read can be a key of the inbox.
            prop_assert!(!envelope.id.is_empty() && envelope.id.len() <= ID_MAX);
            prop_assert!(!envelope.source.is_empty() && envelope.source.len() <= ID_MAX);
            prop_assert!(!envelope.id.contains('\0') && !envelope.source.contains('\0'));
        }
    }

    #[test]
    fn no_bytes_of_data_are_a_panic(data in proptest::collection::vec(any::<u8>(), 0..200)) {
        use contracts::events::{OrderEvent, OrderRequestEvent, PaymentEvent, StockEvent};
        for event_type in OrderEvent::TYPES {
            let _ = OrderEvent::decode(event_type, &data);
        }
        for event_type in PaymentEvent::TYPES {
            let _ = PaymentEvent::decode(event_type, &data);
        }
        for event_type in StockEvent::TYPES {
            let _ = StockEvent::decode(event_type, &data);
        }
        for event_type in OrderRequestEvent::TYPES {
            let _ = OrderRequestEvent::decode(event_type, &data);
        }
    }
}
