//! Kafka repeats everything, or falls silent: each event takes effect once, and no order is refused.

use std::{sync::atomic::Ordering, time::Duration};

use tests::{
    Options, Sale, World, api,
    proxy::{Link, Proxy, Towards},
    wait::wait_within,
    wait_for,
};

/// A connection that is silent while an answer is due is given up within 3 s (F41); a machine that is
/// busy with other tests gets as much again.
const FOUND_WITHIN: Duration = Duration::from_secs(6);

/// How long after the silence everything is published and consumed: a group may have to form anew.
const DRAINED_WITHIN: Duration = Duration::from_secs(60);

fn given_up(proxy: &Proxy) -> u64 {
    proxy.bites().given_up.load(Ordering::SeqCst)
}

async fn drained(world: &World, within: Duration, what: &str) {
    let begun = platform::clock::monotonic();
    wait_within(within, what, || async {
        let open = "select count(*) from orders where status = 'RESERVED'";
        (world.count(open).await == 0).then_some(())
    })
    .await;
    eprintln!("{what}: every order has ended after {:?}", begun.elapsed());
}

/// F41 and F42 for Kafka: it falls silent in mid-sale, to all and in each direction, and comes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_kafka_that_falls_silent_in_mid_sale_stops_no_accept_and_everything_comes_afterwards() {
    let mut sale = Sale::open(Options {
        proxy_kafka: true,
        ..Options::default()
    })
    .await;
    let Some(proxy) = sale.world.kafka_proxy.take() else {
        panic!("no proxy")
    };
    sale.goes_on("before the silence", 10).await;
    drained(&sale.world, DRAINED_WITHIN, "before the silence").await;
    for towards in [Towards::Both, Towards::Client, Towards::Server] {
        let before = given_up(&proxy);
        let begun = platform::clock::monotonic();
        proxy.set(Link::silent(towards));
        let name = format!("kafka silent {towards:?}");
        sale.goes_on(&name, 10).await;
        wait_within(FOUND_WITHIN, &name, || async {
            (given_up(&proxy) > before).then_some(())
        })
        .await;
        eprintln!("{name}: found after {:?}", begun.elapsed());
        assert!(
            sale.world
                .count("select count(*) from orders where status = 'RESERVED'")
                .await
                > 0,
            "nothing is published meanwhile"
        );
        proxy.set(Link::default());
        sale.goes_on(&format!("after {name}"), 4).await;
        drained(&sale.world, DRAINED_WITHIN, &format!("after {name}")).await;
    }
    sale.world.kafka_proxy = Some(proxy);
    sale.closes().await;
}

/// F41: every connection to Kafka is half-open at once, as behind a router that was replaced; new ones
/// work. The services find it by themselves.
#[tokio::test(flavor = "multi_thread")]
async fn half_open_connections_to_kafka_are_given_up_and_made_anew() {
    let world = World::with(Options {
        proxy_kafka: true,
        ..Options::default()
    })
    .await;
    let Some(proxy) = &world.kafka_proxy else {
        panic!("no proxy")
    };
    world
        .operator()
        .put_sku("HALF", 100, &serde_json::json!({}))
        .await;
    let shop = world.shop();
    for number in 0..10 {
        let body = api::order(&format!("c-{number}"), &[("HALF", 1)]);
        api::accepted(&shop.decide(&format!("before-{number}"), &body).await);
    }
    drained(&world, DRAINED_WITHIN, "before").await;
    proxy.half_open();
    let begun = platform::clock::monotonic();
    for number in 0..10 {
        let body = api::order(&format!("d-{number}"), &[("HALF", 1)]);
        api::accepted(&shop.decide(&format!("after-{number}"), &body).await);
    }
    wait_within(FOUND_WITHIN, "a connection to be given up", || async {
        (given_up(proxy) > 0).then_some(())
    })
    .await;
    eprintln!(
        "half-open connections: the first given up after {:?}",
        begun.elapsed()
    );
    drained(&world, DRAINED_WITHIN, "half-open connections").await;
    assert!(proxy.bites().silenced.load(Ordering::SeqCst) > 0);
    wait_for("20 orders", || async {
        let confirmed = "select count(*) from orders where status = 'CONFIRMED'";
        (world.count(confirmed).await == 20).then_some(())
    })
    .await;
    world.settled().await;
    world.end().await;
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
