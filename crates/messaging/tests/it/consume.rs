//! The consumer runner: one effect per event, whatever is repeated or fails.

use std::{sync::atomic::Ordering, time::Duration};

use messaging::{Stall, Unclassified, admin::Producer};
use rand::{RngExt as _, seq::SliceRandom as _};

use crate::{
    proxy,
    world::{Recorder, World, wait_for},
};

#[tokio::test]
async fn events_that_come_up_to_five_times_in_any_order_have_one_effect_each() {
    let world = World::new().await;
    let producer = Producer::new(&world.brokers).unwrap();
    let mut copies = Vec::new();
    for n in 0..300 {
        for _ in 0..rand::rng().random_range(1..=5) {
            copies.push((rand::rng().random_range(0..3), format!("e{n}")));
        }
    }
    copies.shuffle(&mut rand::rng());
    let (before, meanwhile) = copies.split_at(copies.len() / 2);
    let send = |part: Vec<(i32, String)>| {
        let (world, producer) = (&world, &producer);
        async move {
            let all = part
                .iter()
                .map(|(to, id)| world.produce(producer, *to, id, b"{}"));
            futures::future::join_all(all).await;
        }
    };
    send(before.to_vec()).await;
    let handler = Recorder::default();
    let running = world.consume(handler.clone());
    send(meanwhile.to_vec()).await;
    wait_for("all offsets are stored", async || world.lag().await == 0).await;
    running.stop().await;
    assert_eq!((world.effects(), world.distinct_effects()), (300, 300));
    assert_eq!(world.number("select count(*) from inbox"), 300);
    assert_eq!(handler.after_commit.lock().unwrap().len(), 300);
    assert_eq!(world.dead_letters(), 0);
    let largest = handler
        .batches
        .lock()
        .unwrap()
        .iter()
        .copied()
        .max()
        .unwrap();
    assert!(
        largest > 20,
        "records are handled in batches, not one by one: {largest}"
    );
    world.end().await;
}

#[tokio::test]
async fn a_second_life_begins_where_the_first_ended() {
    let world = World::new().await;
    let producer = Producer::new(&world.brokers).unwrap();
    for n in 0..20 {
        world
            .produce(&producer, n % 3, &format!("e{n}"), b"{}")
            .await;
    }
    let running = world.consume(Recorder::default());
    wait_for("the effects", async || world.effects() == 20).await;
    // stopped at once: what was stored is sent by the leaving
    running.stop().await;
    assert_eq!(world.lag().await, 0);
    let second = Recorder::default();
    let running = world.consume(second.clone());
    world.produce(&producer, 0, "last", b"{}").await;
    wait_for("the last effect", async || world.effects() == 21).await;
    running.stop().await;
    assert_eq!(
        second.after_commit.lock().unwrap().len(),
        1,
        "nothing came again"
    );
    world.end().await;
}

#[tokio::test]
async fn a_transient_failure_is_waited_out_and_is_never_a_dead_letter() {
    let world = World::new().await;
    let producer = Producer::new(&world.brokers).unwrap();
    for n in 0..10 {
        world.produce(&producer, 0, &format!("e{n}"), b"{}").await;
    }
    world
        .produce(&producer, 0, "waits", br#"{"wish":"transient"}"#)
        .await;
    // were it unclassified, it would be a dead letter at its second failure
    let running = world.consume_with(Recorder::default(), world.store.clone(), |config| {
        config.unclassified = Unclassified {
            attempts: 2,
            over: Duration::ZERO,
        };
    });
    world.produce(&producer, 0, "beside", b"{}").await;
    wait_for("all offsets are stored", async || world.lag().await == 0).await;
    running.stop().await;
    assert_eq!((world.effects(), world.distinct_effects()), (12, 12));
    assert_eq!(world.dead_letters(), 0);
    world.end().await;
}

#[tokio::test]
async fn a_batch_that_is_too_much_for_the_database_is_halved_and_is_no_dead_letter() {
    let world = World::new().await;
    let producer = Producer::new(&world.brokers).unwrap();
    for n in 0..40 {
        world
            .produce(&producer, 0, &format!("e{n}"), br#"{"wish":"heavy"}"#)
            .await;
    }
    let handler = Recorder::default();
    // were it unclassified, it would be a dead letter at its second failure
    let running = world.consume_with(handler.clone(), world.store.clone(), |config| {
        config.unclassified = Unclassified {
            attempts: 2,
            over: Duration::ZERO,
        };
    });
    wait_for("all offsets are stored", async || world.lag().await == 0).await;
    running.stop().await;
    assert_eq!((world.effects(), world.distinct_effects()), (40, 40));
    assert_eq!(world.dead_letters(), 0);
    let batches = handler.batches.lock().unwrap().clone();
    assert!(
        batches.iter().any(|events| *events > 1),
        "halved as far as it must be: {batches:?}"
    );
    world.end().await;
}

#[tokio::test]
async fn an_event_that_fails_alone_holds_up_nobody_and_ends_as_a_dead_letter() {
    let world = World::new().await;
    let producer = Producer::new(&world.brokers).unwrap();
    for n in 0..40 {
        world
            .produce(&producer, 0, &format!("before{n}"), b"{}")
            .await;
    }
    let (_, bad) = world
        .produce(&producer, 0, "strange", br#"{"wish":"unclassified"}"#)
        .await;
    let (_, buggy) = world
        .produce(&producer, 1, "buggy", br#"{"wish":"panic"}"#)
        .await;
    for n in 0..40 {
        world
            .produce(&producer, 0, &format!("after{n}"), b"{}")
            .await;
    }
    let running = world.consume_with(Recorder::default(), world.store.clone(), |config| {
        config.unclassified = Unclassified {
            attempts: 5,
            over: Duration::from_secs(20),
        };
    });
    wait_for("the others of its partition go on", async || {
        world.effects() == 80
    })
    .await;
    assert_eq!(world.dead_letters(), 0, "not yet");
    let lag = world.lag().await;
    assert!(
        lag >= 41,
        "its offset is held back: lag {lag}, bad at {bad}, buggy at {buggy}"
    );
    wait_for("both are dead letters", async || world.dead_letters() == 2).await;
    wait_for("all offsets are stored", async || world.lag().await == 0).await;
    running.stop().await;
    assert_eq!((world.effects(), world.distinct_effects()), (80, 80));
    assert_eq!(
        world.sql("select distinct class from dead_letters where attempts >= 5"),
        "unclassified"
    );
    world.end().await;
}

#[tokio::test]
async fn while_nobody_else_is_handled_an_event_that_fails_is_kept_since_the_fault_may_be_ours() {
    let world = World::new().await;
    let producer = Producer::new(&world.brokers).unwrap();
    world
        .produce(&producer, 0, "strange", br#"{"wish":"unclassified"}"#)
        .await;
    let handler = Recorder::default();
    let running = world.consume_with(handler.clone(), world.store.clone(), |config| {
        config.unclassified = Unclassified {
            attempts: 3,
            over: Duration::from_secs(1),
        };
    });
    wait_for("more failures than are allowed", async || {
        handler.prepared.load(Ordering::Relaxed) > 5
    })
    .await;
    assert_eq!(world.dead_letters(), 0);
    world.produce(&producer, 0, "good", b"{}").await;
    wait_for("it is a dead letter", async || world.dead_letters() == 1).await;
    wait_for("all offsets are stored", async || world.lag().await == 0).await;
    running.stop().await;
    assert_eq!((world.effects(), world.distinct_effects()), (1, 1));
    world.end().await;
}

#[tokio::test]
async fn an_event_that_fails_alone_and_is_healed_has_its_effect() {
    let world = World::new().await;
    let producer = Producer::new(&world.brokers).unwrap();
    world
        .produce(&producer, 0, "strange", br#"{"wish":"unclassified"}"#)
        .await;
    world.produce(&producer, 0, "good", b"{}").await;
    let handler = Recorder::default();
    let running = world.consume_with(handler.clone(), world.store.clone(), |config| {
        config.unclassified = Unclassified {
            attempts: 3,
            over: Duration::from_secs(20),
        };
    });
    wait_for("the good one", async || world.effects() == 1).await;
    handler.healed.store(true, Ordering::Relaxed);
    wait_for("all offsets are stored", async || world.lag().await == 0).await;
    running.stop().await;
    assert_eq!(
        (
            world.effects(),
            world.distinct_effects(),
            world.dead_letters()
        ),
        (2, 2, 0)
    );
    world.end().await;
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_run_again_and_has_one_effect() {
    let world = World::new().await;
    let producer = Producer::new(&world.brokers).unwrap();
    for n in 0..30 {
        world
            .produce(&producer, n % 3, &format!("e{n}"), b"{}")
            .await;
    }
    let swallowed = proxy::SwallowCommits::start(&world.options.url, proxy::Lose::First(4)).await;
    let mut options = world.options.clone();
    options.url = swallowed.url.clone();
    let store = store::Store::connect(&options).unwrap();
    let handler = Recorder::default();
    let running = world.consume_with(handler.clone(), store, |_| {});
    wait_for("answers were lost", async || swallowed.lost() == 4).await;
    for n in 30..60 {
        world
            .produce(&producer, n % 3, &format!("e{n}"), b"{}")
            .await;
    }
    wait_for("all offsets are stored", async || world.lag().await == 0).await;
    running.stop().await;
    assert_eq!(
        (
            world.effects(),
            world.distinct_effects(),
            world.dead_letters()
        ),
        (60, 60, 0)
    );
    assert_eq!(
        handler.after_commit.lock().unwrap().len(),
        60,
        "after_commit came for all"
    );
    world.end().await;
}

/// Twenty answers to COMMIT and twenty COMMITs are lost, by turns.
#[tokio::test]
async fn of_forty_commits_that_are_lost_either_way_each_event_has_one_effect() {
    let world = World::new().await;
    let producer = Producer::new(&world.brokers).unwrap();
    let lossy = proxy::SwallowCommits::start(&world.options.url, proxy::Lose::EachSecond(40)).await;
    let mut options = world.options.clone();
    options.url = lossy.url.clone();
    let store = store::Store::connect(&options).unwrap();
    let running = world.consume_with(Recorder::default(), store, |_| {});
    let mut sent = 0_i64;
    while lossy.lost() < 40 {
        // Few at a time, and each time until they took effect: so that each has a commit to lose.
        for n in 0..3 {
            let id = format!("e{sent}");
            world.produce(&producer, n, &id, b"{}").await;
            sent += 1;
        }
        wait_for("their effect", async || world.effects() == sent).await;
        assert!(sent < 3_000, "only {} commits were lost", lossy.lost());
    }
    wait_for("all offsets are stored", async || world.lag().await == 0).await;
    running.stop().await;
    assert_eq!(lossy.lost(), 40);
    assert_eq!((world.effects(), world.distinct_effects()), (sent, sent));
    assert_eq!(world.dead_letters(), 0);
    world.end().await;
}

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

#[tokio::test]
async fn hundreds_of_events_that_fail_for_no_known_reason_do_not_stop_what_comes_behind_them() {
    let world = World::new().await;
    let producer = Producer::new(&world.brokers).unwrap();
    let strange = br#"{"wish":"unclassified"}"#;
    for n in 0..210 {
        world
            .produce(&producer, 0, &format!("strange{n}"), strange)
            .await;
    }
    let handler = Recorder::default();
    let running = world.consume_with(handler.clone(), world.store.clone(), |_| {});
    // Halved until each is alone: seven times at least.
    wait_for("all to have failed alone", async || {
        handler.prepared.load(Ordering::Relaxed) > 7 * 210
    })
    .await;
    for n in 0..5 {
        world
            .produce(&producer, 0, &format!("good{n}"), b"{}")
            .await;
    }
    wait_for("the good ones", async || world.effects() == 5).await;
    handler.healed.store(true, Ordering::Relaxed);
    wait_for("all offsets are stored", async || world.lag().await == 0).await;
    running.stop().await;
    assert_eq!((world.effects(), world.dead_letters()), (215, 0));
    world.end().await;
}
