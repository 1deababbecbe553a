//! Orders that upstream services ask for by Kafka: the same gate and accept, answered by event.

use std::collections::BTreeMap;

use contracts::Topic;
use messaging::admin::RawRecord;
use serde_json::{Value, json};
use tests::{World, wait_for};

const SOURCE: &str = "/upstream/shop";

fn request(customer: &str, sku: &str, quantity: i64) -> Value {
    json!({ "customer_id": customer, "payment_method": "card",
            "lines": [{ "sku": sku, "quantity": quantity }] })
}

async fn ask(world: &World, id: &str, data: &Value) {
    world
        .kafka
        .produce(
            Topic::OrderRequests,
            id,
            (SOURCE, id),
            "ORDER_REQUESTED",
            data,
        )
        .await;
}

/// Answers by type.
async fn answers(world: &World) -> BTreeMap<String, Vec<Value>> {
    let mut answers: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for record in world.kafka.records(Topic::Orders).await {
        let kind = record.header("ce_type").unwrap_or_default().to_owned();
        answers.entry(kind).or_default().push(data(&record));
    }
    answers
}

fn data(record: &RawRecord) -> Value {
    match serde_json::from_slice(record.payload.as_deref().unwrap_or_default()) {
        Ok(data) => data,
        Err(error) => panic!("{error}"),
    }
}

async fn until_answered(
    world: &World,
    reserved: usize,
    rejected: usize,
) -> BTreeMap<String, Vec<Value>> {
    wait_for(
        &format!("{reserved} reserved and {rejected} rejected"),
        || async {
            let answers = answers(world).await;
            let count = |kind: &str| answers.get(kind).map_or(0, Vec::len);
            (count("ORDER_RESERVED") == reserved && count("ORDER_REJECTED") == rejected)
                .then_some(answers)
        },
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "one story, told in order")]
async fn requests_by_kafka_are_answered_and_a_replay_takes_nothing() {
    let world = World::start().await;
    world.operator().put_sku("ASKED", 5, &json!({})).await;
    for number in 0..8 {
        ask(
            &world,
            &format!("r-{number}"),
            &request(&format!("c-{number}"), "ASKED", 1),
        )
        .await;
    }
    ask(&world, "r-unknown", &request("c-9", "NOWHERE", 1)).await;
    let found = until_answered(&world, 5, 4).await;
    let codes: Vec<&str> = found["ORDER_REJECTED"]
        .iter()
        .filter_map(|answer| answer["code"].as_str())
        .collect();
    assert_eq!(
        codes.iter().filter(|code| **code == "sold-out").count(),
        3,
        "{codes:?}"
    );
    assert_eq!(
        codes.iter().filter(|code| **code == "unknown-sku").count(),
        1,
        "{codes:?}"
    );
    assert!(
        found["ORDER_REJECTED"]
            .iter()
            .all(|answer| answer["request_source"] == SOURCE)
    );

    // Everything again, as if the topic were read from its start, and after the inbox was pruned.
    for _ in 0..2 {
        let more = json!({ "delta": 10, "reason": "restock" });
        let key = contracts::ids::generate().to_string();
        let path = "/v1/skus/ASKED/adjustments";
        let answer = world
            .operator()
            .ask(http::Method::POST, path, Some(&key), Some(&more))
            .await;
        assert_eq!(answer.status, 201);
        for number in 0..8 {
            ask(
                &world,
                &format!("r-{number}"),
                &request(&format!("c-{number}"), "ASKED", 1),
            )
            .await;
        }
        ask(
            &world,
            &format!("witness-{key}"),
            &request("w", "NOWHERE", 1),
        )
        .await;
        wait_for("the replay to be read", || async {
            let rejected = answers(&world)
                .await
                .remove("ORDER_REJECTED")
                .unwrap_or_default();
            let witness = format!("witness-{key}");
            rejected
                .iter()
                .any(|answer| answer["request_id"] == *witness)
                .then_some(())
        })
        .await;
        assert_eq!(world.count("select count(*) from orders").await, 5);
        world
            .tamper("delete from inbox where consumer = 'order'")
            .await;
    }
    world.settled().await;
    assert_eq!(world.operator().get("/v1/skus/ASKED").await["sold"], 5);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_breaks_a_rule_is_rejected_and_an_unreadable_one_set_aside() {
    let world = World::start().await;
    world.operator().put_sku("RULES", 5, &json!({})).await;
    ask(&world, "zero", &request("c", "RULES", 0)).await;
    let mut priced = request("c", "RULES", 1);
    priced["total"] = json!({ "amount_minor": 1, "currency": "KRW" });
    ask(&world, "priced", &priced).await;
    // PostgreSQL can't hold a zero byte: none may reach it from a name or a value.
    let mut named = request("c", "RULES", 1);
    named["a\0b\x1b"] = json!(1);
    let valued = request("c\0\x07", "RULES", 1);
    let of_no_sku = request("c", "RUL\0ES", 1);
    let mut paid = request("c", "RULES", 1);
    paid["payment_method"] = json!("ca\0rd");
    for (id, data) in [
        ("named", named),
        ("valued", valued),
        ("of-no-sku", of_no_sku),
        ("paid", paid),
    ] {
        ask(&world, id, &data).await;
    }
    world
        .kafka
        .produce_raw(
            Topic::OrderRequests,
            Some("x"),
            &[
                ("ce_specversion", "1.0"),
                ("ce_id", "x"),
                ("ce_source", SOURCE),
                ("ce_type", "ORDER_REQUESTED"),
            ],
            Some(b"{nope"),
        )
        .await;
    // Neither a request nor its name can be read.
    world
        .kafka
        .produce_raw(
            Topic::OrderRequests,
            Some("x\0"),
            &[
                ("ce_specversion", "1.0"),
                ("ce_id", "nul\0"),
                ("ce_source", SOURCE),
                ("ce_type", "ORDER_REQUESTED"),
            ],
            Some(b"{\"customer_id\":\"c\0\"}"),
        )
        .await;
    ask(&world, "good", &request("c", "RULES", 1)).await;
    let found = until_answered(&world, 1, 6).await;
    for answer in &found["ORDER_REJECTED"] {
        let detail = answer["detail"].as_str().unwrap_or("\0");
        assert!(
            answer["code"] == "invalid" && !detail.contains(char::is_control),
            "{answer}"
        );
    }
    wait_for("the dead letters", || async {
        (world
            .count("select count(*) from dead_letters where consumer = 'order'")
            .await
            == 2)
            .then_some(())
    })
    .await;
    world.settled().await;
    world.end().await;
}

/// Whoever reads orders along their ids (the audit's sums) takes old ids for known.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_waited_to_be_decided_has_an_id_of_when_it_was() {
    let world = World::start().await;
    world.operator().put_sku("WAITED", 5, &json!({})).await;
    // A sequence keeps what a transaction that fails has counted.
    let fails = "create sequence tries; \
                 create function fails() returns trigger language plpgsql as $$ \
                 begin perform nextval('tries'); raise 'not yet' using errcode = '40001'; end $$; \
                 create trigger fails before insert on idempotency for each row \
                 execute function fails()";
    world.tamper(fails).await;
    ask(&world, "waited", &request("c", "WAITED", 1)).await;
    let tries = "select case when is_called then last_value else 0 end from tries";
    let tried = async |at_least: i64| {
        wait_for(&format!("{at_least} tries"), || async {
            let tried = world.count(tries).await;
            (tried >= at_least).then_some(tried)
        })
        .await
    };
    let before = tried(1).await;
    let now_ms = "select (extract(epoch from clock_timestamp()) * 1000)::bigint";
    let then = world.count(now_ms).await;
    // The next may have begun before that moment; the one behind it has not.
    tried(before + 2).await;
    world
        .tamper("drop trigger fails on idempotency; drop function fails()")
        .await;
    until_answered(&world, 1, 0).await;
    let id_ms = "select ('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint from orders";
    assert!(world.count(id_ms).await >= then);
    world.settled().await;
    world.end().await;
}
