//! Two replicas, one of which alone has lost a server: the other takes over. When all have lost it,
//! nothing is lost, and whoever gets it back first goes on.

use std::time::{Duration, Instant};

use messaging::{ConsumerConfig, admin::Producer, relay};
use platform::Shutdown;

use crate::{
    link::{Link, Mode},
    proxy::Door,
    publish::{assert_in_order, ids},
    recorder::Recorder,
    world::{World, event, wait_for},
};

const BOUND: Duration = Duration::from_secs(2);

/// Who holds the relay's lease, by the number of the relay.
fn leader(world: &World) -> String {
    world.sql(
        "select a.application_name from pg_stat_activity a
         join pg_locks l on l.pid = a.pid and l.locktype = 'advisory' and l.granted
         where a.datname = current_database() and a.application_name like '%lease holdfast.relay'",
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_alone_has_lost_kafka_gives_way_and_the_lease_goes_round_while_all_have() {
    let world = World::new().await;
    let links = [
        Link::start(&world.brokers).await,
        Link::start(&world.brokers).await,
    ];
    let shutdown = Shutdown::new();
    let start = |number: usize| {
        let mut config = world.relay_config();
        config.brokers.clone_from(&links[number].brokers);
        config.options.application_name = format!("relay{number}");
        config.silence_max = BOUND;
        tokio::spawn(relay::run(config, shutdown.clone()))
    };
    let leads = |number: usize| leader(&world).starts_with(&format!("relay{number} "));
    let low = || world.number("select low from relay_watermark");
    let first = start(0);
    wait_for("the first leads", async || leads(0)).await;
    let second = start(1);
    let write = async |from: i64| {
        let events: Vec<_> = (from..from + 50).map(|n| event("k", n)).collect();
        world.write(&events).await;
        world.number("select max(id) from outbox")
    };
    let top = write(1).await;
    wait_for("all is published", async || low() == top).await;
    // a machine that is very busy may have made the first give way
    let (one, other) = if leads(0) { (0, 1) } else { (1, 0) };

    links[one].set(Mode::Silent);
    let lost = Instant::now();
    let top = write(100).await;
    wait_for("the other publishes", async || low() == top).await;
    eprintln!("published by the other after {:?}", lost.elapsed());
    assert!(leads(other) && links[one].swallowed() > 0);

    links[other].set(Mode::Silent);
    let before = low();
    let top = write(200).await;
    wait_for("the one leads again", async || leads(one)).await;
    assert_eq!(low(), before, "nothing is passed");
    for link in &links {
        link.set(Mode::Pass);
    }
    wait_for("all is published in the end", async || low() == top).await;
    shutdown.begin();
    for relay in [first, second] {
        relay.await.unwrap();
    }
    assert_eq!(world.number("select count(*) from parked_events"), 0);
    let records = world.published().await;
    assert_eq!(ids(&records).len(), 150);
    assert_in_order(&records);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_alone_has_lost_the_database_leaves_its_partitions_to_others_and_comes_back()
{
    let world = World::new().await;
    let producer = Producer::new(&world.brokers).unwrap();
    let door = Door::start(&world.options.url).await;
    let mut options = world.options.clone();
    options.url.clone_from(&door.url);
    options.acquire_timeout = Duration::from_secs(1);
    let through = store::Store::connect(&options).unwrap();
    let bound = |config: &mut ConsumerConfig| config.leaves_after = BOUND;
    let produce = async |what: &str, count: i32| {
        for n in 0..count {
            let id = format!("{what}{n}");
            world.produce(&producer, n % 3, &id, b"{}").await;
        }
    };
    let first = world.consume_with(Recorder::default(), through, bound);
    produce("before", 3).await;
    wait_for("the first has all partitions", async || {
        world.effects() == 3
    })
    .await;
    let second = world.consume_with(Recorder::default(), world.store.clone(), bound);
    wait_for("both are ready", async || {
        first.ops.is_ready() && second.ops.is_ready()
    })
    .await;

    door.shut();
    let lost = Instant::now();
    produce("during", 60).await;
    wait_for("the second handles all", async || world.effects() == 63).await;
    eprintln!("handled by the second after {:?}", lost.elapsed());
    wait_for("the first is not ready", async || !first.ops.is_ready()).await;

    door.open();
    wait_for("the first is ready", async || first.ops.is_ready()).await;
    second.stop().await;
    produce("after", 3).await;
    wait_for("the first handles on", async || world.effects() == 66).await;
    wait_for("all offsets are stored", async || world.lag().await == 0).await;
    first.stop().await;
    assert_eq!((world.effects(), world.distinct_effects()), (66, 66));
    assert_eq!(world.dead_letters(), 0);
    world.end().await;
}

/// More records wait than a member takes in hand, so that it leaves its group while it is paused.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_left_with_its_hands_full_reads_on_when_it_is_back() {
    const RECORDS: i64 = 6_000;
    let world = World::new().await;
    let producer = Producer::new(&world.brokers).unwrap();
    let produce = async |n: i64| {
        let partition = i32::try_from(n % 3).unwrap();
        world
            .produce(&producer, partition, &n.to_string(), b"{}")
            .await
    };
    for from in (0..RECORDS).step_by(500) {
        futures::future::join_all((from..from + 500).map(produce)).await;
    }
    let door = Door::start(&world.options.url).await;
    door.shut();
    let mut options = world.options.clone();
    options.url.clone_from(&door.url);
    options.acquire_timeout = Duration::from_secs(1);
    let through = store::Store::connect(&options).unwrap();
    let member = world.consume_with(Recorder::default(), through, |config| {
        config.leaves_after = 5 * BOUND;
    });
    // ready it is before it has begun, too
    wait_for("it joins", async || !member.ops.is_ready()).await;
    wait_for("it has joined", async || member.ops.is_ready()).await;
    wait_for("it has left", async || !member.ops.is_ready()).await;
    door.open();
    wait_for("it handles all", async || world.effects() == RECORDS).await;
    wait_for("all offsets are stored", async || world.lag().await == 0).await;
    member.stop().await;
    assert_eq!(world.distinct_effects(), RECORDS);
    assert_eq!(world.dead_letters(), 0);
    world.end().await;
}
