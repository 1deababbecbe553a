//! What goes out as a record: its envelope, sizes that a topic takes, and the one reason for which a
//! row is parked: that it can never be sent.

use std::time::Duration;

use contracts::{Topic, events::NewEvent};
use rand::RngExt as _;
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
};

use crate::{
    publish::{assert_in_order, ids},
    world::{World, beside, drain, event},
};

#[tokio::test]
async fn only_a_record_that_can_never_be_sent_is_parked_and_the_others_pass() {
    let world = World::new().await;
    // random digits: nothing for the compression to take away
    let noise = |bytes: usize| -> String {
        let mut rng = rand::rng();
        (0..bytes)
            .map(|_| char::from(b'!' + rng.random_range(0..90_u8)))
            .collect()
    };
    let large = |bytes| NewEvent {
        data: noise(bytes),
        ..event("large", 1)
    };
    let nowhere = NewEvent {
        topic: "no such name!".to_owned(),
        ..event("nowhere", 1)
    };
    let mut events: Vec<NewEvent> = (1..=20).map(|n| event("k", n)).collect();
    events.push(large(3_000_000)); // more than the client takes
    events.push(large(1_400_000)); // more than the topic takes
    events.push(nowhere);
    events.push(large(900_000)); // fits
    events.extend((21..=120).map(|n| event(&format!("k{}", n % 5), n)));
    world.write(&events).await;
    let mut relay = world.lead().await;
    drain(&world, &mut relay).await;
    relay.stand_down().await;
    let parked = world.sql("select string_agg(id::text, ',' order by id) from parked_events");
    assert_eq!(parked, "21,22,23");
    let records = world.published().await;
    assert_eq!(ids(&records).len(), 121);
    assert_in_order(&records);
    world.end().await;
}

#[tokio::test]
async fn a_missing_topic_is_an_outage_that_parks_nothing_and_ends_by_itself() {
    let world = World::without_topics().await;
    world
        .write(&(1..=30).map(|n| event("k", n)).collect::<Vec<_>>())
        .await;
    let mut relay = world.lead().await;
    let start = std::time::Instant::now();
    // longer than the client waits for a topic to appear, so that it gives the records up
    while start.elapsed() < Duration::from_secs(8) {
        let step = relay.step().await.unwrap();
        assert_eq!((step.low, step.acknowledged), (0, 0));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(world.number("select count(*) from parked_events"), 0);
    beside(&mut relay, world.make_topics()).await;
    drain(&world, &mut relay).await;
    relay.stand_down().await;
    let records = world.published().await;
    assert_eq!(ids(&records).len(), 30);
    assert_in_order(&records);
    world.end().await;
}

#[tokio::test]
async fn a_record_carries_the_envelope_the_trace_and_nothing_but_the_data() {
    let world = World::new().await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let sent = NewEvent {
        traceparent: Some(trace.to_owned()),
        ..event("order-1", 7)
    };
    world.write(std::slice::from_ref(&sent)).await;
    let mut relay = world.lead().await;
    drain(&world, &mut relay).await;
    relay.stand_down().await;
    let records = world.dump(&world.names.topic(Topic::Payments)).await;
    let [record] = records.as_slice() else {
        panic!("one record, not {}", records.len())
    };
    assert_eq!(record.payload.as_deref(), Some(sent.data.as_bytes()));
    assert_eq!(record.key.as_deref(), Some(b"order-1".as_slice()));
    for (name, value) in [
        ("ce_specversion", "1.0"),
        ("ce_id", &sent.event_id.to_string()),
        ("ce_source", "/holdfast/payment"),
        ("ce_type", "PAYMENT_FAILED"),
        ("ce_subject", "order-1"),
        ("ce_dataschema", "urn:holdfast:schema:PAYMENT_FAILED:v1"),
        ("ce_aggregateversion", "7"),
        ("content-type", "application/json"),
        ("traceparent", trace),
    ] {
        assert_eq!(record.header(name), Some(value), "{name}");
    }
    assert_eq!(record.headers.len(), 10, "and ce_time");
    world.end().await;
}

#[tokio::test]
async fn a_topic_that_takes_smaller_batches_than_are_made_gets_every_record_in_order() {
    let world = World::without_topics().await;
    let client: AdminClient<DefaultClientContext> = ClientConfig::new()
        .set("bootstrap.servers", &world.brokers)
        .create()
        .unwrap();
    let name = world.names.topic(Topic::Payments);
    let topic =
        NewTopic::new(&name, 2, TopicReplication::Fixed(1)).set("max.message.bytes", "9000");
    client
        .create_topics(&[topic], &AdminOptions::new())
        .await
        .unwrap();
    let mut rng = rand::rng();
    let events: Vec<NewEvent> = (1..=150)
        .map(|n| NewEvent {
            data: (0..3000)
                .map(|_| char::from(b'!' + rng.random_range(0..90_u8)))
                .collect(),
            ..event(&format!("k{}", n % 3), n)
        })
        .collect();
    world.write(&events).await;
    let mut relay = world.lead().await;
    drain(&world, &mut relay).await;
    relay.stand_down().await;
    assert_eq!(world.number("select count(*) from parked_events"), 0);
    let records = world.published().await;
    assert_eq!(ids(&records).len(), 150);
    assert_in_order(&records);
    world.end().await;
}
