//! The gate is made to match PostgreSQL, whatever it lost.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use reservations::ReserveOutcome;
use stock::{
    RepairDrift,
    rebuild_gate::{Rebuilt, rebuild_if_lost},
    sweep_holds::sweep_holds,
    sync_gate::{sync_orders, sync_skus, sync_views},
};

use crate::support::{SHARD, World, completed, failed, hold, sku};

async fn reserve(
    world: &World,
    key: &str,
    customer: &str,
    lines: &[(&str, i64)],
) -> ReserveOutcome {
    let holds = [hold(key, customer, lines)];
    let now = world
        .value::<i64>("select (extract(epoch from now()) * 1000)::bigint")
        .await;
    world.stock.gate.reserve(SHARD, now, &holds).await[0]
}

/// Sweeps until nothing more is due: the server's clock must pass a millisecond.
async fn sweep(world: &World) -> stock::sweep_holds::Swept {
    for _ in 0..1_000 {
        let swept = sweep_holds(&world.stock).await.unwrap();
        if swept.due > 0 {
            return swept;
        }
    }
    panic!("nothing was ever due");
}

pub(crate) async fn key(world: &World, suffix: &str) -> String {
    let pattern = format!("{}:*{suffix}", world.prefix);
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg(pattern)
        .query_async(&mut world.redis.clone())
        .await
        .unwrap();
    keys.into_iter()
        .max()
        .unwrap_or_else(|| panic!("no key ends in {suffix}"))
}

pub(crate) async fn redis_do(world: &World, args: &[&str]) {
    let mut command = redis::cmd(args[0]);
    command.arg(&args[1..]);
    let _: redis::Value = command.query_async(&mut world.redis.clone()).await.unwrap();
}

async fn wipe(world: &World) {
    let pattern = format!("{}:*", world.prefix);
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg(pattern)
        .query_async(&mut world.redis.clone())
        .await
        .unwrap();
    let _: i64 = redis::cmd("DEL")
        .arg(keys)
        .query_async(&mut world.redis.clone())
        .await
        .unwrap();
}

#[tokio::test]
async fn a_hold_whose_owner_died_is_released_and_one_with_an_order_is_kept() {
    let world = World::with_gate().await;
    assert_eq!(
        reserve(&world, "orphan", "c", &[("A", 3)]).await,
        ReserveOutcome::Ok
    );
    let swept = sweep(&world).await;
    assert_eq!((swept.orphaned, swept.kept), (1, 0));
    world.assert_gate_agrees().await;

    let placed = world.place_with_hold("c", &[("A", 2)]).await;
    let swept = sweep(&world).await;
    assert_eq!((swept.orphaned, swept.kept), (0, 1));
    world
        .deliver(&[completed("p", placed.order, placed.total)])
        .await;
    world.assert_gate_agrees().await;
}

#[tokio::test]
async fn a_lost_sync_is_healed_by_the_sweep() {
    let world = World::with_gate().await;
    let paid = world.place_with_hold("c", &[("A", 2)]).await;
    let unpaid = world.place_with_hold("c", &[("A", 1)]).await;
    world
        .deliver_and_die(&[
            completed("p1", paid.order, paid.total),
            failed("p2", unpaid.order, true),
        ])
        .await;
    let before = world.stock.gate.snapshot(SHARD).await.unwrap();
    assert_eq!(before.holds.len(), 2, "nothing has told the gate");
    let swept = sweep(&world).await;
    assert_eq!((swept.committed, swept.released), (1, 1));
    world.assert_gate_agrees().await;
}

#[tokio::test]
async fn a_duplicate_event_syncs_again() {
    let world = World::with_gate().await;
    let paid = world.place_with_hold("c", &[("A", 2)]).await;
    let news = [completed("p1", paid.order, paid.total)];
    world.deliver(&news).await;
    // The gate has lost the commit (a copy from before was promoted).
    world
        .stock
        .gate
        .keep(SHARD, &[paid.hold], &[], std::time::Duration::ZERO)
        .await
        .unwrap();
    world.deliver(&news).await;
    world.assert_gate_agrees().await;
}

#[tokio::test]
async fn a_lost_gate_is_rebuilt_with_holds_limits_and_buyers() {
    let world = World::with_gate().await;
    world.sku("L", 50, Some(5)).await;
    sync_skus(&world.stock, &[sku("L")]).await.unwrap();
    let paid = world.place_with_hold("c-1", &[("A", 1), ("L", 2)]).await;
    world.place_with_hold("c-2", &[("L", 4)]).await;
    world.place_with_hold("c-3", &[("A", 7)]).await;
    world
        .deliver(&[completed("p", paid.order, paid.total)])
        .await;
    world.assert_gate_agrees().await;
    wipe(&world).await;
    assert_eq!(
        reserve(&world, "k", "c", &[("A", 1)]).await,
        ReserveOutcome::NoGate
    );
    let rebuilt = rebuild_if_lost(&world.stock, SHARD).await.unwrap();
    assert!(
        matches!(rebuilt, Rebuilt::Rebuilt { holds: 2, .. }),
        "{rebuilt:?}"
    );
    assert_eq!(
        rebuild_if_lost(&world.stock, SHARD).await.unwrap(),
        Rebuilt::Healthy
    );
    world.assert_gate_agrees().await;
    // Sold units count against the limit, although no hold says so.
    assert_eq!(
        reserve(&world, "over", "c-1", &[("L", 4)]).await,
        ReserveOutcome::Limit
    );
}

#[tokio::test]
async fn a_rebuild_that_died_half_way_is_done_again() {
    let world = World::with_gate().await;
    world.place_with_hold("c", &[("A", 7)]).await;
    wipe(&world).await;
    world
        .stock
        .gate
        .begin_epoch(SHARD, "0-dead", None)
        .await
        .unwrap();
    assert_eq!(
        reserve(&world, "k", "c", &[("A", 1)]).await,
        ReserveOutcome::NoGate
    );
    let rebuilt = rebuild_if_lost(&world.stock, SHARD).await.unwrap();
    assert!(matches!(rebuilt, Rebuilt::Rebuilt { .. }), "{rebuilt:?}");
    world.assert_gate_agrees().await;
    assert!(
        world
            .stock
            .gate
            .snapshot(SHARD)
            .await
            .unwrap()
            .stray
            .is_empty()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn orders_that_come_during_the_rebuild_are_in_it() {
    let world = Arc::new(World::with_gate().await);
    world.sku("B", 100_000, None).await;
    for number in 0..600 {
        world
            .place(&format!("c-{number}"), &[("B", 1)], 600.0)
            .await;
    }
    wipe(&world).await;
    let stop = Arc::new(AtomicBool::new(false));
    let coming = tokio::spawn({
        let (world, stop) = (Arc::clone(&world), Arc::clone(&stop));
        async move {
            let mut count = 0_u32;
            while !stop.load(Ordering::Relaxed) {
                let placed = world.place(&format!("d-{count}"), &[("B", 1)], 600.0).await;
                // DIRECT: the accept without the gate, then `keep`.
                sync_orders(&world.stock, &[placed.order]).await.unwrap();
                if count.is_multiple_of(3) {
                    let news = [completed(&format!("p{count}"), placed.order, placed.total)];
                    world.deliver(&news).await;
                }
                count += 1;
            }
            count
        }
    });
    // Two replicas rebuild at once, thrice.
    for _ in 0..3 {
        let (one, two) = tokio::join!(
            rebuild_if_lost(&world.stock, SHARD),
            rebuild_if_lost(&world.stock, SHARD)
        );
        let rebuilt = [one.unwrap(), two.unwrap()];
        assert!(
            rebuilt
                .iter()
                .any(|one| matches!(one, Rebuilt::Rebuilt { .. })),
            "{rebuilt:?}"
        );
        let epoch = world
            .stock
            .gate
            .current_epoch(SHARD)
            .await
            .unwrap()
            .unwrap();
        assert!(epoch.open);
        wipe(&world).await;
    }
    rebuild_if_lost(&world.stock, SHARD).await.unwrap();
    stop.store(true, Ordering::Relaxed);
    assert!(coming.await.unwrap() > 0, "no order came meanwhile");
    // What ended between a page and its `keep` is an extra hold: the sweep takes it.
    sweep(&world).await;
    world.assert_gate_agrees().await;
    world.assert_invariants().await;
}

#[tokio::test]
async fn drift_that_is_seen_twice_is_repaired() {
    let world = World::with_gate().await;
    world.sku("L", 50, Some(5)).await;
    sync_skus(&world.stock, &[sku("L")]).await.unwrap();
    let missing = world.place_with_hold("c-1", &[("A", 1)]).await;
    let ended = world.place_with_hold("c-2", &[("A", 2)]).await;
    world.place_with_hold("c-3", &[("L", 3)]).await;
    world.assert_gate_agrees().await;

    // A lost write, a lost commit, a lost restock, wrong units of a buyer.
    world
        .stock
        .gate
        .release(SHARD, &[missing.hold], &[])
        .await
        .unwrap();
    world
        .deliver_and_die(&[completed("p", ended.order, ended.total)])
        .await;
    world
        .execute("update stock set on_hand = on_hand + 5, version = version + 1 where sku = 'L'")
        .await;
    world.execute("insert into stock_adjustments (id, request_id, fingerprint, sku, delta, reason, on_hand, held, sold, version) values (gen_random_uuid(), gen_random_uuid(), '', 'L', 5, 'x', 55, 3, 0, 2)").await;
    let buyers = key(&world, ":buyers:L").await;
    redis_do(&world, &["HSET", &buyers, "shop/c-9", "4"]).await;

    let drift = RepairDrift::new(world.stock.clone());
    let first = drift.look().await.unwrap();
    assert_eq!(
        (first.registers, first.holds, first.buyers),
        (0, 0, 0),
        "one sighting is none"
    );
    for _ in 0..3 {
        drift.look().await.unwrap();
    }
    world.assert_gate_agrees().await;
    let after = drift.look().await.unwrap();
    assert_eq!(after, stock::Repaired::default(), "nothing more to do");
}

#[tokio::test]
async fn what_was_read_before_an_order_ended_brings_no_hold_back() {
    let world = World::with_gate().await;
    let placed = world.place_with_hold("c-1", &[("A", 1)]).await;
    let of_order = [placed.order];
    let read = store::holds::of_orders(&world.stock.store, &of_order).await;
    let views: Vec<_> = read.unwrap().into_iter().map(|(_, view)| view).collect();
    assert_eq!(views[0].state, domain::HoldState::Live);
    world
        .deliver(&[completed("p", placed.order, placed.total)])
        .await;
    let late = BTreeMap::from([(SHARD, views)]);
    let report = sync_views(&world.stock, late).await.unwrap();
    assert_eq!((report.added, report.ended), (1, 1));
    world.assert_gate_agrees().await;
}

#[tokio::test]
async fn a_gate_that_raves_gets_a_new_epoch() {
    let damages: [&[&str]; 5] = [
        &["SET", "gate", "a text"],
        &["HSET", "gate", "held", "77"],
        &["HSET", "gate", "version", "999", "limit", "5"],
        &["HSET", "gate", "limit", "5"],
        &["HSET", "gate", "held", "many"],
    ];
    for damage in damages {
        let world = World::with_gate().await;
        world.place_with_hold("c-1", &[("A", 1)]).await;
        let gate = key(&world, ":gate:A").await;
        let mut args = damage.to_vec();
        args[1] = &gate;
        redis_do(&world, &args).await;
        let drift = RepairDrift::new(world.stock.clone());
        let mut rebuilt = false;
        for _ in 0..6 {
            rebuilt |= drift.look().await.unwrap().rebuilt;
        }
        assert!(rebuilt, "{damage:?} was not noticed");
        world.assert_gate_agrees().await;
    }
}

#[tokio::test]
async fn keys_of_a_wrong_type_are_met_by_the_sweep_and_rebuilt_at_once() {
    let world = World::with_gate().await;
    world.place_with_hold("c-1", &[("A", 1)]).await;
    let drift = RepairDrift::new(world.stock.clone());
    for damaged in [":holds", ":due"] {
        // The look that compares everything is behind us; the next one would be in a minute.
        assert!(!drift.look().await.unwrap().rebuilt);
        let there = key(&world, damaged).await;
        redis_do(&world, &["SET", &there, "a text"]).await;
        assert!(!drift.look().await.unwrap().rebuilt);
        let swept = stock::sweep_holds::sweep_or_doubt(&world.stock, &drift).await;
        assert!(!swept.unwrap_err().is_transient(), "{damaged}");
        assert!(drift.look().await.unwrap().rebuilt, "{damaged}");
        world.assert_gate_agrees().await;
    }
}

#[tokio::test]
async fn a_hold_of_an_accept_under_way_is_left_alone() {
    let world = World::with_gate().await;
    assert_eq!(
        reserve(&world, "young", "c", &[("A", 1)]).await,
        ReserveOutcome::Ok
    );
    let drift = RepairDrift::new(world.stock.clone());
    for _ in 0..4 {
        drift.look().await.unwrap();
    }
    assert_eq!(
        world.stock.gate.snapshot(SHARD).await.unwrap().holds.len(),
        1
    );
}

#[tokio::test]
async fn nothing_is_decided_while_redis_is_away() {
    let world = World::with_gate().await;
    let placed = world.place_with_hold("c", &[("A", 1)]).await;
    let away = stock::Stock {
        store: world.stock.store.clone(),
        gate: reservations::Gate::new(reservations::GateConfig::new("redis://127.0.0.1:1"))
            .unwrap(),
    };
    assert!(sweep_holds(&away).await.unwrap_err().is_transient());
    assert!(
        rebuild_if_lost(&away, SHARD)
            .await
            .unwrap_err()
            .is_transient()
    );
    // Settlement does not need it, and what it could not sync the sweep heals.
    let handler = stock::SettleOrders::new(away);
    let news = completed("p", placed.order, placed.total);
    world.deliver_by(&handler, &[news]).await.unwrap();
    assert_eq!(world.status(placed.order).await, "CONFIRMED");
    assert_eq!(sweep(&world).await.committed, 1);
    world.assert_gate_agrees().await;
}
