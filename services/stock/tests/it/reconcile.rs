//! `holdfast reconcile`: says what is wrong with the gate, and repairs it on demand.

use serde_json::json;
use stock::reconcile::{fix, plan};

use crate::{
    gate::{key, redis_do},
    support::World,
};

#[tokio::test]
async fn the_plan_names_what_is_wrong_and_the_fix_leaves_nothing_of_it() {
    let world = World::with_gate().await;
    world.sku("L", 50, Some(5)).await;
    stock::sync_gate::sync_skus(&world.stock, &[crate::support::sku("L")])
        .await
        .unwrap();
    let placed = world.place_with_hold("c-1", &[("A", 2), ("L", 1)]).await;
    let calm = plan(&world.stock).await.unwrap();
    assert_eq!(
        serde_json::to_value(&calm).unwrap(),
        json!({ "ok": true, "repairs": [] })
    );

    let gate = key(&world, ":gate:A").await;
    redis_do(&world, &["HINCRBY", &gate, "held", "7"]).await;
    let buyers = key(&world, ":buyers:L").await;
    redis_do(&world, &["HSET", &buyers, "shop/c-9", "4"]).await;
    let wrong = plan(&world.stock).await.unwrap();
    assert_eq!(
        serde_json::to_value(&wrong).unwrap(),
        json!({ "ok": false, "repairs": [
            { "sku": "A", "what": "held", "before": 9, "after": 2 },
            { "sku": "L", "what": "buyer shop/c-9", "before": 4, "after": null },
        ] })
    );
    let fixed = fix(&world.stock).await.unwrap();
    assert!(fixed.ok);
    assert_eq!(fixed.repairs, wrong.repairs);
    assert!(plan(&world.stock).await.unwrap().ok);
    world.assert_gate_agrees().await;

    // A hold that the gate has lost, and one that it should not have any more.
    let holds = key(&world, ":holds").await;
    let id = placed.hold.hold_id.to_string();
    redis_do(&world, &["HDEL", &holds, &id]).await;
    let wrong = plan(&world.stock).await.unwrap();
    let named: Vec<&str> = wrong.repairs.iter().map(|one| one.what.as_str()).collect();
    assert_eq!(named, [format!("hold {id}"), format!("hold {id}")]);
    assert!(fix(&world.stock).await.unwrap().ok);
    world.assert_gate_agrees().await;
}

#[tokio::test]
async fn damaged_keys_are_named_in_the_plan_and_the_fix_builds_them_anew() {
    let world = World::with_gate().await;
    world.place_with_hold("c-1", &[("A", 2)]).await;
    let gate = key(&world, ":gate:A").await;
    redis_do(&world, &["HSET", &gate, "limit", "many"]).await;
    let due = key(&world, ":due").await;
    redis_do(&world, &["SET", &due, "a text"]).await;
    let wrong = plan(&world.stock).await.unwrap();
    let named: Vec<&str> = wrong
        .repairs
        .iter()
        .filter(|one| serde_json::to_value(one).unwrap()["before"] == "damaged")
        .map(|one| one.what.as_str())
        .collect();
    assert!(
        named.contains(&&*due) && named.contains(&"gate A"),
        "{named:?}"
    );
    assert_eq!(named.len(), 2, "{named:?}");
    assert!(fix(&world.stock).await.unwrap().ok);
    assert!(plan(&world.stock).await.unwrap().ok);
    world.assert_gate_agrees().await;
}

#[tokio::test]
async fn a_lost_shard_is_one_line_of_the_plan_and_is_rebuilt() {
    let world = World::with_gate().await;
    world.place_with_hold("c-1", &[("A", 2)]).await;
    let meta = key(&world, ":meta").await;
    redis_do(&world, &["DEL", &meta]).await;
    let wrong = plan(&world.stock).await.unwrap();
    assert_eq!(
        serde_json::to_value(&wrong).unwrap(),
        json!({ "ok": false, "repairs": [
            { "sku": "*", "what": "shard 0", "before": "lost", "after": "open" },
        ] })
    );
    assert!(fix(&world.stock).await.unwrap().ok);
    world.assert_gate_agrees().await;
}
