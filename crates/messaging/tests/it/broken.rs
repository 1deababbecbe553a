//! What brokers answer on a bad day, from librdkafka's mock broker: a real one gives these codes
//! only when it is broken.

use std::time::Duration;

use contracts::{Topic, TopicNames};
use messaging::RelayConfig;
use rdkafka::{
    mocking::MockCluster,
    types::{RDKafkaApiKey, RDKafkaRespErr},
};

use crate::world::{World, drain, event, wait_for};

type Mock<'a> = MockCluster<'a, rdkafka::producer::DefaultProducerContext>;

async fn relay_at(world: &World, cluster: &Mock<'_>) -> messaging::Relay {
    let names = TopicNames::new("-mock");
    cluster
        .create_topic(&names.topic(Topic::Payments), 1, 1)
        .unwrap();
    world
        .lead_at(RelayConfig {
            brokers: cluster.bootstrap_servers(),
            names,
            ..world.relay_config()
        })
        .await
}

/// Nothing is parked, and all versions of the one key came in their order.
async fn assert_complete(world: &World, cluster: &Mock<'_>, events: usize) {
    assert_eq!(world.number("select count(*) from parked_events"), 0);
    let (brokers, topic) = (cluster.bootstrap_servers(), "payments.v1-mock");
    let mut records = Vec::new();
    let read = tokio::task::spawn_blocking(move || {
        messaging::admin::dump(&brokers, topic, |record| records.push(record)).map(|_| records)
    });
    let records = read.await.unwrap().unwrap();
    // not the order: the mock takes a batch whose sequence number leaves a gap, which a real broker
    // refuses
    let ids: std::collections::HashSet<_> = records
        .iter()
        .map(|record| record.header("ce_id").unwrap())
        .collect();
    assert_eq!(ids.len(), events);
}

#[tokio::test]
async fn retriable_and_forbidding_answers_park_nothing_and_everything_is_acknowledged_in_the_end() {
    use RDKafkaRespErr::*;
    for errors in [
        [
            RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
            RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
            RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
        ],
        [RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED; 3],
        [RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED; 3],
        [RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART; 3],
    ] {
        let world = World::without_topics().await;
        let cluster = MockCluster::new(1).unwrap();
        let mut relay = relay_at(&world, &cluster).await;
        cluster.request_errors(RDKafkaApiKey::Produce, &errors);
        world
            .write(&(1..=50).map(|n| event("k", n)).collect::<Vec<_>>())
            .await;
        drain(&world, &mut relay).await;
        relay.stand_down().await;
        assert_complete(&world, &cluster, 50).await;
        world.end().await;
    }
}

#[tokio::test]
async fn a_batch_that_is_too_large_as_a_whole_parks_no_record_that_fits() {
    let world = World::without_topics().await;
    let cluster = MockCluster::new(1).unwrap();
    let mut relay = relay_at(&world, &cluster).await;
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE],
    );
    world
        .write(&(1..=50).map(|n| event("k", n)).collect::<Vec<_>>())
        .await;
    drain(&world, &mut relay).await;
    relay.stand_down().await;
    assert_complete(&world, &cluster, 50).await;
    world.end().await;
}

#[tokio::test]
async fn a_broker_that_is_away_stops_the_watermark_and_nothing_else() {
    let world = World::without_topics().await;
    let cluster = MockCluster::new(1).unwrap();
    let mut relay = relay_at(&world, &cluster).await;
    world.write(&[event("k", 1)]).await;
    drain(&world, &mut relay).await;
    cluster.broker_down(-1).unwrap();
    // a relay that is silent for as long as all of them take may lose its lease
    for chunk in (2..=4600).collect::<Vec<_>>().chunks(200) {
        let events: Vec<_> = chunk.iter().map(|n| event("k", *n)).collect();
        world.write(&events).await;
        assert_eq!(relay.step().await.unwrap().low, 1);
    }
    let start = std::time::Instant::now();
    // so many are in flight that nothing more is read; longer than a silent session lives, the
    // lease is kept all the while
    while start.elapsed() < Duration::from_secs(5) {
        assert_eq!(relay.step().await.unwrap().low, 1);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    cluster.broker_up(-1).unwrap();
    drain(&world, &mut relay).await;
    assert_eq!(relay.low(), 4600);
    wait_for("quiet", async || relay.step().await.unwrap().is_quiet()).await;
    relay.stand_down().await;
    assert_complete(&world, &cluster, 4600).await;
    world.end().await;
}
