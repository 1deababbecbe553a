//! Redis may forget, lie or be slow; PostgreSQL decides, and Redis is made to match.

use std::time::Duration;

use cli::servers::{Ports, native};
use contracts::{HoldId, Line, Quantity, Sku};
use domain::{Buyer, Hold, Shard};
use futures::future::join_all;
use reservations::{Gate, ReserveOutcome};
use serde_json::json;
use tests::{Options, World, api, wait::wait_within, wait_for, world::private_dir};

fn hold(name: &str, sku: &str, units: i64) -> Hold {
    hold_of(HoldId::derive("test", "ghost", name), "ghost", sku, units)
}

fn hold_of(hold_id: HoldId, customer: &str, sku: &str, units: i64) -> Hold {
    let (Ok(sku), Ok(quantity)) = (Sku::parse(sku), Quantity::new(units)) else {
        panic!("{sku} {units}")
    };
    let (Ok(shop), Ok(customer)) = ("shop".parse(), customer.parse()) else {
        panic!("names")
    };
    Hold {
        hold_id,
        buyer: Buyer { shop, customer },
        lines: vec![Line { sku, quantity }],
    }
}

/// -1 when the gate does not know the SKU, or says nothing.
pub(crate) async fn held_at_gate(gate: &Gate, sku: &str) -> i64 {
    let snapshot = gate.snapshot(Shard(0)).await.ok();
    let row = snapshot.and_then(|snapshot| {
        let mut gates = snapshot.gates.into_iter();
        gates.find(|(known, _)| known.as_str() == sku)
    });
    row.map_or(-1, |(_, row)| row.held)
}

/// The epoch of an open gate.
async fn open_epoch(gate: &Gate) -> String {
    wait_for("the gate to say that it is open", || async {
        let epoch = gate.current_epoch(Shard(0)).await.ok()??;
        epoch.open.then_some(epoch.epoch)
    })
    .await
}

/// A unit that is held at the gate by nobody is refused to others, and is back within 7 s. `false`
/// when the other order went past the gate, which was slow: that shows nothing.
async fn orphan_comes_back(world: &World, round: usize) -> bool {
    let sku = format!("ORPHAN-{round}");
    world.operator().put_sku(&sku, 1, &json!({})).await;
    let gate = world.gate_client();
    let epoch = open_epoch(&gate).await;
    // The owner reserved at the gate and died before its transaction.
    let now = platform::clock::now().timestamp_millis();
    let dead = hold(&format!("dead-{round}"), &sku, 1);
    wait_for("the orphan's hold", || async {
        let outcomes = gate
            .reserve(Shard(0), now, std::slice::from_ref(&dead))
            .await;
        // Known when the reply to the first attempt was lost.
        matches!(outcomes[..], [ReserveOutcome::Ok | ReserveOutcome::Known]).then_some(())
    })
    .await;
    let shop = world.shop();
    let body = api::order("c-1", &[(&sku, 1)]);
    let meanwhile = shop.decide(&format!("meanwhile-{round}"), &body).await;
    if meanwhile.status == 201 {
        return false;
    }
    // PostgreSQL holds nothing, so only the gate can have said so.
    assert_eq!(meanwhile.status, 410);
    wait_within(Duration::from_secs(7), "the unit to come back", || async {
        (held_at_gate(&gate, &sku).await == 0).then_some(())
    })
    .await;
    assert_eq!(open_epoch(&gate).await, epoch, "it was not built anew");
    let afterwards = shop.decide(&format!("afterwards-{round}"), &body).await;
    api::accepted(&afterwards);
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_whose_owner_died_is_given_back_within_seven_seconds() {
    let world = World::start().await;
    let mut round = 0;
    while !orphan_comes_back(&world, round).await {
        round += 1;
        assert!(round < 10, "no order was ever refused by the gate");
    }
    world.settled().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_sync_is_healed_by_the_sweep() {
    // Without a stock service nothing settles; the test settles in PostgreSQL alone, as a process
    // does that dies before its sync, and then lets the sweep run.
    let mut world = World::with(Options {
        without_payment: true,
        ..Options::default()
    })
    .await;
    world.operator().put_sku("LOST", 3, &json!({})).await;
    let order = api::accepted(
        &world
            .shop()
            .decide("lost", &api::order("c", &[("LOST", 1)]))
            .await,
    );
    let gate = world.gate_client();
    wait_for("the hold at the gate", || async {
        (held_at_gate(&gate, "LOST").await == 1).then_some(())
    })
    .await;
    if let Some(stock) = world.stock.take() {
        stock.stop().await;
    }
    cancel_in_postgres(&world, &order).await;
    let held = wait_for("the gate to answer", || async {
        Some(held_at_gate(&gate, "LOST").await).filter(|held| *held >= 0)
    })
    .await;
    assert_eq!(held, 1, "nobody told the gate");
    world.start_stock();
    wait_within(Duration::from_secs(40), "the gate to follow", || async {
        (held_at_gate(&gate, "LOST").await == 0).then_some(())
    })
    .await;
    world.settled().await;
    world.end().await;
}

async fn cancel_in_postgres(world: &World, order: &str) {
    use domain::{EndReason, OrderStatus};
    let cancel = async {
        let mut tx = world.store.begin().await?;
        let Ok(id) = order.parse() else {
            panic!("{order}")
        };
        let orders = store::orders::lock(&mut tx, &[id]).await?;
        let endings: Vec<store::orders::Ending> = orders
            .iter()
            .map(|order| store::orders::Ending {
                order,
                to: OrderStatus::Canceled,
                cause: "cancel".to_owned(),
                reason: EndReason::Canceled.as_str().to_owned(),
            })
            .collect();
        let now = platform::clock::now();
        store::orders::transition(&mut tx, &endings, now, contracts::envelope::source::STOCK)
            .await?;
        tx.commit().await
    };
    if let Err(error) = cancel.await {
        panic!("{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn flushall_between_reserve_and_settle_oversells_nothing_and_forgets_no_key() {
    let mut redis = match native::Redis::start(&private_dir("flushall"), Ports::Free).await {
        Ok(redis) => redis,
        Err(error) => panic!("a test needs its Redis: {error}"),
    };
    let world = World::with(Options {
        redis_url: Some(redis.url()),
        without_payment: true,
        ..Options::default()
    })
    .await;
    world.operator().put_sku("FLUSH", 20, &json!({})).await;
    let shop = world.shop();
    let mut kept = Vec::new();
    for number in 0..10 {
        let body = api::order(&format!("c-{number}"), &[("FLUSH", 1)]);
        let key = format!("before-{number}");
        let order = api::accepted(&shop.decide(&key, &body).await);
        kept.push((key, body, order));
    }
    flushall(&redis.url()).await;
    // The crowd comes back while Redis knows nothing.
    let statuses: Vec<u16> = join_all((0..40).map(|number| {
        let shop = shop.clone();
        async move {
            let body = api::order(&format!("late-{number}"), &[("FLUSH", 1)]);
            shop.decide(&format!("after-{number}"), &body)
                .await
                .status
                .as_u16()
        }
    }))
    .await;
    let accepted = statuses.iter().filter(|status| **status == 201).count();
    assert_eq!(accepted, 10, "{statuses:?}");
    assert!(
        statuses.iter().all(|status| [201, 410].contains(status)),
        "{statuses:?}"
    );
    for (key, body, order) in &kept {
        let again = shop.decide(key, body).await;
        assert_eq!(
            &api::accepted(&again),
            order,
            "an accepted key keeps its 201"
        );
    }
    world.consistent().await;
    let mut world = world;
    world.start_payment();
    world.settled().await;
    assert_eq!(world.operator().get("/v1/skus/FLUSH").await["sold"], 20);
    world.end().await;
    redis.stop().await;
}

async fn flushall(url: &str) {
    let flush = async {
        let client = redis::Client::open(url)?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        redis::cmd("FLUSHALL")
            .query_async::<()>(&mut connection)
            .await
    };
    if let Err(error) = flush.await {
        panic!("{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn drift_planted_at_the_gate_is_repaired() {
    let world = World::with(Options {
        without_payment: true,
        ..Options::default()
    })
    .await;
    world.operator().put_sku("DRIFT", 10, &json!({})).await;
    api::accepted(
        &world
            .shop()
            .decide("d", &api::order("c", &[("DRIFT", 2)]))
            .await,
    );
    let gate = world.gate_client();
    wait_for("the hold at the gate", || async {
        (held_at_gate(&gate, "DRIFT").await == 2).then_some(())
    })
    .await;
    let epoch = match gate.current_epoch(Shard(0)).await {
        Ok(Some(epoch)) => epoch.epoch,
        other => panic!("{other:?}"),
    };
    let key = format!("{}:{{0}}:{epoch}:gate:DRIFT", world.key_prefix);
    let plant = async {
        let client = redis::Client::open(world.redis_url.as_str())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        redis::cmd("HINCRBY")
            .arg(&key)
            .arg("held")
            .arg(7)
            .query_async::<i64>(&mut connection)
            .await
    };
    match plant.await {
        Ok(held) => assert_eq!(held, 9, "the drift was planted where the gate is"),
        Err(error) => panic!("{error}"),
    }
    wait_within(
        Duration::from_secs(30),
        "the drift to be repaired",
        || async { (held_at_gate(&gate, "DRIFT").await == 2).then_some(()) },
    )
    .await;
    world.consistent().await;
    world.end().await;
}

/// How often the server has removed from a hash, inside scripts too: a hold leaves the gate by HDEL
/// first (P3).
async fn removals(url: &str) -> u64 {
    let asked = async {
        let client = redis::Client::open(url)?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        redis::cmd("INFO")
            .arg("commandstats")
            .query_async::<String>(&mut connection)
            .await
    };
    let stats = match asked.await {
        Ok(stats) => stats,
        Err(error) => panic!("{error}"),
    };
    let calls = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_hdel:calls="))
        .and_then(|rest| rest.split(',').next()?.parse().ok());
    calls.unwrap_or(0)
}

/// The gate refuses the replays of a key, which are looked up and queue the hold of their order for a
/// sync, all at once: it is kept, once, and is never gone in between.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_is_queued_many_times_for_a_sync_is_never_released() {
    let mut redis = match native::Redis::start(&private_dir("twins"), Ports::Free).await {
        Ok(redis) => redis,
        Err(error) => panic!("a test needs its Redis: {error}"),
    };
    let mut world = World::with(Options {
        redis_url: Some(redis.url()),
        without_payment: true,
        ..Options::default()
    })
    .await;
    let shop = world.shop();
    let skus = ["TWINS", "WITNESS"];
    for sku in skus {
        world.operator().put_sku(sku, 9, &json!({})).await;
        api::accepted(&shop.decide(sku, &api::order("c", &[(sku, 1)])).await);
        is_at_gate(&world, sku).await;
    }
    // From now on nobody but the replays tells the gate of holds.
    if let Some(stock) = world.stock.take() {
        stock.stop().await;
    }
    for sku in skus {
        end_sale_and_forget(&world, sku).await;
    }
    let before = removals(&redis.url()).await;
    let twin = api::order("c", &[("TWINS", 1)]);
    let replays = join_all((0..60).map(|_| shop.decide("TWINS", &twin))).await;
    assert!(replays.iter().all(|replay| replay.replayed()));
    // What was queued before it is done when the witness is.
    let witness = api::order("c", &[("WITNESS", 1)]);
    api::accepted(&shop.decide("WITNESS", &witness).await);
    is_at_gate(&world, "WITNESS").await;
    is_at_gate(&world, "TWINS").await;
    let released = removals(&redis.url()).await - before;
    assert_eq!(released, 0, "the hold of an order that lives was released");
    world.end().await;
    redis.stop().await;
}

/// The hold of the order that has its SKU as key.
fn placed(sku: &str) -> Hold {
    let id = HoldId::derive("shop", "POST /v1/orders", sku);
    hold_of(id, "c", sku, 1)
}

async fn is_at_gate(world: &World, sku: &str) {
    let (gate, hold) = (world.gate_client(), placed(sku));
    wait_for(&format!("the hold of {sku} at the gate"), || async {
        let snapshot = gate.snapshot(Shard(0)).await.ok()?;
        snapshot.holds.contains_key(&hold.hold_id).then_some(())
    })
    .await;
}

/// The gate refuses a key whose sale is over and whose hold it does not know.
async fn end_sale_and_forget(world: &World, sku: &str) {
    let (gate, hold) = (world.gate_client(), placed(sku));
    wait_for("the gate to know that the sale is over", || async {
        let over =
            json!({ "opens_at": "2020-01-01T00:00:00Z", "closes_at": "2020-01-02T00:00:00Z" });
        world.operator().put_sku(sku, 9, &over).await;
        let snapshot = gate.snapshot(Shard(0)).await.ok()?;
        let mut gates = snapshot.gates.iter();
        let (_, row) = gates.find(|(known, _)| known.as_str() == sku)?;
        row.closes_at_ms.map(|_| ())
    })
    .await;
    wait_for("the gate to forget", || async {
        gate.release(Shard(0), std::slice::from_ref(&hold), &[])
            .await
            .ok()?;
        let snapshot = gate.snapshot(Shard(0)).await.ok()?;
        (!snapshot.holds.contains_key(&hold.hold_id)).then_some(())
    })
    .await;
}
