//! The consumer runner: one effect per event, whatever is repeated and whichever COMMIT is lost.

use messaging::admin::Producer;
use rand::{RngExt as _, seq::SliceRandom as _};

use crate::{
    proxy,
    recorder::Recorder,
    world::{World, wait_for},
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
