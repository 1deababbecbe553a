//! Kafka late, silent, losing its answers, or repeating everything: each event takes effect once.
//! Each fault must be seen to bite, else the test says nothing.

use std::{sync::atomic::Ordering, time::Duration};

use cli::servers::{Ports, native};
use tests::{
    Options, Sale,
    proxy::{Fault, Kind, Link, Protocol, Proxy, Rule, Towards},
    wait_for,
    world::private_dir,
};

/// F14, F16 and F41 for Kafka: a broker whose answers are lost, late, or never come.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_becomes_of_kafka_events_take_effect_once() {
    let home = private_dir("faulty-kafka");
    let (Ok(port), Ok(())) = (cli::servers::free_port(), std::fs::create_dir_all(&home)) else {
        panic!("no place for a broker")
    };
    // Clients go where the broker says that it is: at the proxy.
    if let Err(error) = std::fs::write(home.join("advertised-port"), port.to_string()) {
        panic!("{error}");
    }
    let mut kafka = match native::Kafka::start(&home, Ports::Free).await {
        Ok(kafka) => kafka,
        Err(error) => panic!("a test needs its broker: {error}"),
    };
    let proxy = match Proxy::listen(Protocol::Kafka, &kafka.url(), port).await {
        Ok(proxy) => proxy,
        Err(error) => panic!("no proxy: {error}"),
    };
    let mut sale = Sale::open(Options {
        kafka_brokers: Some(proxy.address().to_string()),
        ..Options::default()
    })
    .await;

    let lost = proxy.add(
        Rule::new(Kind::PRODUCE, Fault::SwallowReply)
            .every(2)
            .times(4),
    );
    sale.goes_on("replies to Produce lost", 30).await;
    wait_for("replies to be lost", || async {
        (lost.bites() == 3).then_some(())
    })
    .await;
    proxy.clear();
    eprintln!("{} replies to Produce lost", lost.bites());

    let lost = proxy.add(Rule::new(Kind::OFFSET_COMMIT, Fault::SwallowReply).times(3));
    sale.goes_on("replies to OffsetCommit lost", 20).await;
    wait_for("offsets to be committed unheard", || async {
        (lost.bites() >= 2).then_some(())
    })
    .await;
    proxy.clear();

    let slow = Fault::DelayRequest(Duration::from_secs(2));
    let slow = proxy.add(Rule::new(Kind::PRODUCE, slow).times(3));
    sale.goes_on("a broker that takes 2 s", 20).await;
    wait_for("slow answers", || async {
        (slow.bites() >= 1).then_some(())
    })
    .await;
    proxy.clear();

    proxy.set(Link::silent(Towards::Both));
    sale.goes_on("a broker that says nothing", 20).await;
    wait_for("silence", || async {
        (proxy.bites().silenced.load(Ordering::SeqCst) > 0).then_some(())
    })
    .await;
    proxy.set(Link::default());
    proxy.reset();
    sale.goes_on("kafka connections reset", 10).await;
    sale.closes().await;
    kafka.stop().await;
}

/// F22: every event of a finished sale is delivered ten times more, in any order across keys.
#[tokio::test(flavor = "multi_thread")]
async fn ten_copies_of_every_event_change_nothing() {
    use contracts::Topic;
    use rand::seq::SliceRandom;
    let mut sale = Sale::open(Options::default()).await;
    sale.goes_on("before the copies", 30).await;
    sale.world.settled().await;
    let state = "select sum(version)::bigint from orders";
    let before = sale.world.count(state).await;
    let mut copies = Vec::new();
    for topic in [Topic::Orders, Topic::Payments] {
        for record in sale.world.kafka.records(topic).await {
            copies.extend(std::iter::repeat_n((topic, record), 10));
        }
    }
    copies.shuffle(&mut rand::rng());
    let sent = copies.len();
    let producer = match messaging::admin::Producer::new(&sale.world.brokers) {
        Ok(producer) => producer,
        Err(error) => panic!("{error}"),
    };
    for chunk in copies.chunks(100) {
        let sends = chunk.iter().map(|(topic, record)| {
            let (producer, topic) = (&producer, sale.world.names.topic(*topic));
            async move {
                let headers: Vec<(&str, &[u8])> = record
                    .headers
                    .iter()
                    .map(|(name, value)| (name.as_str(), value.as_deref().unwrap_or_default()))
                    .collect();
                let (key, payload) = (record.key.as_deref(), record.payload.as_deref());
                if let Err(error) = producer.send(&topic, key, &headers, payload).await {
                    panic!("{error}");
                }
            }
        });
        futures::future::join_all(sends).await;
    }
    eprintln!("{sent} copies sent");
    assert!(sent >= 600);
    sale.world.settled().await;
    assert_eq!(sale.world.count(state).await, before);
    sale.closes().await;
}
