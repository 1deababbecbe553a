//! Clients that are ill, and brokers that are away: the first end their process, the second do not.

use std::time::{Duration, Instant};

use contracts::{ConsumerName, Topic};
use messaging::{Stall, admin::Producer};
use rdkafka::{
    ClientConfig,
    message::{Header, OwnedHeaders},
    producer::{BaseProducer, BaseRecord, Producer as _},
};

use crate::{
    link::{Link, Mode},
    recorder::Recorder,
    world::{World, headers, wait_for},
};

#[tokio::test]
async fn a_consumer_that_hears_nothing_while_the_broker_answers_others_is_not_ready_and_ends() {
    let world = World::new().await;
    let link = Link::start(&world.brokers).await;
    let producer = Producer::new(&world.brokers).unwrap();
    let running = world.consume_with(Recorder::default(), world.store.clone(), |config| {
        config.brokers.clone_from(&link.brokers);
        config.stall = Stall::after(Duration::from_secs(2));
    });
    world.produce(&producer, 0, "before", b"{}").await;
    wait_for("the first", async || world.effects() == 1).await;
    wait_for("it is ready", async || running.ops.is_ready()).await;
    let client_id = format!("{}-test", ConsumerName::Stock.group());
    link.set(Mode::SilentFor(client_id));
    world.produce(&producer, 0, "after", b"{}").await;
    wait_for("it is not ready", async || !running.ops.is_ready()).await;
    let ended = running.ended().await;
    assert!(
        matches!(ended, Err(messaging::ConsumerError::Stalled)),
        "{ended:?}"
    );
    assert!(link.swallowed() > 0);
    assert_eq!(world.effects(), 1);
    world.end().await;
}

#[tokio::test]
async fn a_consumer_outlives_a_broker_that_is_silent_to_all_and_reads_on_when_it_is_back() {
    const ENDS_AFTER: Duration = Duration::from_secs(5);
    let world = World::new().await;
    let link = Link::start(&world.brokers).await;
    let producer = Producer::new(&world.brokers).unwrap();
    let running = world.consume_with(Recorder::default(), world.store.clone(), |config| {
        config.brokers.clone_from(&link.brokers);
        config.stall = Stall {
            unready_after: Duration::from_secs(2),
            ends_after: ENDS_AFTER,
        };
    });
    world.produce(&producer, 0, "before", b"{}").await;
    wait_for("the first", async || world.effects() == 1).await;
    link.set(Mode::Silent);
    for n in 0..3 {
        let id = format!("during{n}");
        world.produce(&producer, n, &id, b"{}").await;
    }
    let away = Instant::now();
    wait_for("a long outage", async || {
        assert!(!running.is_ended());
        away.elapsed() > 2 * ENDS_AFTER + Duration::from_secs(2)
    })
    .await;
    assert!(link.swallowed() > 0);
    link.set(Mode::Pass);
    wait_for("all of them", async || world.effects() == 4).await;
    wait_for("it is ready", async || running.ops.is_ready()).await;
    running.stop().await;
    world.end().await;
}

/// Someone else's records may come in transactions; the end of one takes an offset and is no record.
#[tokio::test]
async fn a_consumer_with_nothing_left_but_the_end_of_a_transaction_is_idle() {
    let world = World::new().await;
    let running = world.consume_with(Recorder::default(), world.store.clone(), |config| {
        config.stall = Stall::after(Duration::from_secs(1));
    });
    let (brokers, topic) = (world.brokers.clone(), world.names.topic(Topic::Payments));
    let written = tokio::task::spawn_blocking(move || transaction(&brokers, &topic));
    written.await.unwrap();
    wait_for("the record", async || world.effects() == 1).await;
    let life = "select coalesce(extract(epoch from max(at)), 0)::bigint from heartbeats";
    let begun = world.number("select extract(epoch from clock_timestamp())::bigint");
    wait_for("life signs beyond all bounds", async || {
        assert!(!running.is_ended());
        world.number(life) > begun + 5
    })
    .await;
    wait_for("it is ready", async || running.ops.is_ready()).await;
    running.stop().await;
    world.end().await;
}

/// One record in a transaction.
fn transaction(brokers: &str, topic: &str) {
    let within = Duration::from_secs(60);
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("transactional.id", topic)
        .create()
        .unwrap();
    producer.init_transactions(within).unwrap();
    producer.begin_transaction().unwrap();
    let mut own = OwnedHeaders::new();
    for (key, value) in headers("in-a-transaction") {
        let value = Some(value.as_bytes());
        own = own.insert(Header { key, value });
    }
    let record = BaseRecord::to(topic)
        .partition(0)
        .key("k")
        .payload("{}")
        .headers(own);
    producer.send(record).map_err(|(error, _)| error).unwrap();
    producer.commit_transaction(within).unwrap();
}
