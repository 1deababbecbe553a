//! Life in a group: members come and go, and nothing is passed over.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use contracts::{ConsumerName, TopicNames};
use messaging::{ConsumerConfig, admin, admin::Producer};
use platform::{Ops, Shutdown};
use rdkafka::mocking::MockCluster;

use crate::world::{Recorder, World, wait_for};

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
    tokio::time::sleep(Duration::from_secs(3)).await;
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
