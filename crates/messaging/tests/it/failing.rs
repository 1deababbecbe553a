//! Handlers that fail: an outage is waited out, what is too much is halved, and what fails for no
//! known reason becomes a dead letter, but only while others are handled; nothing waits behind it.

use std::{sync::atomic::Ordering, time::Duration};

use messaging::{Unclassified, admin::Producer};

use crate::{
    recorder::Recorder,
    world::{World, wait_for},
};

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
