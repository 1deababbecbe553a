//! Kafka repeats everything: each event takes effect once.

use tests::{Options, Sale};

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
