//! Records that can never be handled: set aside with their reason, copied unchanged, and nothing
//! waits behind them.

use std::collections::HashMap;

use contracts::{ConsumerName, Topic};
use messaging::admin::Producer;

use crate::world::{Recorder, World, drain, headers, wait_for};

#[tokio::test]
async fn every_kind_of_poison_is_a_dead_letter_with_an_equal_copy_and_the_rest_goes_on() {
    let world = World::new().await;
    let producer = Producer::new(&world.brokers).unwrap();
    let topic = world.names.topic(Topic::Payments);
    let proper = |id: &str| -> Vec<(String, Vec<u8>)> {
        headers(id)
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.into_bytes()))
            .collect()
    };
    let but = |id: &str, header: &str, value: &[u8]| -> Vec<(String, Vec<u8>)> {
        let mut all = proper(id);
        for (name, given) in &mut all {
            if name == header {
                *given = value.to_vec();
            }
        }
        all
    };
    let without = |id: &str, header: &str| -> Vec<(String, Vec<u8>)> {
        proper(id)
            .into_iter()
            .filter(|(name, _)| name != header)
            .collect()
    };
    let nested = [b"[".repeat(450_000), b"]".repeat(450_000)].concat();
    let bytes: Vec<u8> = (0..=255).collect();
    type Poison<'a> = (&'a str, Vec<(String, Vec<u8>)>, Option<&'a [u8]>, &'a str);
    let poisons: Vec<Poison<'_>> = vec![
        ("no headers", Vec::new(), Some(b"{}"), "malformed"),
        ("garbage", proper("p1"), Some(&bytes), "malformed"),
        ("shape", proper("p2"), Some(b"[1,2"), "malformed"),
        ("nested", proper("p3"), Some(&nested), "malformed"),
        (
            "header bytes",
            but("p4", "ce_source", b"\xff\xfe\x00"),
            Some(b"{}"),
            "malformed",
        ),
        ("no id", without("p5", "ce_id"), Some(b"{}"), "malformed"),
        ("tombstone", proper("p6"), None, "malformed"),
        ("empty", proper("p7"), Some(b""), "malformed"),
        (
            "old protocol",
            but("p8", "ce_specversion", b"0.3"),
            Some(b"{}"),
            "malformed",
        ),
        (
            "aside",
            proper("p9"),
            Some(br#"{"wish":"aside"}"#),
            "unknown-subject",
        ),
        (
            "permanent",
            proper("p10"),
            Some(br#"{"wish":"permanent"}"#),
            "contract",
        ),
    ];
    let mut sent = HashMap::new();
    for (name, headers, payload, class) in &poisons {
        let given: Vec<(&str, &[u8])> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_slice()))
            .collect();
        let key = format!("{name}\u{7f}").into_bytes();
        let at = producer
            .send_to((&topic, 1), Some(&key), &given, *payload)
            .await
            .unwrap();
        sent.insert(
            at,
            (key, headers.clone(), payload.map(<[u8]>::to_vec), *class),
        );
    }
    let new_type = but("t", "ce_type", b"SOMETHING_NEW");
    let given: Vec<(&str, &[u8])> = new_type
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_slice()))
        .collect();
    producer
        .send_to((&topic, 1), None, &given, Some(b"{}"))
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
    assert_eq!(world.dead_letters(), i64::try_from(poisons.len()).unwrap());
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
    assert_eq!(copies.len(), poisons.len());
    for copy in copies {
        let number = |name: &str| copy.header(name).unwrap().parse::<i64>().unwrap();
        let at = (
            i32::try_from(number("dlq_original_partition")).unwrap(),
            number("dlq_original_offset"),
        );
        let (key, headers, payload, class) = sent.remove(&at).unwrap();
        assert_eq!(copy.key, Some(key));
        assert_eq!(copy.payload, payload);
        let (theirs, ours) = copy.headers.split_at(headers.len());
        let headers: Vec<_> = headers
            .into_iter()
            .map(|(name, value)| (name, Some(value)))
            .collect();
        assert_eq!(
            theirs, headers,
            "the record's own headers, unchanged and in their order"
        );
        assert_eq!(ours.len(), 8);
        assert_eq!(copy.header("dlq_original_topic"), Some(topic.as_str()));
        assert_eq!(
            copy.header("dlq_group"),
            Some(world.names.group(ConsumerName::Stock).as_str())
        );
        assert_eq!(copy.header("dlq_class"), Some(class));
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
