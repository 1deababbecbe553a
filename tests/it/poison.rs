//! Records that can never be handled are set aside, at once and alone; the rest goes on.

use contracts::{ConsumerName, Topic};
use serde_json::json;
use tests::{Options, World, api, wait_for};

const HEADERS: [(&str, &str); 5] = [
    ("ce_specversion", "1.0"),
    ("ce_source", "/upstream/payments"),
    ("ce_type", "PAYMENT_COMPLETED"),
    ("ce_dataschema", "urn:holdfast:schema:PAYMENT_COMPLETED:v1"),
    ("content-type", "application/json"),
];

/// (what, headers, payload)
type Case<'a> = (&'a str, Vec<(&'a str, &'a str)>, Option<Vec<u8>>);

fn headers<'a>(id: &'a str, changes: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut headers: Vec<(&str, &str)> = HEADERS.to_vec();
    headers.push(("ce_id", id));
    for (name, value) in changes {
        headers.retain(|(known, _)| known != name);
        headers.push((name, value));
    }
    headers
}

#[tokio::test(flavor = "multi_thread")]
#[expect(
    clippy::too_many_lines,
    reason = "a table and what is expected of each of its rows"
)]
async fn what_can_never_be_handled_is_dead_lettered_while_other_orders_go_on() {
    let world = World::with(Options {
        upstream: true,
        ..Options::default()
    })
    .await;
    world.operator().put_sku("POISON", 10, &json!({})).await;
    let order = api::accepted(
        &world
            .shop()
            .decide("p", &api::order("c", &[("POISON", 1)]))
            .await,
    );
    let unknown = contracts::OrderId::generate().to_string();
    let good = |order: &str, payment: &str| {
        json!({ "payment_id": payment, "order_id": order, "method": "card",
                "amount": { "amount_minor": 12_900, "currency": "KRW" },
                "completed_at": "2026-11-29T12:00:00Z" })
        .to_string()
        .into_bytes()
    };
    let negative = good(&order, "p-neg")
        .into_iter()
        .map(char::from)
        .collect::<String>();
    let negative = negative.replace("12900", "-12900").into_bytes();
    let cases: Vec<Case<'_>> = vec![
        (
            "garbage",
            headers("garbage", &[]),
            Some(vec![0, 159, 146, 150]),
        ),
        (
            "not json",
            headers("not-json", &[]),
            Some(b"{oops".to_vec()),
        ),
        ("a tombstone", headers("tombstone", &[]), None),
        ("no headers", vec![], Some(good(&order, "p-none"))),
        (
            "an unknown major version",
            headers(
                "v2",
                &[("ce_dataschema", "urn:holdfast:schema:PAYMENT_COMPLETED:v2")],
            ),
            Some(good(&order, "p-v2")),
        ),
        (
            "an unknown order",
            headers("unknown", &[]),
            Some(good(&unknown, "p-unknown")),
        ),
        (
            "a negative amount",
            headers("negative", &[]),
            Some(negative),
        ),
    ];
    for (_, headers, payload) in &cases {
        world
            .kafka
            .produce_raw(Topic::Payments, Some(&order), headers, payload.as_deref())
            .await;
    }
    // An unknown type is nobody's fault: skipped.
    let other = headers("other", &[("ce_type", "PAYMENT_AUTHORIZED")]);
    world
        .kafka
        .produce_raw(Topic::Payments, Some(&order), &other, Some(b"{}"))
        .await;
    let right = headers("right", &[]);
    let data = good(&order, "p-1");
    world
        .kafka
        .produce_raw(Topic::Payments, Some(&order), &right, Some(&data))
        .await;

    world.until(&order, "CONFIRMED").await;
    let expected = cases.len() as i64;
    wait_for("every poison to be set aside", || async {
        (world.count("select count(*) from dead_letters").await == expected).then_some(())
    })
    .await;
    let copies = wait_for("the copies on the dead letter topic", || async {
        let copies = world.kafka.dead_letters(ConsumerName::Stock).await;
        (copies.len() == cases.len()).then_some(copies)
    })
    .await;
    for (what, _, payload) in &cases {
        let copy = copies.iter().find(|copy| copy.payload == *payload);
        let Some(copy) = copy else {
            panic!("{what}: no copy has the payload unchanged")
        };
        for name in [
            "dlq_original_topic",
            "dlq_original_partition",
            "dlq_original_offset",
            "dlq_group",
            "dlq_reason",
            "dlq_class",
            "dlq_attempts",
            "dlq_first_seen",
        ] {
            assert!(copy.header(name).is_some(), "{what}: {name} is missing");
        }
    }
    // Money for an order that does not exist goes back.
    assert_eq!(
        world
            .count("select count(*) from refunds where payment_id = 'p-unknown'")
            .await,
        1
    );
    world.settled().await;
    world.end().await;
}
