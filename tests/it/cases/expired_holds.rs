//! Class B: what is held is given back once, whoever sleeps; take and return are mirror images.

use std::time::Duration;

use contracts::{HoldId, OrderId};
use domain::{Buyer, Hold, Shard};
use http::Method;
use reservations::SettleOutcome;
use serde_json::json;
use tests::{Options, World, api, wait_for};

use super::{place, place_many, rush, wait_for_deadlines, wait_for_held, wait_until_read};
use crate::upstream::{Upstream, upstream};

const TTL: i64 = 2;

/// Longer than the time to live, and longer than any timer of the gate's first question.
const ASLEEP: Duration = Duration::from_secs(6);

async fn stop_the_sweeper(world: &mut World) {
    if let Some(stock) = world.stock.take() {
        stock.stop().await;
    }
}

/// Longer than the time to live, since the moment when the sweeper fell asleep.
async fn sleep_past_the_deadlines(world: &World, asleep_since: std::time::Instant) {
    wait_for_deadlines(world).await;
    tokio::time::sleep_until((asleep_since + ASLEEP).into()).await;
}

/// The sweeper and the consumers are away for three times the time to live: no hold vanishes with a
/// key, and none is forgotten. Ours was the outage, so the buyers get the lost time back first (P5).
#[tokio::test(flavor = "multi_thread")]
async fn holds_outlive_a_sweeper_that_slept_past_their_time_and_come_back_once() {
    let mut world = World::with(Options {
        without_payment: true,
        upstream: true,
        ..Options::default()
    })
    .await;
    let short = json!({ "reservation_ttl_seconds": TTL });
    world.operator().put_sku("SLEPT", 10, &short).await;
    stop_the_sweeper(&mut world).await;
    let asleep_since = platform::clock::monotonic();
    place_many(&world, "SLEPT", "slept", 10).await;
    wait_for_held(&world, "SLEPT", 10).await;
    sleep_past_the_deadlines(&world, asleep_since).await;
    wait_for_held(&world, "SLEPT", 10).await;
    assert_eq!(rush(&world.shops(), "SLEPT", "early", 5).await, [410; 5]);
    world.start_stock();
    world.ready().await;
    wait_for("all ten to expire", || async {
        let expired = "select count(*) from orders where status = 'EXPIRED' and version = 2";
        (world.count(expired).await == 10).then_some(())
    })
    .await;
    wait_for_held(&world, "SLEPT", 0).await;
    let stock = world.operator().get("/v1/skus/SLEPT").await;
    assert_eq!(
        (&stock["available"], &stock["sold"]),
        (&json!(10), &json!(0))
    );
    let events = world.count("select count(*) from outbox where type = 'ORDER_EXPIRED'");
    assert_eq!(events.await, 10);
    world.settled().await;
    // Another sweep has nothing left to give back: everything is sold again, and once.
    let again = rush(&world.shops(), "SLEPT", "again", 20).await;
    assert_eq!(super::count(&again, 201), 10, "{again:?}");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn money_that_came_while_the_sweeper_slept_buys_or_goes_back_and_never_both() {
    let mut world = upstream().await;
    let short = json!({ "reservation_ttl_seconds": TTL });
    world.operator().put_sku("PAIDLATE", 10, &short).await;
    stop_the_sweeper(&mut world).await;
    let asleep_since = platform::clock::monotonic();
    let orders = place_many(&world, "PAIDLATE", "late", 10).await;
    sleep_past_the_deadlines(&world, asleep_since).await;
    let payments = Upstream::new(&world);
    for (number, order) in orders.iter().take(5).enumerate() {
        payments
            .pays(&format!("e-{number}"), &format!("p-{number}"), order)
            .await;
    }
    drop(payments);
    world.start_stock();
    world.ready().await;
    Upstream::new(&world).handled(5).await;
    world.settled().await;
    let both_or_neither = world.count(
        "select count(*) from payments p join orders o on o.id = p.order_id
         left join refunds r on r.payment_id = p.id
         where (o.status = 'CONFIRMED') = (r.payment_id is not null)",
    );
    assert_eq!(both_or_neither.await, 0);
    let confirmed = world
        .count("select count(*) from orders where status = 'CONFIRMED'")
        .await;
    let expired = world
        .count("select count(*) from orders where status = 'EXPIRED'")
        .await;
    assert_eq!(confirmed + expired, 10);
    assert!(confirmed <= 5, "only five were paid");
    assert_eq!(world.count("select sold from stock").await, confirmed);
    world.end().await;
}

fn stranger(sku: &str) -> Hold {
    let (Ok(shop), Ok(customer), Ok(sku)) = ("shop".parse(), "nobody".parse(), sku.parse()) else {
        panic!("names")
    };
    let Ok(quantity) = contracts::Quantity::new(1) else {
        panic!("one")
    };
    Hold {
        hold_id: HoldId::derive("test", "stranger", "nobody"),
        buyer: Buyer { shop, customer },
        lines: vec![contracts::Line { sku, quantity }],
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_payment_gives_its_unit_back_and_what_was_never_held_gives_nothing() {
    let world = upstream().await;
    world.operator().put_sku("MIRROR", 1, &json!({})).await;
    let (shop, payments) = (world.shop(), Upstream::new(&world));
    let first = place(&shop, "first", "a", "MIRROR").await;
    let refused = shop
        .decide("refused", &api::order("c", &[("MIRROR", 1)]))
        .await;
    assert_eq!(refused.status, 410);
    payments.fails("e-1", "p-1", &first, true).await;
    world.until(&first, "CANCELED").await;
    // Two seconds from A's failure on a machine that has time.
    wait_for("B to get A's unit", || async {
        let answer = shop
            .decide("second", &api::order("b", &[("MIRROR", 1)]))
            .await;
        (answer.status == 201).then_some(())
    })
    .await;
    let unchanged = || async {
        let stock = world.operator().get("/v1/skus/MIRROR").await;
        assert_eq!(
            (&stock["available"], &stock["held"], &stock["sold"]),
            (&json!(0), &json!(1), &json!(0)),
            "{stock}"
        );
    };
    let cancel = |order: String| {
        let shop = shop.clone();
        async move {
            let path = format!("/v1/orders/{order}/cancel");
            let body = json!({ "reason": "again" });
            shop.ask(Method::POST, &path, None, Some(&body)).await
        }
    };
    // An order that was answered 410 has no id; any other is as unknown.
    let unknown = OrderId::generate().to_string();
    assert_eq!(cancel(unknown.clone()).await.status, 404);
    for _ in 0..2 {
        let answer = cancel(first.clone()).await;
        assert!(
            [200, 409].contains(&answer.status.as_u16()),
            "{}",
            answer.status
        );
        assert_eq!(world.until(&first, "CANCELED").await["version"], 2);
    }
    payments.fails("e-2", "p-2", &unknown, true).await;
    payments.fails("e-3", "p-1", &first, true).await;
    wait_for("the unknown order's news to be set aside", || async {
        (world.count("select count(*) from dead_letters").await == 1).then_some(())
    })
    .await;
    wait_until_read(&world).await;
    unchanged().await;
    wait_for_held(&world, "MIRROR", 1).await;
    let gate = world.gate_client();
    for _ in 0..2 {
        match gate.release(Shard(0), &[stranger("MIRROR")], &[]).await {
            Ok(outcomes) => assert_eq!(outcomes, [SettleOutcome::Absent]),
            Err(error) => panic!("{error}"),
        }
    }
    wait_for_held(&world, "MIRROR", 1).await;
    unchanged().await;
    world.consistent().await;
    world.end().await;
}
