//! `verify` is believed because it turns red: each rule that is planted here is named.

use std::time::Duration;

use domain::Shard;
use serde_json::json;
use tests::{Options, World, api};

async fn red_after(statement: &str) -> Vec<(String, String)> {
    let world = World::with(Options::default()).await;
    world.operator().put_sku("TAMPER", 10, &json!({})).await;
    let order = api::accepted(
        &world
            .shop()
            .decide("t", &api::order("c", &[("TAMPER", 1)]))
            .await,
    );
    world.until(&order, "CONFIRMED").await;
    world.settled().await;
    // Nobody may repair what the test is about to break.
    let mut world = world;
    if let Some(stock) = world.stock.take() {
        stock.stop().await;
    }
    world.tamper(&statement.replace("$ORDER", &order)).await;
    let checks = world.checks().await;
    let red = checks.into_iter().filter(|check| !check.ok);
    let red = red
        .map(|check| (check.id, check.offenders.join("; ")))
        .collect();
    world.end().await;
    red
}

fn names(red: &[(String, String)], rule: &str, offender: &str) -> bool {
    red.iter()
        .any(|(id, offenders)| id == rule && offenders.contains(offender))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_of_stock_changed_by_hand_is_named() {
    let red = red_after("update stock set sold = sold + 1 where sku = 'TAMPER'").await;
    assert!(
        names(&red, "I2", "TAMPER") && names(&red, "I3", "TAMPER"),
        "{red:?}"
    );
    let red = red_after("update stock set on_hand = on_hand - 1 where sku = 'TAMPER'").await;
    assert!(names(&red, "I3", "TAMPER"), "{red:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_changed_by_hand_is_named() {
    let red = red_after(
        "update orders set status = 'CANCELED' where id = '$ORDER'; 
         delete from idempotency where order_id = '$ORDER'",
    )
    .await;
    for rule in ["I2", "I4", "I5", "I8"] {
        assert!(
            red.iter().any(|(id, _)| id == rule),
            "{rule} is not red: {red:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn money_changed_by_hand_is_named() {
    let red = red_after(
        "update payments set captured_minor = 0, updated_at = now() - interval '1 minute'
         where order_id = '$ORDER'",
    )
    .await;
    assert!(red.iter().any(|(id, _)| id == "I26"), "{red:?}");
    assert!(red.iter().any(|(id, _)| id == "I16"), "{red:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_the_outbox_lost_is_named() {
    let red = red_after("delete from outbox where type = 'ORDER_CONFIRMED'").await;
    assert!(names(&red, "I23", "not in the outbox"), "{red:?}");
}

/// The invariants right after `HINCRBY` of a gate, and `holdfast verify` until it is clean again by
/// itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_gate_changed_by_hand_is_red_at_once_and_green_again_by_itself_within_thirty_seconds() {
    let world = World::start().await;
    world.operator().put_sku("DRIFT", 10, &json!({})).await;
    let placed = world
        .shop()
        .decide("d", &api::order("c", &[("DRIFT", 2)]))
        .await;
    world.until(&api::accepted(&placed), "CONFIRMED").await;
    world.settled().await;
    plant(&world, "DRIFT", 7).await;
    let planted = platform::clock::monotonic();
    // One look: `holdfast verify` looks twice, and on a busy machine the gate may be right again by
    // then.
    let checks = world.checks().await;
    let red: Vec<&str> = checks
        .iter()
        .filter(|check| !check.ok)
        .map(|check| check.id.as_str())
        .collect();
    assert!(red.contains(&"I20"), "red: {red:?}");
    while !world.verify().await.ok {
        let waited = planted.elapsed();
        assert!(
            waited < Duration::from_secs(30),
            "still red after {waited:?}"
        );
    }
    tracing::info!(
        duration_ms = planted.elapsed().as_millis(),
        "the gate is right again"
    );
    world.end().await;
}

async fn plant(world: &World, sku: &str, by: i64) {
    let epoch = match world.gate_client().current_epoch(Shard(0)).await {
        Ok(Some(epoch)) => epoch.epoch,
        other => panic!("{other:?}"),
    };
    let key = format!("{}:{{0}}:{epoch}:gate:{sku}", world.key_prefix);
    let plant = async {
        let client = redis::Client::open(world.redis_url.as_str())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        redis::cmd("HINCRBY")
            .arg(&key)
            .arg("held")
            .arg(by)
            .query_async::<i64>(&mut connection)
            .await
    };
    if let Err(error) = plant.await {
        panic!("{error}");
    }
}
