//! Class E: an event that comes again, from anywhere, has no second effect.

use contracts::{ConsumerName, Topic};
use futures::future::join_all;
use serde_json::{Value, json};
use tests::{Options, World, api, wait_for};

use super::{make_due, place_many, wait_until_read};
use crate::upstream::{PRICE, Upstream, upstream};

#[tokio::test(flavor = "multi_thread")]
async fn copies_on_two_partitions_handled_side_by_side_have_one_effect() {
    let mut world = upstream().await;
    // A second instance: each of the copies may be handled by another one at the same moment.
    let first = world.stock.take();
    world.start_stock();
    world.ready().await;
    world.operator().put_sku("COPIES", 500, &json!({})).await;
    let orders = place_many(&world, "COPIES", "copy", 500).await;
    let payments = Upstream::new(&world);
    join_all((0..1_000).map(|number| {
        let (order, payments) = (&orders[number / 2], &payments);
        async move {
            let (event, payment) = (format!("e-{}", number / 2), format!("p-{}", number / 2));
            let data = Upstream::completed(&payment, order, (PRICE, "KRW"));
            let partition = i32::try_from(number % 2).unwrap_or(0);
            let event = (event.as_str(), "PAYMENT_COMPLETED");
            payments.write(Some(partition), event, order, &data).await;
        }
    }))
    .await;
    drop(payments);
    wait_until_read(&world).await;
    world.settled().await;
    let stock = world.operator().get("/v1/skus/COPIES").await;
    assert_eq!((&stock["sold"], &stock["held"]), (&json!(500), &json!(0)));
    for (what, sql) in [
        (
            "transitions",
            "select count(*) from order_history where version = 2",
        ),
        (
            "announcements",
            "select count(*) from outbox where type = 'ORDER_CONFIRMED'",
        ),
        (
            "inbox rows",
            "select count(*) from inbox where consumer = 'stock'",
        ),
    ] {
        assert_eq!(world.count(sql).await, 500, "{what}");
    }
    assert_eq!(world.count("select count(*) from refunds").await, 0);
    assert_eq!(world.count("select count(*) from dead_letters").await, 0);
    if let Some(first) = first {
        first.stop().await;
    }
    world.end().await;
}

async fn stop_services(world: &mut World) {
    for order in world.order.drain(..) {
        order.stop().await;
    }
    let others = [world.payment.take(), world.stock.take()];
    for service in others.into_iter().flatten() {
        service.stop().await;
    }
}

async fn start_services(world: &mut World) {
    world.start_stock();
    world.start_order();
    world.start_payment();
    world.ready().await;
}

/// All that money and units depend on, and the number of announcements that are no copies of dead
/// letters; and what the gateway executed.
async fn state(world: &World) -> Value {
    let mut state = serde_json::Map::new();
    for (name, sql) in [
        (
            "orders",
            "select coalesce(sum(hashtext(id::text || status || version)::bigint), 0)::bigint from orders",
        ),
        (
            "stock",
            "select sum(hashtext(sku || on_hand || ',' || held || ',' || sold)::bigint)::bigint from stock",
        ),
        (
            "payments",
            "select coalesce(sum(hashtext(id || state || captured_minor || refunded_minor || applied)::bigint), 0)::bigint
             from payments",
        ),
        ("refunds", "select count(*) from refunds"),
        ("history", "select count(*) from order_history"),
        ("announcements", "select count(*) from outbox where topic not like '%dlq%'"),
    ] {
        state.insert(name.to_owned(), json!(world.count(sql).await));
    }
    let journal = world.gateway().get("/v1/journal").await;
    state.insert("gateway".to_owned(), journal["totals"].clone());
    Value::Object(state)
}

async fn replay_from_the_start(world: &mut World) {
    stop_services(world).await;
    // As an operator does while nobody consumes.
    for consumer in ConsumerName::ALL {
        world.kafka.reset_offsets(consumer).await;
    }
    start_services(world).await;
    wait_until_read(world).await;
    world.consistent().await;
}

/// 120 orders in mixed endings here.
#[tokio::test(flavor = "multi_thread")]
async fn an_offset_reset_replays_everything_and_changes_nothing_with_or_without_the_inbox() {
    let mut world = World::with(Options {
        gateway_flags: ["--gateway-decline-rate=0.4", "--gateway-not-final-rate=0.5"]
            .map(str::to_owned)
            .to_vec(),
        ..Options::default()
    })
    .await;
    world.operator().put_sku("REPLAY", 200, &json!({})).await;
    place_many(&world, "REPLAY", "replay", 120).await;
    wait_for("every payment to be decided", || async {
        let open = "select count(*) from orders o where not exists (
                        select from payments p where p.order_id = o.id and p.state <> 'PENDING')";
        (world.count(open).await == 0).then_some(())
    })
    .await;
    wait_until_read(&world).await;
    // Those whose payment failed and may be tried again.
    make_due(&world).await;
    let poison = world
        .kafka
        .produce_raw(Topic::Payments, Some("x"), &[], Some(b"poison"));
    poison.await;
    world.settled().await;
    let before = state(&world).await;
    for end in ["CONFIRMED", "CANCELED", "EXPIRED"] {
        let sql = format!("select count(*) from orders where status = '{end}'");
        assert!(world.count(&sql).await > 0, "no order was {end}");
    }

    replay_from_the_start(&mut world).await;
    assert_eq!(state(&world).await, before, "replayed");

    // The clean-up of the inbox came before the topics' retention ended.
    world.tamper("delete from inbox").await;
    replay_from_the_start(&mut world).await;
    assert_eq!(state(&world).await, before, "replayed without the inbox");

    // What was set aside is written to its topic again.
    let letters = world.kafka.dead_letters(ConsumerName::Stock).await;
    assert!(!letters.is_empty(), "the poison was set aside");
    for letter in &letters {
        world
            .kafka
            .produce_raw(Topic::Payments, Some("x"), &[], letter.payload.as_deref())
            .await;
    }
    wait_for("the dead letters to be set aside again", || async {
        let sql = "select count(*) from dead_letters where payload = 'poison'::bytea";
        (world.count(sql).await >= 2).then_some(())
    })
    .await;
    wait_until_read(&world).await;
    assert_eq!(state(&world).await, before, "dead letters replayed");
    world.consistent().await;
    world.end().await;
}

/// A repeated end of an order, from the payment system or by cancel, moves no unit.
#[tokio::test(flavor = "multi_thread")]
async fn every_end_told_twice_moves_its_units_once() {
    let world = upstream().await;
    world.operator().put_sku("TWICE", 40, &json!({})).await;
    let orders = place_many(&world, "TWICE", "twice", 30).await;
    let payments = Upstream::new(&world);
    let shop = world.shop();
    for round in 0..2 {
        for (number, order) in orders.iter().enumerate() {
            // The second telling has an event id of its own.
            let (event, payment) = (format!("e-{round}-{number}"), format!("p-{number}"));
            match number % 3 {
                0 => payments.pays(&event, &payment, order).await,
                1 => payments.fails(&event, &payment, order, true).await,
                _ => {
                    let path = format!("/v1/orders/{order}/cancel");
                    let body = json!({ "reason": "twice" });
                    let answer = shop.ask(http::Method::POST, &path, None, Some(&body)).await;
                    assert_eq!(answer.status, 200);
                }
            }
        }
        payments.handled(20 * (round + 1)).await;
        wait_until_read(&world).await;
        let stock = world.operator().get("/v1/skus/TWICE").await;
        assert_eq!(
            (&stock["sold"], &stock["held"], &stock["available"]),
            (&json!(10), &json!(0), &json!(30)),
            "told {} times: {stock}",
            round + 1
        );
    }
    let told = world
        .count("select count(*) from order_history where to_status in ('CONFIRMED', 'CANCELED')");
    assert_eq!(told.await, 30);
    let rest = api::order("rest", &[("TWICE", 31)]);
    assert_eq!(world.shop().decide("rest", &rest).await.status, 410);
    world.consistent().await;
    world.end().await;
}
