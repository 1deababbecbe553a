//! Failures of other systems, tried on ours: one module per class of docs/cases.md, which says what
//! each case is and which tests hold it. A test here is for the whole kind that a case stands for.

mod check_and_take;
mod clocks;
mod database_sessions;
mod deliveries;
mod expired_holds;
mod gate_lost;
mod groups;
mod late_money;
mod lifetimes;
mod numbers;
mod request_keys;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use cli::servers::{Ports, native};
use contracts::Sku;
use domain::Shard;
use futures::stream::{self, StreamExt};
use reservations::GateRow;
use tests::{Api, Options, World, api, wait_for, world::private_dir};
use tokio::task::JoinHandle;

/// Two order services and nobody who pays, so that what is accepted stays held.
async fn two_replicas_without_payment() -> World {
    World::with(Options {
        order_replicas: Some(2),
        without_payment: true,
        ..Options::default()
    })
    .await
}

async fn private_redis(name: &str) -> native::Redis {
    match native::Redis::start(&private_dir(name), Ports::Free).await {
        Ok(redis) => redis,
        Err(error) => panic!("a test needs its Redis: {error}"),
    }
}

/// One command, as an operator would type it.
async fn redis_command(url: &str, words: &[&str]) -> redis::Value {
    let run = async {
        let client = redis::Client::open(url)?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async(&mut connection).await
    };
    match run.await {
        Ok(value) => value,
        Err(error) => panic!("{words:?}: {error}"),
    }
}

/// Places one order of one unit; gives its id.
async fn place(shop: &Api, key: &str, customer: &str, sku: &str) -> String {
    api::accepted(&shop.decide(key, &api::order(customer, &[(sku, 1)])).await)
}

/// Requests that are under way at once.
const AT_ONCE: usize = 100;

/// Places so many orders of one unit, many at once, spread over the replicas, each until it is
/// decided; gives the statuses.
async fn rush(shops: &[Api], sku: &str, name: &str, count: usize) -> Vec<u16> {
    stream::iter((0..count).map(|number| {
        let shop = shops[number % shops.len()].clone();
        let body = api::order(&format!("{name}-{number}"), &[(sku, 1)]);
        let key = format!("{name}-{number}");
        async move { shop.decide(&key, &body).await.status.as_u16() }
    }))
    .buffered(AT_ONCE)
    .collect()
    .await
}

fn count(statuses: &[u16], wanted: u16) -> usize {
    statuses.iter().filter(|status| **status == wanted).count()
}

/// Places so many orders of one unit, many at once; all must be accepted.
async fn place_many(world: &World, sku: &str, name: &str, count: usize) -> Vec<String> {
    let shops = world.shops();
    stream::iter((0..count).map(|number| {
        let (shop, key) = (
            shops[number % shops.len()].clone(),
            format!("{name}-{number}"),
        );
        async move { place(&shop, &key, &format!("c-{number}"), sku).await }
    }))
    .buffered(AT_ONCE)
    .collect()
    .await
}

/// Makes the time of every RESERVED order end now, by the database's clock.
async fn make_due(world: &World) {
    world
        .tamper("update orders set reserved_until = clock_timestamp() where status = 'RESERVED'")
        .await;
}

/// What the gate knows of a SKU.
async fn gate_row(world: &World, sku: &str) -> Option<GateRow> {
    let Ok(sku) = Sku::parse(sku) else {
        panic!("{sku}")
    };
    let snapshot = world.gate_client().snapshot(Shard(0)).await.ok()?;
    snapshot.gates.get(&sku).copied()
}

async fn wait_for_held(world: &World, sku: &str, held: i64) {
    wait_for(
        &format!("{held} units of {sku} held at the gate"),
        || async { (gate_row(world, sku).await?.held == held).then_some(()) },
    )
    .await;
}

/// Waits until every RESERVED order's time has passed by the database's own clock.
async fn wait_for_deadlines(world: &World) {
    wait_for("the deadlines to pass", || async {
        let open =
            "select count(*) from orders where status = 'RESERVED' and reserved_until > now()";
        (world.count(open).await == 0).then_some(())
    })
    .await;
}

/// Waits until every consumer has handled and committed all there is.
async fn wait_until_read(world: &World) {
    for consumer in contracts::ConsumerName::ALL {
        if consumer == contracts::ConsumerName::Payment && world.payment.is_none() {
            continue;
        }
        wait_for(&format!("{consumer:?} to have read all"), || async {
            let lag = messaging::admin::lag(&world.brokers, &world.names, consumer).await;
            let lag: i64 = lag
                .ok()?
                .iter()
                .map(messaging::admin::PartitionLag::lag)
                .sum();
            (lag == 0).then_some(())
        })
        .await;
    }
}

/// Looks at the bounds of stock all the while a test runs: a rule that holds at the end may have
/// been broken in between.
struct Watcher {
    stop: Arc<AtomicBool>,
    seen: Arc<AtomicU64>,
    task: JoinHandle<Vec<String>>,
}

impl Watcher {
    fn start(world: &World) -> Self {
        let (stop, seen) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (store, gate) = (world.store.clone(), world.gate_client());
        let (ended, looks) = (Arc::clone(&stop), Arc::clone(&seen));
        let task = tokio::spawn(async move {
            let mut broken = Vec::new();
            while !ended.load(Ordering::SeqCst) {
                // A look that fails, because the machine has too much to do, is no look.
                if let Ok(mut conn) = store.conn().await {
                    let rows: Result<Vec<String>, sqlx::Error> = sqlx::query_scalar(
                        "select sku || ': ' || held || ' held, ' || sold || ' sold of ' || on_hand
                         from stock where held < 0 or sold < 0 or held + sold > on_hand",
                    )
                    .fetch_all(&mut *conn)
                    .await;
                    if let Ok(rows) = rows {
                        broken.extend(rows);
                        looks.fetch_add(1, Ordering::SeqCst);
                    }
                }
                if let Ok(snapshot) = gate.snapshot(Shard(0)).await {
                    let below = snapshot.gates.iter().filter(|(_, row)| row.held < 0);
                    broken.extend(
                        below.map(|(sku, row)| format!("{sku}: the gate holds {}", row.held)),
                    );
                }
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
            broken
        });
        Self { stop, seen, task }
    }

    /// Ends the watch; nothing was ever out of bounds.
    async fn saw_nothing(self) {
        self.stop.store(true, Ordering::SeqCst);
        let broken = match self.task.await {
            Ok(broken) => broken,
            Err(error) => panic!("{error}"),
        };
        assert!(broken.is_empty(), "{broken:?}");
        assert!(
            self.seen.load(Ordering::SeqCst) > 1,
            "the watcher never looked"
        );
    }
}
