//! Records that can never be handled: set aside with their reason, copied unchanged, and nothing
//! waits behind them.

use std::collections::HashMap;

use contracts::{ConsumerName, Topic};
use messaging::admin::{Producer, RawRecord};
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions},
    client::DefaultClientContext,
};

use crate::{
    recorder::Recorder,
    world::{World, drain, headers, wait_for},
};

type Headers = Vec<(String, Vec<u8>)>;

/// A record that can't be handled, and the class that it is to get.
struct Poison {
    name: &'static str,
    headers: Headers,
    payload: Option<Vec<u8>>,
    class: &'static str,
}

fn proper(id: &str) -> Headers {
    headers(id)
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.into_bytes()))
        .collect()
}

/// Proper headers, but one.
fn but(id: &str, header: &str, value: &[u8]) -> Headers {
    let replace = |(name, given): (String, Vec<u8>)| match name == header {
        true => (name, value.to_vec()),
        false => (name, given),
    };
    proper(id).into_iter().map(replace).collect()
}

fn poisons() -> Vec<Poison> {
    let nested = [b"[".repeat(450_000), b"]".repeat(450_000)].concat();
    let any_bytes: Vec<u8> = (0..=255).collect();
    let no_id = proper("p5")
        .into_iter()
        .filter(|(name, _)| name != "ce_id")
        .collect();
    let json = |text: &str| Some(text.as_bytes().to_vec());
    [
        ("no headers", Vec::new(), json("{}"), "malformed"),
        ("garbage", proper("p1"), Some(any_bytes), "malformed"),
        ("shape", proper("p2"), json("[1,2"), "malformed"),
        ("nested", proper("p3"), Some(nested), "malformed"),
        (
            "header bytes",
            but("p4", "ce_source", b"\xff\xfe\x00"),
            json("{}"),
            "malformed",
        ),
        ("no id", no_id, json("{}"), "malformed"),
        ("tombstone", proper("p6"), None, "malformed"),
        ("empty", proper("p7"), json(""), "malformed"),
        (
            "old protocol",
            but("p8", "ce_specversion", b"0.3"),
            json("{}"),
            "malformed",
        ),
        (
            "aside",
            proper("p9"),
            json(r#"{"wish":"aside"}"#),
            "unknown-subject",
        ),
        (
            "permanent",
            proper("p10"),
            json(r#"{"wish":"permanent"}"#),
            "contract",
        ),
    ]
    .into_iter()
    .map(|(name, headers, payload, class)| Poison {
        name,
        headers,
        payload,
        class,
    })
    .collect()
}

fn borrowed(headers: &Headers) -> Vec<(&str, &[u8])> {
    headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_slice()))
        .collect()
}

/// A copy is the record, byte for byte, with the headers that say why.
fn assert_copy(copy: &RawRecord, poison: &Poison, world: &World) {
    assert_eq!(copy.key.as_deref(), Some(poison.name.as_bytes()));
    assert_eq!(copy.payload, poison.payload);
    let (theirs, ours) = copy.headers.split_at(poison.headers.len());
    let given: Vec<_> = poison
        .headers
        .iter()
        .map(|(name, value)| (name.clone(), Some(value.clone())))
        .collect();
    assert_eq!(
        theirs, given,
        "the record's own headers, unchanged and in their order"
    );
    assert_eq!(ours.len(), 8);
    let topic = world.names.topic(Topic::Payments);
    assert_eq!(copy.header("dlq_original_topic"), Some(topic.as_str()));
    let group = world.names.group(ConsumerName::Stock);
    assert_eq!(copy.header("dlq_group"), Some(group.as_str()));
    assert_eq!(
        copy.header("dlq_class"),
        Some(poison.class),
        "{}",
        poison.name
    );
    assert!(
        copy.header("dlq_reason")
            .is_some_and(|reason| !reason.is_empty())
    );
    assert_eq!(copy.header("dlq_attempts"), Some("1"));
    assert!(
        copy.header("dlq_first_seen")
            .is_some_and(|at| at.ends_with('Z'))
    );
}

#[tokio::test]
async fn every_kind_of_poison_is_a_dead_letter_with_an_equal_copy_and_the_rest_goes_on() {
    let world = World::new().await;
    let producer = Producer::new(&world.brokers).unwrap();
    let topic = world.names.topic(Topic::Payments);
    let mut sent = HashMap::new();
    for poison in poisons() {
        let (key, payload) = (poison.name.as_bytes(), poison.payload.as_deref());
        let headers = borrowed(&poison.headers);
        let at = producer
            .send_to((&topic, 1), Some(key), &headers, payload)
            .await
            .unwrap();
        sent.insert(at, poison);
    }
    let new_type = but("t", "ce_type", b"SOMETHING_NEW");
    producer
        .send_to((&topic, 1), None, &borrowed(&new_type), Some(b"{}"))
        .await
        .unwrap();
    for n in 0..100 {
        world
            .produce(&producer, 1, &format!("good{n}"), b"{}")
            .await;
    }

    let running = world.consume(Recorder::default());
    wait_for("all offsets are stored", async || world.lag().await == 0).await;
    running.stop().await;
    assert_eq!((world.effects(), world.distinct_effects()), (100, 100));
    assert_eq!(world.dead_letters(), i64::try_from(sent.len()).unwrap());
    let known = "select count(*) from inbox where event_id like 'p%'";
    assert_eq!(
        world.number(known),
        7,
        "those with a readable envelope are in the inbox"
    );

    let mut relay = world.lead().await;
    drain(&world, &mut relay).await;
    relay.stand_down().await;
    assert_eq!(world.number("select count(*) from parked_events"), 0);
    let copies = world.dump(&world.names.dlq(ConsumerName::Stock)).await;
    assert_eq!(copies.len(), sent.len());
    for copy in copies {
        let number = |name: &str| copy.header(name).unwrap().parse::<i64>().unwrap();
        let partition = i32::try_from(number("dlq_original_partition")).unwrap();
        let poison = sent
            .remove(&(partition, number("dlq_original_offset")))
            .unwrap();
        assert_copy(&copy, &poison, &world);
    }
    world.end().await;
}

#[tokio::test]
async fn a_poison_record_that_comes_again_is_one_dead_letter() {
    let world = World::new().await;
    let producer = Producer::new(&world.brokers).unwrap();
    for partition in [0, 0, 1, 2] {
        world
            .produce(&producer, partition, "poison", b"not json")
            .await;
    }
    let running = world.consume(Recorder::default());
    wait_for("all offsets are stored", async || world.lag().await == 0).await;
    world.produce(&producer, 1, "poison", b"not json").await;
    wait_for("all offsets are stored", async || world.lag().await == 0).await;
    running.stop().await;
    assert_eq!((world.dead_letters(), world.effects()), (1, 0));
    world.end().await;
}

/// The table is the truth: without the topic of the copies nothing waits, and nothing is lost.
#[tokio::test]
async fn while_the_dead_letter_topic_is_missing_poison_is_kept_and_its_copy_comes_later() {
    let world = World::new().await;
    let topic = world.names.dlq(ConsumerName::Stock);
    let client: AdminClient<DefaultClientContext> = ClientConfig::new()
        .set("bootstrap.servers", &world.brokers)
        .create()
        .unwrap();
    client
        .delete_topics(&[&topic], &AdminOptions::new())
        .await
        .unwrap();
    let producer = Producer::new(&world.brokers).unwrap();
    world.produce(&producer, 1, "poison", b"not json").await;
    for n in 0..100 {
        world
            .produce(&producer, 1, &format!("good{n}"), b"{}")
            .await;
    }
    let running = world.consume(Recorder::default());
    wait_for("all offsets are stored", async || world.lag().await == 0).await;
    running.stop().await;
    assert_eq!((world.effects(), world.dead_letters()), (100, 1));
    let mut relay = world.lead().await;
    wait_for("the relay to have tried", async || {
        relay.step().await.unwrap();
        world.number("select count(*) from outbox") == 101
    })
    .await;
    assert_eq!(world.number("select count(*) from parked_events"), 0);
    relay.stand_down().await;
    world.make_topics_again().await;
    let mut relay = world.lead().await;
    drain(&world, &mut relay).await;
    relay.stand_down().await;
    let copies = world.dump(&topic).await;
    assert_eq!(copies.len(), 1);
    assert_eq!(copies[0].payload.as_deref(), Some(b"not json".as_slice()));
    world.end().await;
}

#[tokio::test]
async fn an_unreadable_record_does_not_use_up_the_id_of_the_right_event() {
    let world = World::new().await;
    let producer = Producer::new(&world.brokers).unwrap();
    for payload in [b"not json".as_slice(), b"{}", b"not json", b"nor this"] {
        world.produce(&producer, 0, "mended", payload).await;
    }
    let running = world.consume(Recorder::default());
    wait_for("all offsets are stored", async || world.lag().await == 0).await;
    world.produce(&producer, 0, "mended", b"{}").await;
    wait_for("all offsets are stored", async || world.lag().await == 0).await;
    running.stop().await;
    assert_eq!((world.effects(), world.distinct_effects()), (1, 1));
    assert_eq!(
        world.dead_letters(),
        2,
        "one for each content that can't be read"
    );
    world.end().await;
}
