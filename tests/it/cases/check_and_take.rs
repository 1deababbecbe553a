//! Class A: looking at stock and taking it are one step.

use futures::stream::{self, StreamExt};
use serde_json::json;
use tests::{World, api};

use super::{
    Watcher, count, gate_row, place_many, rush, two_replicas_without_payment, wait_for_held,
};

#[tokio::test(flavor = "multi_thread")]
async fn an_eager_buyer_gets_one_unit_and_the_crowd_exactly_the_rest() {
    let world = two_replicas_without_payment().await;
    let one_each = json!({ "per_customer_limit": 1 });
    world.operator().put_sku("CROWD", 50, &one_each).await;
    let watcher = Watcher::start(&world);
    let shops = world.shops();
    let eager = futures::future::join_all((0..100).map(|number| {
        let shop = shops[number % 2].clone();
        async move {
            let body = api::order("eager", &[("CROWD", 1)]);
            let answer = shop.decide(&format!("eager-{number}"), &body).await;
            (answer.status.as_u16(), answer.json()["code"].clone())
        }
    }))
    .await;
    let limited = eager
        .iter()
        .filter(|(status, code)| *status == 409 && code == "purchase-limit");
    assert_eq!(limited.count(), 99, "{eager:?}");
    assert_eq!(eager.iter().filter(|(status, _)| *status == 201).count(), 1);
    let stock = world.operator().get("/v1/skus/CROWD").await;
    assert_eq!(stock["available"], 49, "{stock}");

    let crowd = rush(&shops, "CROWD", "crowd", 400).await;
    assert_eq!(
        (count(&crowd, 201), count(&crowd, 410)),
        (49, 351),
        "{crowd:?}"
    );
    let stock = world.operator().get("/v1/skus/CROWD").await;
    assert_eq!(
        (&stock["available"], &stock["held"], &stock["sold"]),
        (&json!(0), &json!(50), &json!(0)),
        "{stock}"
    );
    assert_eq!(world.count("select count(*) from orders").await, 50);
    assert_eq!(
        world.count("select sum(quantity) from order_lines").await,
        50
    );
    wait_for_held(&world, "CROWD", 50).await;
    assert_eq!(
        gate_row(&world, "CROWD").await.map(|row| row.limit),
        Some(50)
    );
    watcher.saw_nothing().await;
    world.consistent().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_buyers_of_the_last_unit_are_one_buyer() {
    let world = two_replicas_without_payment().await;
    world.operator().put_sku("LAST", 1, &json!({})).await;
    let watcher = Watcher::start(&world);
    let statuses = rush(&world.shops(), "LAST", "last", 1_000).await;
    assert_eq!(
        (count(&statuses, 201), count(&statuses, 410)),
        (1, 999),
        "{:?}",
        statuses.iter().find(|status| ![201, 410].contains(*status))
    );
    watcher.saw_nothing().await;
    world.consistent().await;
    world.end().await;
}

/// Stock that is split into buckets by customer leaves units over when few customers buy much.
#[tokio::test(flavor = "multi_thread")]
async fn few_customers_who_buy_much_buy_all_there_is() {
    let world = two_replicas_without_payment().await;
    world.operator().put_sku("SKEW", 60, &json!({})).await;
    let shops = world.shops();
    let statuses = futures::future::join_all((0..100).map(|number| {
        let shop = shops[number % 2].clone();
        async move {
            let customer = if number % 10 == 0 { "rare" } else { "frequent" };
            let body = api::order(customer, &[("SKEW", 1)]);
            let answer = shop.decide(&format!("skew-{number}"), &body).await;
            answer.status.as_u16()
        }
    }))
    .await;
    assert_eq!(
        (count(&statuses, 201), count(&statuses, 410)),
        (60, 40),
        "{statuses:?}"
    );
    world.consistent().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restocks_while_orders_arrive_sell_each_unit_once() {
    let world = World::start().await;
    world.operator().put_sku("MORE", 20, &json!({})).await;
    let (operator, shops) = (world.operator(), world.shops());
    let watcher = Watcher::start(&world);
    let restocks = async {
        for number in 0..10 {
            let more = json!({ "delta": 4, "reason": "restock" });
            let path = "/v1/skus/MORE/adjustments";
            let key = format!("restock-{number}");
            let answer = operator
                .ask(http::Method::POST, path, Some(&key), Some(&more))
                .await;
            assert_eq!(answer.status, 201);
        }
    };
    let (early, ()) = tokio::join!(rush(&shops, "MORE", "early", 150), restocks);
    // Who was refused meanwhile comes back with the same key, which a refusal has not used up.
    // The gate hears of a restock a moment after it, so not each refusal is the last one.
    let late = tests::wait_for("every unit to be sold", async || {
        let late = rush(&shops, "MORE", "early", 150).await;
        (count(&late, 201) >= 60).then_some(late)
    })
    .await;
    assert!(
        early
            .iter()
            .chain(&late)
            .all(|status| [201, 410].contains(status))
    );
    assert_eq!(count(&late, 201), 60, "{late:?}");
    world.settled().await;
    let stock = world.operator().get("/v1/skus/MORE").await;
    assert_eq!(
        (&stock["on_hand"], &stock["sold"], &stock["available"]),
        (&json!(60), &json!(60), &json!(0)),
        "{stock}"
    );
    watcher.saw_nothing().await;
    world.end().await;
}

/// Order numbers made of the user and the millisecond collide.
#[tokio::test(flavor = "multi_thread")]
async fn one_customer_a_thousand_times_at_once_gets_a_thousand_orders() {
    let world = two_replicas_without_payment().await;
    world.operator().put_sku("SAME", 1_000, &json!({})).await;
    let shops = world.shops();
    let ids: std::collections::BTreeSet<String> = stream::iter((0..1_000).map(|number| {
        let shop = shops[number % 2].clone();
        async move { super::place(&shop, &format!("same-{number}"), "one", "SAME").await }
    }))
    .buffer_unordered(super::AT_ONCE)
    .collect()
    .await;
    assert_eq!(ids.len(), 1_000);
    assert_eq!(world.count("select count(*) from orders").await, 1_000);
    let stock = world.operator().get("/v1/skus/SAME").await;
    assert_eq!(
        (&stock["available"], &stock["held"]),
        (&json!(0), &json!(1_000))
    );
    world.consistent().await;
    world.end().await;
}

/// Ids that begin again after a restart overwrite old orders.
#[tokio::test(flavor = "multi_thread")]
async fn ids_never_repeat_over_restarts() {
    let mut world = World::start().await;
    world.operator().put_sku("IDS", 100, &json!({})).await;
    let mut ids = Vec::new();
    for life in 0..3 {
        ids.extend(place_many(&world, "IDS", &format!("life-{life}"), 20).await);
        world.order.remove(0).stop().await;
        world.start_order();
        world.ready().await;
    }
    let distinct: std::collections::BTreeSet<&String> = ids.iter().collect();
    assert_eq!(distinct.len(), 60);
    assert_eq!(world.count("select count(*) from orders").await, 60);
    let events = "select count(distinct event_id) - count(*) from outbox";
    assert_eq!(world.count(events).await, 0);
    world.settled().await;
    world.end().await;
}
