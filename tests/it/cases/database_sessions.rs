//! Class L: sessions of PostgreSQL survive clients that hang up and crowds that wait.

use std::{collections::BTreeSet, time::Duration};

use futures::stream::{self, StreamExt};
use serde_json::json;
use tests::{Options, World, api, proxy::Link};

use super::{AT_ONCE, count, rush};

/// A small pool, behind a line that is slow in both directions.
async fn slow(round_trip: Duration) -> World {
    let world = World::with(Options {
        proxy_order_database: true,
        without_payment: true,
        order_flags: vec!["--db-connections=5".to_owned()],
        ..Options::default()
    })
    .await;
    world.operator().put_sku("SLOW", 5_000, &json!({})).await;
    set_delay(&world, round_trip / 2);
    world
}

fn set_delay(world: &World, delay: Duration) {
    let Some(proxy) = &world.proxy else {
        panic!("no proxy")
    };
    proxy.set(Link {
        delay,
        ..Link::default()
    });
}

async fn sessions_left_open(world: &World) -> i64 {
    world
        .count(
            "select count(*) from pg_stat_activity where datname = current_database()
             and (state = 'idle in transaction' and state_change < now() - interval '5 s'
                  or state = 'idle in transaction (aborted)')",
        )
        .await
}

/// 150 requests are dropped by their clients at any moment of their 400 ms here.
#[tokio::test(flavor = "multi_thread")]
async fn requests_dropped_at_any_moment_leave_no_session_inside_a_transaction() {
    let world = slow(Duration::from_millis(40)).await;
    let shop = world.shop();
    let answered: Vec<bool> = stream::iter((0..150_u64).map(|number| {
        let shop = shop.clone();
        async move {
            let body = api::order(&format!("dropped-{number}"), &[("SLOW", 1)]);
            let patience = Duration::from_millis(number * 7 % 400);
            let key = format!("dropped-{number}");
            tokio::time::timeout(patience, shop.place(&key, &body))
                .await
                .is_ok()
        }
    }))
    .buffer_unordered(AT_ONCE)
    .collect()
    .await;
    assert!(answered.contains(&false), "some clients must have hung up");
    let Some(proxy) = &world.proxy else {
        panic!("no proxy")
    };
    let delayed = proxy
        .bites()
        .delayed
        .load(std::sync::atomic::Ordering::SeqCst);
    assert!(delayed > 0, "nothing was slow");
    set_delay(&world, Duration::ZERO);
    world.no_session_left_in_a_transaction().await;
    // Each of them and as many others now get what they ask for.
    for name in ["dropped", "normal"] {
        let statuses = rush(&world.shops(), "SLOW", name, 150).await;
        assert_eq!(count(&statuses, 201), 150, "{name}: {statuses:?}");
    }
    world.no_session_left_in_a_transaction().await;
    // Written rows are seen by another session, and once.
    assert_eq!(world.count("select count(*) from orders").await, 300);
    assert_eq!(world.count("select held from stock").await, 300);
    world.consistent().await;
    world.end().await;
}

/// 300 at once on a pool of five here.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_on_a_small_slow_pool_is_served_or_refused_and_makes_no_new_sessions() {
    let world = slow(Duration::ZERO).await;
    let shop = world.shop();
    let pids = || {
        let url = world.database_url.clone();
        async move {
            use sqlx::Connection;
            let mut conn = sqlx::PgConnection::connect(&url).await?;
            let pids: Vec<i32> = sqlx::query_scalar(
                "select pid from pg_stat_activity where datname = current_database()
                 and application_name in ('holdfast order', 'holdfast order accept')",
            )
            .fetch_all(&mut conn)
            .await?;
            Ok::<_, sqlx::Error>(pids)
        }
    };
    let seen = async |seen: &mut BTreeSet<i32>| match pids().await {
        Ok(pids) => seen.extend(pids),
        Err(error) => panic!("{error}"),
    };
    let mut sessions = BTreeSet::new();
    // Warmed up: the pool has what it will have.
    let warm = rush(&world.shops(), "SLOW", "warm", 60).await;
    assert_eq!(count(&warm, 201), 60, "{warm:?}");
    seen(&mut sessions).await;
    let before = sessions.len();
    assert!(before > 0, "the pool goes by another name");
    set_delay(&world, Duration::from_millis(10));
    let begun = platform::clock::monotonic();
    let answers = stream::iter((0..300).map(|number| {
        let shop = shop.clone();
        async move {
            let body = api::order(&format!("crowd-{number}"), &[("SLOW", 1)]);
            shop.place(&format!("crowd-{number}"), &body).await
        }
    }))
    .buffer_unordered(300)
    .collect::<Vec<_>>();
    tokio::pin!(answers);
    let answers = loop {
        tokio::select! {
            answers = &mut answers => break answers,
            () = tokio::time::sleep(Duration::from_millis(100)) => seen(&mut sessions).await,
        }
    };
    let new = sessions.len() - before;
    let seconds = begun.elapsed().as_secs() + 1;
    assert!(
        new as u64 <= 5 * seconds,
        "{new} new sessions in {seconds} s"
    );
    for answer in &answers {
        let status = answer.status.as_u16();
        assert!([201, 503].contains(&status), "{status}");
        assert!(status == 201 || answer.headers.contains_key("retry-after"));
    }
    set_delay(&world, Duration::ZERO);
    // Whoever was refused comes back with the same key; all get what is theirs.
    let again = rush(&world.shops(), "SLOW", "crowd", 300).await;
    assert_eq!(count(&again, 201), 300, "{again:?}");
    assert_eq!(world.count("select count(*) from orders").await, 360);
    assert_eq!(sessions_left_open(&world).await, 0);
    world.consistent().await;
    world.end().await;
}

/// A server that forgets what it has committed makes every promise a lie: nobody works on it.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_may_forget_commits_is_refused_by_name() {
    let mut world = World::without_services(Options::default()).await;
    let name = world.database_url.rsplit('/').next().unwrap_or_default();
    let forgetful = format!("alter database {name} set synchronous_commit to off");
    world.tamper(&forgetful).await;
    world.start_order();
    world.start_stock();
    let services = [world.order.pop(), world.stock.take()];
    for service in services.into_iter().flatten() {
        let url = service.url.clone();
        match service.ended().await {
            Ok(()) => panic!("{url} ended in order"),
            Err(error) => {
                let refused = format!("{error:#}");
                assert!(refused.contains("synchronous_commit = off"), "{refused}");
            }
        }
    }
    world.end().await;
}
