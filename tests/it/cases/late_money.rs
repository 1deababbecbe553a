//! Class C: news of payments that comes late, stale or out of order, against expiry and cancel.

use serde_json::json;
use tests::api;

use super::{make_due, place, place_many, wait_until_read};
use crate::upstream::{Upstream, upstream};

/// "Ignored" is counted by rows here: the counters of a process belong to every test in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_stale_failure_never_undoes_a_paid_order() {
    let world = upstream().await;
    world.operator().put_sku("STALE", 5, &json!({})).await;
    world.operator().put_sku("WITNESS", 5, &json!({})).await;
    let payments = Upstream::new(&world);
    let order = place(&world.shop(), "stale", "c", "STALE").await;
    // The first attempt is abandoned, which is not final; the second one in the same session pays.
    payments.fails("e-0", "p-1", &order, false).await;
    payments.pays("e-1", "p-2", &order).await;
    assert_eq!(world.until(&order, "CONFIRMED").await["version"], 2);
    wait_until_read(&world).await;
    let own = format!("select count(*) from outbox where key in ('{order}', 'STALE')");
    let announced = world.count(&own).await;
    let stock = world.operator().get("/v1/skus/STALE").await;

    for event in ["e-2", "e-3"] {
        payments.fails(event, "p-1", &order, true).await;
        payments.handled(if event == "e-2" { 3 } else { 4 }).await;
        // The sweep runs each second: it has looked when a witness has expired.
        let witness = place(&world.shop(), event, "w", "WITNESS").await;
        world
            .tamper(
                "update orders set reserved_until = clock_timestamp() where status <> 'EXPIRED'",
            )
            .await;
        world.until(&witness, "EXPIRED").await;
    }
    let now = world.until(&order, "CONFIRMED").await;
    assert_eq!(
        (&now["version"], &now["reason"]),
        (&json!(2), &json!("paid"))
    );
    assert_eq!(world.count(&own).await, announced, "zero new outbox rows");
    assert_eq!(world.count("select count(*) from refunds").await, 0);
    assert_eq!(world.operator().get("/v1/skus/STALE").await, stock);
    assert_eq!(
        world
            .count("select count(*) from inbox where consumer = 'stock'")
            .await,
        4
    );
    world.settled().await;
    world.end().await;
}

/// The documented rule: money that comes after the end goes back, also when a unit is free.
#[tokio::test(flavor = "multi_thread")]
async fn money_for_an_expired_order_goes_back_though_its_unit_is_still_free() {
    let world = upstream().await;
    let short = json!({ "reservation_ttl_seconds": 1 });
    world.operator().put_sku("FREE", 1, &short).await;
    let payments = Upstream::new(&world);
    let order = place(&world.shop(), "free", "c", "FREE").await;
    world.until(&order, "EXPIRED").await;
    payments.pays("e-1", "p-1", &order).await;
    payments.pays("e-1", "p-1", &order).await;
    payments.pays("e-2", "p-1", &order).await;
    payments.handled(2).await;
    wait_until_read(&world).await;
    assert_eq!(world.until(&order, "EXPIRED").await["version"], 2);
    assert_eq!(world.count("select count(*) from refunds").await, 1);
    let asked = world.count(
        "select count(distinct data::jsonb ->> 'refund_key') from outbox
         where type = 'REFUND_REQUESTED'",
    );
    assert_eq!(asked.await, 1);
    let stock = world.operator().get("/v1/skus/FREE").await;
    assert_eq!(
        (&stock["available"], &stock["sold"]),
        (&json!(1), &json!(0)),
        "{stock}"
    );
    world.settled().await;
    world.end().await;
}

/// However late the news: the order ends by its deadline, and the news finds an end.
#[tokio::test(flavor = "multi_thread")]
async fn no_order_waits_for_news_that_never_comes() {
    let world = upstream().await;
    let short = json!({ "reservation_ttl_seconds": 1 });
    world.operator().put_sku("SILENCE", 5, &short).await;
    let payments = Upstream::new(&world);
    let mut orders = Vec::new();
    for number in 0..4 {
        orders.push(place(&world.shop(), &format!("s-{number}"), "c", "SILENCE").await);
    }
    for order in &orders {
        world.until(order, "EXPIRED").await;
    }
    // An answer, a refusal, one that is not final, and none at all.
    payments.pays("e-0", "p-0", &orders[0]).await;
    payments.fails("e-1", "p-1", &orders[1], true).await;
    payments.fails("e-2", "p-2", &orders[2], false).await;
    payments.handled(3).await;
    for order in &orders {
        assert_eq!(world.until(order, "EXPIRED").await["version"], 2);
    }
    assert_eq!(world.count("select count(*) from refunds").await, 1);
    world.settled().await;
    let again = api::order("again", &[("SILENCE", 5)]);
    api::accepted(&world.shop().decide("all", &again).await);
    world.settled().await;
    world.end().await;
}

/// Money for five hundred orders comes one after the other while all their time ends.
#[tokio::test(flavor = "multi_thread")]
async fn expiry_and_money_for_five_hundred_orders_end_each_once_and_the_sums_are_right() {
    let world = upstream().await;
    world.operator().put_sku("RACE", 500, &json!({})).await;
    let orders = place_many(&world, "RACE", "race", 500).await;
    let payments = Upstream::new(&world);
    for (number, order) in orders.iter().enumerate() {
        if number == 150 {
            make_due(&world).await;
        }
        let (event, payment) = (format!("e-{number}"), format!("p-{number}"));
        payments.pays(&event, &payment, order).await;
    }
    payments.handled(500).await;
    world.settled().await;
    let ends = "select count(*) from orders where version = 2 and status = ";
    let confirmed = world.count(&format!("{ends}'CONFIRMED'")).await;
    let expired = world.count(&format!("{ends}'EXPIRED'")).await;
    assert_eq!(confirmed + expired, 500);
    let refunds = world.count("select count(*) from refunds").await;
    assert_eq!(refunds, expired, "one refund per expired and paid order");
    let stock = world.operator().get("/v1/skus/RACE").await;
    assert_eq!(
        (&stock["sold"], &stock["available"]),
        (&json!(confirmed), &json!(expired)),
        "{stock}"
    );
    world.end().await;
}
