//! Redis slow, half dead, forgetful or full: orders go on without it, none is refused for it, and the
//! gate is made right again. Each fault must be seen to bite, else the test says nothing.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use cli::servers::{Ports, native};
use http::Method;
use serde_json::json;
use tests::{
    Options, Sale, World, api,
    proxy::{Fault, Kind, Link, Protocol, Proxy, Rule, Towards},
    wait::wait_within,
    wait_for,
    world::{authority, private_dir, through},
};

use crate::gate::held_at_gate;

async fn redis_command<T: redis::FromRedisValue>(url: &str, command: &[&str]) -> T {
    // The driver gives a connection half a second, which a busy machine may not have.
    wait_for(&command.join(" "), || async {
        let client = redis::Client::open(url).ok()?;
        let mut connection = client.get_multiplexed_async_connection().await.ok()?;
        redis::cmd(command[0])
            .arg(&command[1..])
            .query_async::<T>(&mut connection)
            .await
            .ok()
    })
    .await
}

/// Waits until a fault bit more often than `before`: while the breaker is open nobody asks Redis, and
/// it asks again within a second.
async fn bitten(what: &str, bites: &AtomicU64, before: u64) {
    wait_for(what, || async {
        (bites.load(Ordering::SeqCst) > before).then_some(())
    })
    .await;
}

async fn redis_behind_a_proxy(name: &str) -> (native::Redis, Proxy) {
    let redis = match native::Redis::start(&private_dir(name), Ports::Free).await {
        Ok(redis) => redis,
        Err(error) => panic!("a test needs its Redis: {error}"),
    };
    match Proxy::start(Protocol::Redis, &authority(&redis.url())).await {
        Ok(proxy) => (redis, proxy),
        Err(error) => panic!("no proxy: {error}"),
    }
}

/// F24, F29 to F32, F41 and F42 for Redis, and CP2 on the wire.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_becomes_of_redis_no_order_is_refused_or_lost() {
    let (mut redis, proxy) = redis_behind_a_proxy("faulty-redis").await;
    let url = redis.url();
    let mut sale = Sale::open(Options {
        redis_url: Some(through(&url, &proxy.address().to_string())),
        ..Options::default()
    })
    .await;

    // Few: after the first of them the breaker spares Redis for a while.
    let lost = proxy.add(Rule::new(Kind::evalsha(), Fault::SwallowReply).times(3));
    sale.goes_on("EVALSHA replies lost", 20).await;
    wait_for("a reply to be lost", || async {
        (lost.bites() > 0).then_some(())
    })
    .await;
    proxy.clear();

    redis_command::<()>(&url, &["SCRIPT", "FLUSH"]).await;
    sale.goes_on("SCRIPT FLUSH", 10).await;

    proxy.set(Link {
        delay: Duration::from_millis(400),
        ..Link::default()
    });
    sale.goes_on("redis slow by 400 ms each way", 20).await;
    bitten("a call to be slow", &proxy.bites().delayed, 0).await;

    for towards in [Towards::Both, Towards::Client, Towards::Server] {
        let before = proxy.bites().silenced.load(Ordering::SeqCst);
        proxy.set(Link::silent(towards));
        let name = format!("redis silent {towards:?}");
        sale.goes_on(&name, 20).await;
        bitten("what nobody answers", &proxy.bites().silenced, before).await;
        proxy.set(Link::default());
    }
    sale.world.gate_open().await;
    let cut = proxy.bites().cut.load(Ordering::SeqCst);
    // Again until one is met: after the silence it may take a while until there are connections.
    wait_for("a connection to be cut", || async {
        proxy.reset();
        (proxy.bites().cut.load(Ordering::SeqCst) > cut).then_some(())
    })
    .await;
    sale.goes_on("redis connections reset", 10).await;

    sale.world.gate_open().await;
    redis_command::<()>(&url, &["CONFIG", "SET", "maxmemory", "1"]).await;
    // While the breaker is open nobody asks Redis: it asks again within seconds.
    for round in 0..30 {
        sale.goes_on(&format!("redis out of memory {round}"), 5)
            .await;
        if oom_errors(&url).await > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(oom_errors(&url).await > 0, "memory was never short");
    redis_command::<()>(&url, &["CONFIG", "SET", "maxmemory", "0"]).await;

    eviction_is_no_gate(&sale.world, &url).await;
    sale.world.consistent().await;

    sale.goes_on("before the last second is lost", 20).await;
    lose_last_writes(&mut redis).await;
    sale.goes_on("after the last second was lost", 20).await;
    sale.closes().await;
    redis.stop().await;
}

/// A gate that was silent for a moment has lost nothing, so that nobody builds it anew.
#[tokio::test(flavor = "multi_thread")]
async fn what_passed_a_silent_gate_by_is_told_to_it_when_it_answers() {
    let (mut redis, proxy) = redis_behind_a_proxy("silent-redis").await;
    let url = redis.url();
    let mut world = World::with(Options {
        redis_url: Some(through(&url, &proxy.address().to_string())),
        without_payment: true,
        ..Options::default()
    })
    .await;
    world.operator().put_sku("BLINK", 9, &json!({})).await;
    let (shop, gate) = (world.shop(), world.gate_client());
    let place = async |key: &str, held: i64| {
        api::accepted(&shop.decide(key, &api::order(key, &[("BLINK", 1)])).await);
        wait_for(&format!("the gate to hold {held}"), || async {
            (held_at_gate(&gate, "BLINK").await == held).then_some(())
        })
        .await;
    };
    place("before", 1).await;
    // From now on nobody but the order service tells the gate.
    if let Some(stock) = world.stock.take() {
        stock.stop().await;
    }
    let silenced = proxy.bites().silenced.load(Ordering::SeqCst);
    proxy.set(Link::silent(Towards::Both));
    let body = api::order("passed", &[("BLINK", 1)]);
    api::accepted(&shop.decide("passed", &body).await);
    bitten("what nobody answers", &proxy.bites().silenced, silenced).await;
    proxy.set(Link::default());
    wait_for("the gate to hold what passed it by", || async {
        (held_at_gate(&gate, "BLINK").await == 2).then_some(())
    })
    .await;
    world.end().await;
    redis.stop().await;
}

async fn oom_errors(url: &str) -> i64 {
    let text: String = redis_command(url, &["INFO", "errorstats"]).await;
    text.lines()
        .find_map(|line| line.strip_prefix("errorstat_OOM:count="))
        .and_then(|count| count.trim().parse().ok())
        .unwrap_or(0)
}

/// F31: a Redis that throws keys away is no gate, and stock says so.
async fn eviction_is_no_gate(world: &World, url: &str) {
    let Some(stock) = &world.stock else {
        panic!("no stock service")
    };
    let stock = tests::Api::new(&stock.url, "");
    for (policy, status) in [("allkeys-lru", 503), ("noeviction", 200)] {
        redis_command::<()>(url, &["CONFIG", "SET", "maxmemory-policy", policy]).await;
        wait_within(Duration::from_secs(10), policy, || async {
            let answer = stock.try_send(Method::GET, "/readyz", None, None).await;
            (answer.ok()?.status == status).then_some(())
        })
        .await;
    }
}

/// F24: Redis comes back without its last acknowledged writes.
async fn lose_last_writes(redis: &mut native::Redis) {
    wait_for("the file to be written", || async {
        let text: String = redis_command(&redis.url(), &["INFO", "persistence"]).await;
        text.contains("aof_last_write_status:ok").then_some(())
    })
    .await;
    redis.kill().await;
    let folder = redis.home().join("data/appendonlydir");
    let mut cut = 0;
    for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let length = entry.metadata().map_or(0, |meta| meta.len());
        if name.ends_with(".incr.aof") && length > 400 {
            let file = std::fs::File::options().write(true).open(entry.path());
            cut += u64::from(file.and_then(|file| file.set_len(length * 3 / 4)).is_ok());
        }
    }
    assert_eq!(cut, 1, "no tail was cut in {}", folder.display());
    if let Err(error) = redis.restart().await {
        panic!("{error}");
    }
}
