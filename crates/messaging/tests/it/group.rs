//! Life in a group: members come and go, and nothing is passed over.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use contracts::{ConsumerName, TopicNames};
use messaging::{ConsumerConfig, admin, admin::Producer};
use platform::{Ops, Shutdown};
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, NewPartitions},
    client::DefaultClientContext,
    mocking::MockCluster,
};

use crate::{
    recorder::Recorder,
    world::{World, wait_for},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_come_and_go_lose_nothing_and_committed_offsets_never_fall() {
    let world = World::new().await;
    let producer = Producer::new(&world.brokers).unwrap();
    let mut members = vec![world.consume(Recorder::default())];
    let mut committed: HashMap<i32, i64> = HashMap::new();
    let mut sent = 0;
    let mut look = async |world: &World| {
        for lag in admin::lag(&world.brokers, &world.names, ConsumerName::Stock)
            .await
            .unwrap()
        {
            let now = lag.committed.unwrap_or(0);
            let before = committed.insert(lag.partition, now).unwrap_or(0);
            assert!(
                before <= now,
                "partition {} fell from {before} to {now}",
                lag.partition
            );
        }
    };
    for round in 0..5 {
        for _ in 0..60 {
            world
                .produce(&producer, sent % 3, &format!("e{sent}"), b"{}")
                .await;
            sent += 1;
        }
        look(&world).await;
        if round % 2 == 0 {
            members.push(world.consume(Recorder::default()));
        } else {
            members.remove(0).stop().await;
        }
        for _ in 0..60 {
            world
                .produce(&producer, sent % 3, &format!("e{sent}"), b"{}")
                .await;
            sent += 1;
        }
        look(&world).await;
    }
    wait_for("all offsets are stored", async || {
        look(&world).await;
        world.lag().await == 0
    })
    .await;
    for member in members {
        member.stop().await;
    }
    let sent = i64::from(sent);
    assert_eq!((world.effects(), world.distinct_effects()), (sent, sent));
    assert_eq!(world.dead_letters(), 0);
    world.end().await;
}

#[tokio::test]
async fn a_consumer_that_started_before_its_topic_reads_it_once_it_is_there() {
    let world = World::without_topics().await;
    let running = world.consume(Recorder::default());
    // It has looked after itself twice meanwhile, and found nothing to read: no member, no life sign.
    for _ in 0..2 {
        running.ops.set("consumer.stock", false, "not looked yet");
        wait_for("the consumer to look", async || running.ops.is_ready()).await;
    }
    assert_eq!(world.number("select count(*) from heartbeats"), 0);
    world.make_topics().await;
    let made = Instant::now();
    let producer = Producer::new(&world.brokers).unwrap();
    world.produce(&producer, 0, "first", b"{}").await;
    wait_for("the effect", async || world.effects() == 1).await;
    assert!(
        made.elapsed() < Duration::from_secs(15),
        "{:?}",
        made.elapsed()
    );
    running.stop().await;
    world.end().await;
}

/// Partitions that are added while it runs are read from their start: `latest` would skip what was
/// written before they were seen.
#[tokio::test]
async fn partitions_that_are_added_are_read_from_their_start() {
    let world = World::new().await;
    let producer = Producer::new(&world.brokers).unwrap();
    let running = world.consume(Recorder::default());
    for n in 0..30 {
        world
            .produce(&producer, n % 3, &format!("old{n}"), b"{}")
            .await;
    }
    wait_for("the effects", async || world.effects() == 30).await;
    let client: AdminClient<DefaultClientContext> = ClientConfig::new()
        .set("bootstrap.servers", &world.brokers)
        .create()
        .unwrap();
    let topic = world.names.topic(ConsumerName::Stock.topic());
    let more = [NewPartitions::new(&topic, 6)];
    let made = client
        .create_partitions(&more, &AdminOptions::new())
        .await
        .unwrap();
    assert!(made.iter().all(Result::is_ok), "{made:?}");
    // The broker tells of them a little later, and each partition has its leader then.
    wait_for("the broker to tell of all six", async || {
        let lag = admin::lag(&world.brokers, &world.names, ConsumerName::Stock).await;
        lag.is_ok_and(|lag| lag.len() == 6)
    })
    .await;
    let producer = Producer::new(&world.brokers).unwrap();
    for n in 0..60 {
        world
            .produce(&producer, n % 6, &format!("new{n}"), b"{}")
            .await;
    }
    wait_for("all are handled", async || world.effects() == 90).await;
    wait_for("all offsets are stored", async || world.lag().await == 0).await;
    running.stop().await;
    assert_eq!((world.effects(), world.distinct_effects()), (90, 90));
    assert_eq!(world.dead_letters(), 0);
    world.end().await;
}

/// Later events are handled while one fails; its offset was never passed, so a crash loses nothing.
#[tokio::test]
async fn what_failed_before_a_crash_is_handled_after_it_and_what_was_done_is_not_done_again() {
    let world = World::new().await;
    let producer = Producer::new(&world.brokers).unwrap();
    let (_, failing) = world
        .produce(&producer, 0, "fails", br#"{"wish":"unclassified"}"#)
        .await;
    for n in 0..50 {
        world
            .produce(&producer, 0, &format!("after{n}"), b"{}")
            .await;
    }
    let patient = |config: &mut ConsumerConfig| {
        config.unclassified.over = Duration::from_secs(600);
    };
    let first = world.consume_with(Recorder::default(), world.store.clone(), patient);
    wait_for("those behind it", async || world.effects() == 50).await;
    first.crash();
    let committed = admin::lag(&world.brokers, &world.names, ConsumerName::Stock)
        .await
        .unwrap();
    let behind = committed.iter().find(|lag| lag.partition == 0).unwrap();
    assert!(behind.committed.unwrap_or(0) <= failing, "{behind:?}");
    let healed = Recorder::default();
    healed
        .healed
        .store(true, std::sync::atomic::Ordering::Relaxed);
    let second = world.consume(healed);
    wait_for("all offsets are stored", async || world.lag().await == 0).await;
    second.stop().await;
    assert_eq!((world.effects(), world.distinct_effects()), (51, 51));
    assert_eq!(world.dead_letters(), 0);
    world.end().await;
}

#[tokio::test]
async fn a_consumer_ends_in_time_though_the_broker_is_away() {
    let world = World::new().await;
    let cluster = MockCluster::new(1).unwrap();
    let names = TopicNames::new("-mock");
    cluster
        .create_topic(&names.topic(ConsumerName::Stock.topic()), 3, 1)
        .unwrap();
    let (ops, shutdown) = (Ops::new(), Shutdown::new());
    let config = ConsumerConfig::new(cluster.bootstrap_servers(), names.clone(), "test");
    let run = messaging::consumer::run(
        Recorder::default(),
        config,
        world.store.clone(),
        ops,
        shutdown.clone(),
    );
    let task = tokio::spawn(run);
    let producer = Producer::new(&cluster.bootstrap_servers()).unwrap();
    let topic = names.topic(ConsumerName::Stock.topic());
    let headers = crate::world::headers("e1");
    let headers: Vec<(&str, &[u8])> = headers
        .iter()
        .map(|(name, value)| (*name, value.as_bytes()))
        .collect();
    producer
        .send_to((&topic, 0), None, &headers, Some(b"{}"))
        .await
        .unwrap();
    wait_for("the effect", async || world.effects() == 1).await;
    cluster.broker_down(-1).unwrap();
    let start = Instant::now();
    shutdown.begin();
    task.await.unwrap().unwrap();
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
    world.end().await;
}
