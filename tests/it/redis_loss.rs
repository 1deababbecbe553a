//! Redis loses everything, or wakes up with yesterday's memory, in mid-sale: orders keep coming, no
//! answer is wrong, and the gate is exact again by itself (P10). Each way of noticing has a test
//! that the others would not pass: a missing epoch, another server, drift.

use std::{path::Path, time::Duration};

use cli::servers::{Ports, native};
use domain::Shard;
use futures::future::join_all;
use serde_json::json;
use tests::{
    Api, Options, World, api,
    proxy::{Fault, Kind, Rule},
    wait::wait_within,
    world::private_dir,
};

/// Drift is gone within 8 s (P10), the rebuild within 5 s (F25); with room for a busy machine.
const EXACT_WITHIN: Duration = Duration::from_secs(20);

async fn redis(name: &str) -> native::Redis {
    match native::Redis::start(&private_dir(name), Ports::Free).await {
        Ok(redis) => redis,
        Err(error) => panic!("a test needs its Redis: {error}"),
    }
}

async fn world_on(redis: &native::Redis) -> World {
    World::with(Options {
        redis_url: Some(redis.url()),
        without_payment: true,
        ..Options::default()
    })
    .await
}

async fn ask(url: &str, command: &str) {
    let ask = async {
        let client = redis::Client::open(url)?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        redis::cmd(command).query_async::<()>(&mut connection).await
    };
    if let Err(error) = ask.await {
        panic!("{error}");
    }
}

/// Keys with their bodies and orders, that must keep their answer.
type Accepted = Vec<(String, serde_json::Value, String)>;

async fn place(shop: &Api, sku: &str, name: &str, count: usize) -> Accepted {
    let mut accepted = Vec::new();
    for number in 0..count {
        let body = api::order(&format!("{name}-{number}"), &[(sku, 1)]);
        let key = format!("{name}-{number}");
        let order = api::accepted(&shop.place_until_decided(&key, &body).await);
        accepted.push((key, body, order));
    }
    accepted
}

async fn every_key_keeps_its_answer(shop: &Api, accepted: &Accepted) {
    for (key, body, order) in accepted {
        let again = shop.place_until_decided(key, body).await;
        assert_eq!(&api::accepted(&again), order, "{key}");
    }
}

/// Until the gate is what PostgreSQL says; how long that took.
async fn exact(world: &World) -> Duration {
    let begun = platform::clock::monotonic();
    wait_within(EXACT_WITHIN, "the gate to be exact again", || async {
        let checks = world.checks().await;
        let gate = checks
            .iter()
            .filter(|c| ["I10", "I14", "I20"].contains(&&*c.id));
        gate.clone().all(|check| check.ok).then_some(())
    })
    .await;
    begun.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_wiped_while_a_replica_is_stopped_with_work_in_flight() {
    let mut redis = redis("wiped").await;
    let mut world = world_on(&redis).await;
    world.operator().put_sku("WIPED", 30, &json!({})).await;
    // The second replica's way to PostgreSQL can be stopped.
    world.proxy_database().await;
    world.start_order();
    world.ready().await;
    let shops = world.shops();
    let before = place(&shops[0], "WIPED", "before", 10).await;
    let warm = place(&shops[1], "WIPED", "warm", 1).await;

    let Some(proxy) = &world.proxy else {
        panic!("no proxy")
    };
    let stopping = Fault::DelayRequest(Duration::from_secs(6));
    let stop = proxy.add(Rule::new(Kind::Begin, stopping));
    let stopped = tokio::spawn(join_all((0..5).map(|number| {
        let shop = shops[1].clone();
        async move {
            let body = api::order(&format!("stopped-{number}"), &[("WIPED", 1)]);
            let key = format!("stopped-{number}");
            shop.place(&key, &body).await.status.as_u16()
        }
    })));
    // They are at the gate and not in the database.
    let gate = world.gate_client();
    wait_within(Duration::from_secs(5), "their holds", || async {
        let snapshot = gate.snapshot(Shard(0)).await.ok()?;
        (snapshot.holds.len() >= 16).then_some(())
    })
    .await;
    ask(&redis.url(), "FLUSHALL").await;
    let during = place(&shops[0], "WIPED", "during", 9).await;
    let took = exact_but_for(&world, 5).await;
    tracing::info!(duration_ms = took.as_millis(), "the gate is open again");
    // The replica wakes up long after its requests were received: it accepts none of them.
    for status in stopped.await.into_iter().flatten() {
        assert!(status == 503, "a stale request was answered {status}");
    }
    assert!(stop.bites() > 0, "nothing was in flight");
    proxy.clear();
    exact(&world).await;
    let all: Accepted = before.into_iter().chain(warm).chain(during).collect();
    every_key_keeps_its_answer(&shops[1], &all).await;
    // Ten units are left, by PostgreSQL and by the gate.
    place(&shops[1], "WIPED", "after", 10).await;
    let late = shops[0]
        .place_until_decided("late", &api::order("late", &[("WIPED", 1)]))
        .await;
    assert_eq!(late.status, 410);
    world.consistent().await;
    world.end().await;
    redis.stop().await;
}

/// Until the shard has an open gate again that holds no more than `slack` units too many.
async fn exact_but_for(world: &World, slack: i64) -> Duration {
    let begun = platform::clock::monotonic();
    let gate = world.gate_client();
    wait_within(EXACT_WITHIN, "the gate to be open again", || async {
        let live = world
            .count("select count(*) from orders where status = 'RESERVED'")
            .await;
        let snapshot = gate.snapshot(Shard(0)).await.ok()?;
        let open = snapshot.epoch.as_ref().is_some_and(|epoch| epoch.open);
        let held: i64 = snapshot.gates.values().map(|row| row.held).sum();
        (open && (live..=live + slack).contains(&held)).then_some(())
    })
    .await;
    begun.elapsed()
}

/// A copy of what Redis has on disk, to be put back later.
fn copy(from: &Path, to: &Path) {
    let copied = std::fs::create_dir_all(to).and_then(|()| {
        for entry in std::fs::read_dir(from)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                copy(&entry.path(), &to.join(entry.file_name()));
            } else {
                std::fs::copy(entry.path(), to.join(entry.file_name()))?;
            }
        }
        Ok(())
    });
    if let Err(error) = copied {
        panic!("{}: {error}", from.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_set_back_to_an_old_copy_is_made_to_follow() {
    let mut redis = redis("set-back").await;
    let world = world_on(&redis).await;
    world
        .operator()
        .put_sku("OLD", 20, &json!({ "per_customer_limit": 2 }))
        .await;
    let shop = world.shop();
    let first = place(&shop, "OLD", "first", 4).await;
    exact(&world).await;
    let data = redis.home().join("data");
    let old = redis.home().join("old");
    copy(&data, &old);
    // One of them goes, six come: the copy knows of neither.
    let gone = format!("/v1/orders/{}/cancel", first[0].2);
    let canceled = shop
        .ask(
            http::Method::POST,
            &gone,
            None,
            Some(&json!({ "reason": "x" })),
        )
        .await;
    assert_eq!(canceled.status, 200);
    let second = place(&shop, "OLD", "second", 6).await;
    redis.kill().await;
    if let Err(error) = std::fs::remove_dir_all(&data) {
        panic!("{error}");
    }
    copy(&old, &data);
    if let Err(error) = redis.restart().await {
        panic!("{error}");
    }
    // Whatever it remembers, an accepted key keeps its order and none is sold twice.
    every_key_keeps_its_answer(&shop, &second).await;
    let took = exact(&world).await;
    tracing::info!(duration_ms = took.as_millis(), "the gate follows again");
    let third = place(&shop, "OLD", "third", 11).await;
    let over = shop
        .place_until_decided("over", &api::order("over", &[("OLD", 1)]))
        .await;
    assert_eq!(over.status, 410);
    every_key_keeps_its_answer(&shop, &third).await;
    world.consistent().await;
    world.end().await;
    redis.stop().await;
}

/// Held units and limits are the same before and after, so drift shows nothing, the epoch is there,
/// and the sweep comes by in half a minute: only the server's `run_id` tells.
#[tokio::test(flavor = "multi_thread")]
async fn another_server_is_noticed_although_every_number_is_right() {
    let mut redis = redis("run-id").await;
    let world = world_on(&redis).await;
    world.operator().put_sku("SAME", 20, &json!({})).await;
    let shop = world.shop();
    let gone = place(&shop, "SAME", "gone", 1).await;
    let gate = world.gate_client();
    // The sweep has asked about it once and will not ask again for 30 s.
    wait_within(Duration::from_secs(30), "the first sweep", || async {
        let snapshot = gate.snapshot(Shard(0)).await.ok()?;
        let soon = platform::clock::now().timestamp_millis() + 22_000;
        let swept = snapshot.due.values().all(|due| *due > soon);
        (swept && snapshot.due.len() == 1).then_some(())
    })
    .await;
    let data = redis.home().join("data");
    let old = redis.home().join("old");
    copy(&data, &old);
    let cancel = format!("/v1/orders/{}/cancel", gone[0].2);
    let canceled = shop
        .ask(
            http::Method::POST,
            &cancel,
            None,
            Some(&json!({ "reason": "x" })),
        )
        .await;
    assert_eq!(canceled.status, 200);
    place(&shop, "SAME", "here", 1).await;
    redis.kill().await;
    if let Err(error) = std::fs::remove_dir_all(&data) {
        panic!("{error}");
    }
    copy(&old, &data);
    if let Err(error) = redis.restart().await {
        panic!("{error}");
    }
    wait_within(
        Duration::from_secs(12),
        "the holds to be the right ones",
        || async {
            let checks = world.checks().await;
            let mut gate = checks.iter().filter(|c| c.id == "I20");
            gate.all(|check| check.ok).then_some(())
        },
    )
    .await;
    world.end().await;
    redis.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_that_lost_the_tail_of_its_log_is_made_to_follow() {
    let mut redis = redis("tail").await;
    let world = world_on(&redis).await;
    world.operator().put_sku("TAIL", 20, &json!({})).await;
    let shop = world.shop();
    let accepted = place(&shop, "TAIL", "before", 10).await;
    redis.kill().await;
    let lost = cut_tail(&redis.home().join("data/appendonlydir"));
    assert!(lost > 0, "nothing was cut off");
    if let Err(error) = redis.restart().await {
        panic!("{error}");
    }
    every_key_keeps_its_answer(&shop, &accepted).await;
    let took = exact(&world).await;
    tracing::info!(
        duration_ms = took.as_millis(),
        lost,
        "the gate follows again"
    );
    place(&shop, "TAIL", "after", 10).await;
    let over = shop
        .decide("over", &api::order("over", &[("TAIL", 1)]))
        .await;
    assert_eq!(over.status, 410);
    world.consistent().await;
    world.end().await;
    redis.stop().await;
}

/// Cuts the last third off the log that grows; how many bytes that were.
fn cut_tail(dir: &Path) -> u64 {
    let cut = std::fs::read_dir(dir).and_then(|entries| {
        let mut cut = 0;
        for entry in entries {
            let entry = entry?;
            if entry.file_name().to_string_lossy().ends_with(".incr.aof") {
                let file = std::fs::OpenOptions::new().write(true).open(entry.path())?;
                let length = file.metadata()?.len();
                file.set_len(length - length / 3)?;
                cut += length / 3;
            }
        }
        Ok(cut)
    });
    match cut {
        Ok(cut) => cut,
        Err(error) => panic!("{}: {error}", dir.display()),
    }
}
