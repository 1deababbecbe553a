//! Dead letters that are handled again: once, or not at all.

use std::sync::atomic::Ordering;

use messaging::{HandleError, Redriven, Unclassified, admin::Producer, redrive};
use uuid::Uuid;

use crate::{
    proxy,
    recorder::Recorder,
    world::{World, wait_for},
};

/// Sends records, each an id and its data, and has them consumed.
async fn consumed(world: &World, handler: &Recorder, records: &[(&str, &[u8])]) {
    let producer = Producer::new(&world.brokers).unwrap();
    for (id, data) in records {
        world.produce(&producer, 0, id, data).await;
    }
    // Whatever fails alone for no known reason is a dead letter soon.
    let running = world.consume_with(handler.clone(), world.store.clone(), |config| {
        config.unclassified = Unclassified {
            attempts: 2,
            over: std::time::Duration::ZERO,
        };
    });
    wait_for("all offsets are stored", async || world.lag().await == 0).await;
    running.stop().await;
}

/// The dead letter of an event.
fn letter(world: &World, event: &str) -> Uuid {
    let found = format!("select id from dead_letters where event_id = '{event}'");
    world.sql(&found).parse().unwrap()
}

fn state(world: &World, letter: Uuid) -> String {
    world.sql(&format!(
        "select state from dead_letters where id = '{letter}'"
    ))
}

/// As an operator, or a newer build, would make it readable.
fn mend(world: &World, letter: Uuid) {
    world.sql(&format!(
        "update dead_letters set payload = '{{}}' where id = '{letter}'"
    ));
}

const STRANGE: &[u8] = br#"{"wish":"unclassified"}"#;

#[tokio::test]
async fn a_mended_dead_letter_has_its_effect_once_however_often_it_is_redriven() {
    let world = World::new().await;
    let handler = Recorder::default();
    // The other events are handled: so the fault is taken for the event's own.
    consumed(&world, &handler, &[("strange", STRANGE), ("good", b"{}")]).await;
    let id = letter(&world, "strange");
    assert_eq!((world.effects(), world.dead_letters()), (1, 1));

    let again = redrive(&handler, &world.store, id, false).await.unwrap();
    assert_eq!(again, Redriven::FailedAgain("strange".to_owned()));
    assert_eq!((state(&world, id).as_str(), world.effects()), ("OPEN", 1));

    handler.healed.store(true, Ordering::Relaxed);
    let dry = redrive(&handler, &world.store, id, true).await.unwrap();
    assert_eq!(dry, Redriven::Replayed);
    assert_eq!((state(&world, id).as_str(), world.effects()), ("OPEN", 1));
    let seen = |event: &str| handler.after_commit.lock().unwrap().get(event).copied();
    assert_eq!(seen("strange"), None, "nothing was committed");

    let done = redrive(&handler, &world.store, id, false).await.unwrap();
    assert_eq!(done, Redriven::Replayed);
    assert_eq!(state(&world, id), "REDRIVEN");
    assert_eq!(seen("strange"), Some(1));
    for dry in [false, true] {
        let done = redrive(&handler, &world.store, id, dry).await.unwrap();
        assert_eq!(done, Redriven::AlreadyDone);
    }
    // Its key was never given back: a copy on Kafka is known.
    consumed(&world, &handler, &[("strange", STRANGE)]).await;
    assert_eq!((world.effects(), world.distinct_effects()), (2, 2));
    world.end().await;
}

#[tokio::test]
async fn two_redrives_of_one_dead_letter_at_once_apply_it_once() {
    let world = World::new().await;
    let handler = Recorder::default();
    let names: Vec<String> = (0..10).map(|n| format!("refused{n}")).collect();
    let aside = br#"{"wish":"aside"}"#.as_slice();
    let records: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), aside)).collect();
    consumed(&world, &handler, &records).await;
    assert_eq!((world.effects(), world.dead_letters()), (0, 10));
    for name in &names {
        let id = letter(&world, name);
        mend(&world, id);
        let one = || redrive(&handler, &world.store, id, false);
        let (a, b, c) = tokio::join!(one(), one(), one());
        let outcomes = [a.unwrap(), b.unwrap(), c.unwrap()];
        let of = |wanted: Redriven| outcomes.iter().filter(|o| **o == wanted).count();
        assert_eq!(of(Redriven::Replayed), 1, "{outcomes:?}");
        assert_eq!(of(Redriven::AlreadyDone), 2, "{outcomes:?}");
    }
    assert_eq!((world.effects(), world.distinct_effects()), (10, 10));
    world.end().await;
}

#[tokio::test]
async fn a_redrive_whose_commit_is_not_answered_applies_the_event_once() {
    let world = World::new().await;
    let handler = Recorder::default();
    consumed(&world, &handler, &[("strange", STRANGE), ("good", b"{}")]).await;
    handler.healed.store(true, Ordering::Relaxed);
    let swallowed = proxy::SwallowCommits::start(&world.options.url, proxy::Lose::First(1)).await;
    let mut options = world.options.clone();
    options.url = swallowed.url.clone();
    let store = store::Store::connect(&options).unwrap();
    let id = letter(&world, "strange");
    let done = redrive(&handler, &store, id, false).await.unwrap();
    assert_eq!(swallowed.lost(), 1);
    assert_eq!(done, Redriven::Replayed);
    assert_eq!(state(&world, id), "REDRIVEN");
    assert_eq!((world.effects(), world.distinct_effects()), (2, 2));
    let followed = handler.after_commit.lock().unwrap()["strange"];
    assert_eq!(followed, 1, "what follows the commit came");
    store.close().await;
    world.end().await;
}

#[tokio::test]
async fn what_was_unreadable_and_came_rightly_meanwhile_is_not_applied_again() {
    let world = World::new().await;
    let handler = Recorder::default();
    let records: [(&str, &[u8]); 3] = [
        ("twin", b"not json"),
        ("twin", b"{}"),
        ("alone", b"not json"),
    ];
    consumed(&world, &handler, &records).await;
    assert_eq!((world.effects(), world.dead_letters()), (1, 2));
    let (twin, alone) = (letter(&world, "twin"), letter(&world, "alone"));
    for id in [twin, alone] {
        let still = redrive(&handler, &world.store, id, false).await.unwrap();
        assert!(matches!(still, Redriven::FailedAgain(_)), "{still:?}");
        mend(&world, id);
    }
    let done = redrive(&handler, &world.store, twin, true).await.unwrap();
    assert_eq!(done, Redriven::AlreadyDone);
    assert_eq!(state(&world, twin), "OPEN", "it was a dry run");
    let done = redrive(&handler, &world.store, twin, false).await.unwrap();
    assert_eq!(done, Redriven::AlreadyDone);
    assert_eq!(state(&world, twin), "REDRIVEN", "nobody meets it again");
    assert_eq!(world.effects(), 1);

    let done = redrive(&handler, &world.store, alone, false).await.unwrap();
    assert_eq!(done, Redriven::Replayed);
    // The right event of the key comes after the redrive: it has had its effect.
    consumed(&world, &handler, &[("alone", b"{}")]).await;
    assert_eq!((world.effects(), world.distinct_effects()), (2, 2));
    world.end().await;
}

#[tokio::test]
async fn what_can_not_be_handled_again_stays_open_with_its_reason() {
    let world = World::new().await;
    let handler = Recorder::default();
    let records: [(&str, &[u8]); 3] = [
        ("aside", br#"{"wish":"aside"}"#),
        ("never", br#"{"wish":"permanent"}"#),
        ("panics", br#"{"wish":"panic"}"#),
    ];
    consumed(
        &world,
        &handler,
        &[&records[..], &[("good", b"{}")]].concat(),
    )
    .await;
    assert_eq!((world.effects(), world.dead_letters()), (1, 3));
    for (event, reason) in [
        ("aside", "speaks of nothing"),
        ("never", "never"),
        ("panics", "the handler panicked: a bug of the handler"),
    ] {
        let id = letter(&world, event);
        let again = redrive(&handler, &world.store, id, false).await.unwrap();
        let Redriven::FailedAgain(said) = again else {
            panic!("{event}: {again:?}")
        };
        assert!(said.contains(reason), "{event}: {said}");
        assert_eq!(state(&world, id), "OPEN");
    }
    assert_eq!(world.effects(), 1, "nothing of the attempts is left");
    let nobody = redrive(&handler, &world.store, contracts::ids::generate(), false).await;
    assert_eq!(nobody.unwrap(), Redriven::AlreadyDone);
    world.end().await;
}

#[tokio::test]
async fn while_a_server_is_away_a_dead_letter_is_neither_done_nor_failed() {
    let world = World::new().await;
    let handler = Recorder::default();
    consumed(&world, &handler, &[("strange", STRANGE), ("good", b"{}")]).await;
    let id = letter(&world, "strange");
    // What it is to do now needs something that is away.
    world.sql("update dead_letters set payload = '{\"wish\":\"away\"}'");
    let away = redrive(&handler, &world.store, id, false).await;
    assert!(matches!(away, Err(HandleError::Transient(_))), "{away:?}");
    let mut options = world.options.clone();
    let (before, _) = options.url.rsplit_once('/').unwrap();
    options.url = format!("{before}/no_such_database");
    let nowhere = store::Store::connect(&options).unwrap();
    let away = redrive(&handler, &nowhere, id, false).await;
    assert!(matches!(away, Err(HandleError::Transient(_))), "{away:?}");
    assert_eq!((state(&world, id).as_str(), world.effects()), ("OPEN", 1));
    handler.healed.store(true, Ordering::Relaxed);
    let done = redrive(&handler, &world.store, id, false).await.unwrap();
    assert_eq!((done, world.effects()), (Redriven::Replayed, 2));
    world.end().await;
}
