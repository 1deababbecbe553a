//! The service as a whole: it starts while Kafka is away, refuses what is unsafe, and stops in time.

use std::time::{Duration, Instant};

use platform::{CommonConfig, Environment, HoldConfig, PaymentsMode, Shutdown};
use stock::Config;

use crate::support::{Door, World, eventually};

fn config(world: &World, redis: &str) -> Config {
    Config {
        common: CommonConfig {
            database_url: world.url.clone().into(),
            redis_url: redis.to_owned().into(),
            kafka_brokers: "127.0.0.1:1".to_owned(),
            environment: Environment::Development,
            payments: PaymentsMode::Internal,
            key_prefix: world.prefix.clone(),
            topic_suffix: String::new(),
            db_connections: 6,
            gate_timeout_ms: 50,
            holds: HoldConfig {
                hold_seconds_by_method: String::new(),
                hold_payment_seconds: 0,
                hold_retry_seconds: 0,
                hold_cap_seconds: 86_400,
            },
            stall_seconds: 60,
            blocked_seconds: 20,
            relay: true,
        },
        listen: ([127, 0, 0, 1], 0).into(),
        listener: Some(std::net::TcpListener::bind("127.0.0.1:0").unwrap()),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_replicas_without_kafka_expire_sweep_and_rebuild_and_stop_in_time() {
    let world = World::new().await;
    world.sku("A", 100, None).await;
    let redis = std::env::var("REDIS_URL").unwrap();
    let shutdown = Shutdown::new();
    let replicas: Vec<_> = (0..2)
        .map(|_| tokio::spawn(stock::run(config(&world, &redis), shutdown.clone())))
        .collect();
    eventually("the gate is built", async || {
        world
            .stock
            .gate
            .current_epoch(crate::support::SHARD)
            .await
            .unwrap()
            .is_some_and(|e| e.open)
    })
    .await;
    let due = world.place("c", &[("A", 1)], -1.0).await;
    let beats = async || {
        // There is no broker: the test is the consumers' life sign and the relay's mark, or an outage
        // of ours begins 5 s after the first event and nothing expires any more.
        world.all_is_well().await;
        world.status(due.order).await == "EXPIRED"
    };
    eventually("a due order expires", beats).await;
    eventually("the gate agrees", async || {
        let gate = world
            .stock
            .gate
            .snapshot(crate::support::SHARD)
            .await
            .unwrap();
        gate.holds.is_empty()
            && gate
                .gates
                .values()
                .all(|row| row.held == 0 && row.version > 1)
    })
    .await;
    shutdown.begin();
    let ended =
        tokio::time::timeout(Duration::from_secs(10), futures::future::join_all(replicas)).await;
    for replica in ended.expect("stopped within 10 s") {
        replica.unwrap().unwrap();
    }
    world.assert_invariants().await;
}

/// A leader that alone has lost Redis gives the upkeep to one that has not. Without Redis for all it
/// stays where it is, and orders expire as ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_upkeep_goes_to_a_replica_that_reaches_redis_and_nowhere_while_none_does() {
    const HEIR: &str = "holdfast.stock.upkeep.heir";
    let world = World::new().await;
    world.sku("A", 100, None).await;
    let redis = std::env::var("REDIS_URL").unwrap();
    let doors = [Door::start(&redis).await, Door::start(&redis).await];
    let shutdown = Shutdown::new();
    let start = |n: usize| {
        let config = config(&world, &doors[n].url);
        tokio::spawn(stock::run(config, shutdown.clone()))
    };
    let first = start(0);
    eventually("the first leads", async || leader(&world).await.is_some()).await;
    eventually("the gate is built", async || is_open(&world).await).await;
    let second = start(1);
    eventually("the second is the heir", async || {
        holder(&world, HEIR).await.is_some()
    })
    .await;

    let before = leader(&world).await;
    doors[0].shut();
    let lost = Instant::now();
    world.lose_gate().await;
    eventually("the gate is rebuilt", async || is_open(&world).await).await;
    eprintln!("rebuilt by the second after {:?}", lost.elapsed());
    let second_leads = leader(&world).await;
    assert!(second_leads.is_some() && second_leads != before);

    doors[1].shut();
    let due = world.place("c", &[("A", 1)], -1.0).await;
    let lost = Instant::now();
    eventually("an order expires, and nobody else leads", async || {
        world.all_is_well().await;
        assert_eq!(leader(&world).await, second_leads);
        world.status(due.order).await == "EXPIRED" && lost.elapsed() > Duration::from_secs(7)
    })
    .await;

    doors[0].open();
    let back = Instant::now();
    eventually("the first leads again", async || {
        let leads = leader(&world).await;
        leads.is_some() && leads != second_leads
    })
    .await;
    eprintln!("led by the first after {:?}", back.elapsed());
    shutdown.begin();
    for replica in [first, second] {
        replica.await.unwrap().unwrap();
    }
}

async fn is_open(world: &World) -> bool {
    let gate = &world.stock.gate;
    let epoch = gate.current_epoch(crate::support::SHARD).await.unwrap();
    epoch.is_some_and(|epoch| epoch.open)
}

async fn leader(world: &World) -> Option<i32> {
    holder(world, "holdfast.stock.upkeep").await
}

/// The session that holds the lease of this name.
async fn holder(world: &World, lease: &str) -> Option<i32> {
    let query = format!(
        "select max(a.pid) from pg_stat_activity a
         join pg_locks l on l.pid = a.pid and l.locktype = 'advisory' and l.granted
         where a.datname = current_database() and a.application_name like '%lease {lease}'"
    );
    world.value(&query).await
}

#[tokio::test]
async fn all_that_is_unsafe_is_said_at_once() {
    let world = World::new().await;
    let mut wrong = config(&world, "not a url");
    wrong.common.kafka_brokers = " ".to_owned();
    wrong.common.db_connections = 1;
    let error = stock::run(wrong, Shutdown::new())
        .await
        .unwrap_err()
        .to_string();
    for named in ["KAFKA_BROKERS", "HOLDFAST_DB_CONNECTIONS", "REDIS_URL"] {
        assert!(error.contains(named), "{error}");
    }
    world.execute("delete from _sqlx_migrations where version = (select max(version) from _sqlx_migrations)").await;
    let redis = std::env::var("REDIS_URL").unwrap();
    let error = stock::run(config(&world, &redis), Shutdown::new())
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("schema"), "{error}");
}
