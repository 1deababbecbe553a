//! Classes H and J: Redis goes back in time, turns read-only, forgets its scripts or is away. It
//! only ever spared PostgreSQL the crowd, so nothing is oversold and nobody is told wrong.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use cli::servers::native;
use serde_json::json;
use tests::{Options, World, wait::wait_within, wait_for};

use super::{
    count, gate_row, place_many, private_redis, redis_command, rush, wait_for_held, wait_until_read,
};
use crate::upstream::Upstream;

async fn on(redis: &native::Redis, more: Options) -> World {
    World::with(Options {
        redis_url: Some(redis.url()),
        ..more
    })
    .await
}

fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp")
        .arg("-r")
        .args([from, to])
        .status();
    assert!(
        copied.is_ok_and(|status| status.success()),
        "{} is copied",
        from.display()
    );
}

/// What a fail-over to a replica that lagged does: fifty acknowledged reservations are gone, without
/// any error, and the epoch is the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_went_back_in_time_sells_nothing_twice_and_is_put_right() {
    let mut redis = private_redis("back-in-time").await;
    let without_payment = Options {
        without_payment: true,
        ..Options::default()
    };
    let world = on(&redis, without_payment).await;
    world.operator().put_sku("BACK", 80, &json!({})).await;
    place_many(&world, "BACK", "before", 10).await;
    wait_for_held(&world, "BACK", 10).await;
    let (data, kept) = (redis.home().join("data"), redis.home().join("kept"));
    redis.stop().await;
    copy(&data, &kept);
    if let Err(error) = redis.restart().await {
        panic!("{error}");
    }
    world.gate_open().await;
    place_many(&world, "BACK", "lost", 50).await;
    wait_for_held(&world, "BACK", 60).await;
    redis.kill().await;
    let removed = std::fs::remove_dir_all(&data);
    assert!(removed.is_ok(), "{removed:?}");
    copy(&kept, &data);
    if let Err(error) = redis.restart().await {
        panic!("{error}");
    }
    // The crowd arrives while the gate believes that seventy are left; there are twenty.
    let statuses = rush(&world.shops(), "BACK", "crowd", 100).await;
    assert_eq!(
        (count(&statuses, 201), count(&statuses, 410)),
        (20, 80),
        "{statuses:?}"
    );
    wait_for_held(&world, "BACK", 80).await;
    assert_eq!(rush(&world.shops(), "BACK", "late", 10).await, [410; 10]);
    world.consistent().await;
    let mut world = world;
    world.start_payment();
    world.settled().await;
    assert_eq!(world.operator().get("/v1/skus/BACK").await["sold"], 80);
    world.end().await;
    redis.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_turned_read_only_costs_no_order_and_is_used_again_when_it_heals() {
    let mut redis = private_redis("read-only").await;
    let world = on(&redis, Options::default()).await;
    world.operator().put_sku("READONLY", 100, &json!({})).await;
    place_many(&world, "READONLY", "before", 5).await;
    redis_command(&redis.url(), &["REPLICAOF", "127.0.0.1", "1"]).await;
    let statuses = rush(&world.shops(), "READONLY", "during", 40).await;
    assert_eq!(count(&statuses, 201), 40, "{statuses:?}");
    redis_command(&redis.url(), &["REPLICAOF", "NO", "ONE"]).await;
    wait_within(
        Duration::from_secs(30),
        "the gate to be right again",
        || async {
            let sold = world.count("select sold from stock").await;
            let row = gate_row(&world, "READONLY").await?;
            (sold == 45 && (row.limit, row.held) == (55, 0)).then_some(())
        },
    )
    .await;
    let statuses = rush(&world.shops(), "READONLY", "after", 100).await;
    assert_eq!(
        (count(&statuses, 201), count(&statuses, 410)),
        (55, 45),
        "{statuses:?}"
    );
    world.settled().await;
    world.end().await;
    redis.stop().await;
}

/// A hundred times the loss of the scripts that the case asks for, in a tenth of its time.
#[tokio::test(flavor = "multi_thread")]
async fn scripts_flushed_all_the_while_and_a_restart_cost_no_order() {
    let mut redis = private_redis("flushed").await;
    let world = on(&redis, Options::default()).await;
    world
        .operator()
        .put_sku("NOSCRIPT", 1_000, &json!({}))
        .await;
    let (ended, flushes) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let flusher = tokio::spawn({
        let (url, ended, flushes) = (redis.url(), Arc::clone(&ended), Arc::clone(&flushes));
        async move {
            while !ended.load(Ordering::SeqCst) {
                let flush = async {
                    let client = redis::Client::open(url.as_str())?;
                    let mut connection = client.get_multiplexed_async_connection().await?;
                    let mut command = redis::cmd("SCRIPT");
                    command
                        .arg("FLUSH")
                        .query_async::<()>(&mut connection)
                        .await
                };
                // While Redis restarts there is nothing to flush.
                if flush.await.is_ok() {
                    flushes.fetch_add(1, Ordering::SeqCst);
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    });
    for round in 0..10 {
        if round == 5 {
            redis.kill().await;
            if let Err(error) = redis.restart().await {
                panic!("{error}");
            }
        }
        let statuses = rush(&world.shops(), "NOSCRIPT", &format!("round-{round}"), 50).await;
        assert_eq!(count(&statuses, 201), 50, "{statuses:?}");
    }
    ended.store(true, Ordering::SeqCst);
    assert!(flusher.await.is_ok());
    assert!(
        flushes.load(Ordering::SeqCst) > 10,
        "hardly anything was flushed"
    );
    assert_eq!(world.count("select count(*) from orders").await, 500);
    world.settled().await;
    assert_eq!(world.operator().get("/v1/skus/NOSCRIPT").await["sold"], 500);
    world.end().await;
    redis.stop().await;
}

/// An outage is no poison: what comes while Redis is away is settled, and nothing is set aside.
#[tokio::test(flavor = "multi_thread")]
async fn payments_that_come_while_redis_is_away_are_settled_and_none_is_set_aside() {
    let mut redis = private_redis("settling").await;
    let upstream = Options {
        upstream: true,
        ..Options::default()
    };
    let world = on(&redis, upstream).await;
    world.operator().put_sku("AWAY", 100, &json!({})).await;
    let orders = place_many(&world, "AWAY", "away", 60).await;
    redis.kill().await;
    let payments = Upstream::new(&world);
    for (number, order) in orders.iter().enumerate() {
        let (event, payment) = (format!("e-{number}"), format!("p-{number}"));
        if number % 3 == 0 {
            payments.fails(&event, &payment, order, true).await;
        } else {
            payments.pays(&event, &payment, order).await;
        }
    }
    payments.handled(60).await;
    let ends = "select count(*) from orders where status = ";
    assert_eq!(world.count(&format!("{ends}'CONFIRMED'")).await, 40);
    assert_eq!(world.count(&format!("{ends}'CANCELED'")).await, 20);
    assert_eq!(world.count("select count(*) from dead_letters").await, 0);
    drop(payments);
    if let Err(error) = redis.restart().await {
        panic!("{error}");
    }
    wait_until_read(&world).await;
    world.settled().await;
    world.end().await;
    redis.stop().await;
}

/// A boot that writes its own numbers over the gate's forgets what is held; an operator's restock
/// and rebuild come on a running system.
#[tokio::test(flavor = "multi_thread")]
async fn restarts_restocks_and_a_rebuild_in_mid_sale_leave_the_gate_exact() {
    let mut redis = private_redis("mid-sale").await;
    let without_payment = Options {
        without_payment: true,
        ..Options::default()
    };
    let mut world = on(&redis, without_payment).await;
    world.operator().put_sku("BOOT", 40, &json!({})).await;
    place_many(&world, "BOOT", "held", 30).await;
    wait_for_held(&world, "BOOT", 30).await;
    // Every service starts again; what is held stays held.
    for service in [world.stock.take(), world.order.pop()]
        .into_iter()
        .flatten()
    {
        service.stop().await;
    }
    world.start_order();
    world.start_stock();
    world.ready().await;
    wait_for_held(&world, "BOOT", 30).await;
    let statuses = rush(&world.shops(), "BOOT", "booted", 30).await;
    assert_eq!(
        (count(&statuses, 201), count(&statuses, 410)),
        (10, 20),
        "{statuses:?}"
    );
    // All keys go while orders and a restock arrive.
    let (operator, shops) = (world.operator(), world.shops());
    let restock = async {
        redis_command(&redis.url(), &["FLUSHALL"]).await;
        let body = json!({ "delta": 20, "reason": "restock" });
        let path = "/v1/skus/BOOT/adjustments";
        let answer = operator
            .ask(http::Method::POST, path, Some("restock"), Some(&body))
            .await;
        assert_eq!(answer.status, 201);
    };
    let (statuses, ()) = tokio::join!(rush(&shops, "BOOT", "rebuilt", 50), restock);
    assert!(
        statuses.iter().all(|status| [201, 410].contains(status)),
        "{statuses:?}"
    );
    wait_for("the gate to be rebuilt", || async {
        let row = gate_row(&world, "BOOT").await?;
        let held = world.count("select held from stock").await;
        ((row.limit, row.held) == (60, held)).then_some(())
    })
    .await;
    let rest = 20 - count(&statuses, 201);
    let statuses = rush(&shops, "BOOT", "rest", 40).await;
    assert_eq!(count(&statuses, 201), rest, "{statuses:?}");
    world.consistent().await;
    world.end().await;
    redis.stop().await;
}
