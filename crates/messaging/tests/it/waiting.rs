//! Consumers that can't go on: they lose nothing and give no life sign, so that expiry waits too; one
//! that makes no progress for long ends.

use std::{sync::atomic::Ordering, time::Duration};

use messaging::{Stall, Unclassified, admin::Producer};

use crate::{
    proxy,
    recorder::Recorder,
    world::{World, wait_for},
};

#[tokio::test]
async fn a_database_that_is_away_delays_and_loses_nothing() {
    let world = World::new().await;
    let producer = Producer::new(&world.brokers).unwrap();
    let door = proxy::Door::start(&world.options.url).await;
    let mut options = world.options.clone();
    options.url = door.url.clone();
    options.acquire_timeout = Duration::from_secs(1);
    let store = store::Store::connect(&options).unwrap();
    // it leaves its group meanwhile, and comes back
    let running = world.consume_with(Recorder::default(), store, |config| {
        config.leaves_after = Duration::from_secs(2);
    });
    world.produce(&producer, 0, "first", b"{}").await;
    wait_for("the first effect", async || world.effects() == 1).await;
    wait_for("a life sign", async || heartbeat_age(&world) <= 2).await;
    door.shut();
    for n in 0..200 {
        world
            .produce(&producer, n % 3, &format!("e{n}"), b"{}")
            .await;
    }
    // No life sign while nothing can be handled.
    wait_for("the heartbeat to grow old", async || {
        heartbeat_age(&world) >= 6
    })
    .await;
    assert_eq!(world.effects(), 1);
    door.open();
    wait_for("all offsets are stored", async || world.lag().await == 0).await;
    wait_for("the heartbeat is back", async || heartbeat_age(&world) <= 2).await;
    assert!(running.ops.is_ready());
    running.stop().await;
    assert_eq!(
        (
            world.effects(),
            world.distinct_effects(),
            world.dead_letters()
        ),
        (201, 201, 0)
    );
    world.end().await;
}

/// Seconds since the last life sign; 99 when there was none yet.
fn heartbeat_age(world: &World) -> i64 {
    world.number(
        "select coalesce(extract(epoch from clock_timestamp() - max(at)), 99)::int from heartbeats",
    )
}

#[tokio::test]
async fn a_consumer_that_waits_for_a_dependency_gives_no_life_sign_so_that_expiry_waits_too() {
    let world = World::new().await;
    let producer = Producer::new(&world.brokers).unwrap();
    let handler = Recorder::default();
    // were it unclassified, it would be a dead letter at its second failure
    let running = world.consume_with(handler.clone(), world.store.clone(), |config| {
        config.unclassified = Unclassified {
            attempts: 2,
            over: Duration::ZERO,
        };
    });
    let silent = || {
        world.number(
            "select coalesce(extract(epoch from clock_timestamp() - max(at)), -1)::int
             from heartbeats where name = 'stock'",
        )
    };
    wait_for("a life sign", async || silent() >= 0).await;
    world
        .produce(&producer, 0, "waits", br#"{"wish":"away"}"#)
        .await;
    world.produce(&producer, 0, "beside", b"{}").await;
    wait_for("silence", async || silent() >= 4).await;
    handler.healed.store(true, Ordering::Relaxed);
    wait_for("a life sign again", async || silent() <= 1).await;
    wait_for("all offsets are stored", async || world.lag().await == 0).await;
    running.stop().await;
    assert_eq!((world.effects(), world.dead_letters()), (2, 0));
    world.end().await;
}

#[tokio::test]
async fn lag_without_progress_takes_readiness_and_then_ends_the_consumer() {
    let world = World::new().await;
    let producer = Producer::new(&world.brokers).unwrap();
    let hang = br#"{"wish":"hang"}"#;
    world.produce(&producer, 0, "hangs", hang).await;
    let running = world.consume_with(Recorder::default(), world.store.clone(), |config| {
        config.stall = Stall::after(Duration::from_secs(3));
    });
    wait_for("it joins and is ready", async || running.ops.is_ready()).await;
    wait_for("it is not ready", async || !running.ops.is_ready()).await;
    let ended = running.ended().await;
    assert!(
        matches!(ended, Err(messaging::ConsumerError::Stalled)),
        "{ended:?}"
    );
    assert_eq!((world.effects(), world.dead_letters()), (0, 0));
    world.end().await;
}
