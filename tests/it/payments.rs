//! Money and orders: whoever's guarded update commits first wins, each event has one effect, and
//! money that belongs to no confirmed order goes back exactly once.

use futures::future::join_all;
use http::Method;
use rand::seq::SliceRandom;
use serde_json::json;
use tests::{Options, World, api, wait_for};

use crate::upstream::{PRICE, Upstream, upstream};

async fn place(world: &World, key: &str, sku: &str) -> String {
    api::accepted(
        &world
            .shop()
            .decide(key, &api::order("c-1", &[(sku, 1)]))
            .await,
    )
}

async fn cancel(world: &World, order: &str) -> http::StatusCode {
    let path = format!("/v1/orders/{order}/cancel");
    let body = json!({ "reason": "changed my mind" });
    world
        .shop()
        .ask(Method::POST, &path, None, Some(&body))
        .await
        .status
}

/// Makes the time of an order end now, by the database's clock.
async fn make_due(world: &World, order: &str) {
    world
        .tamper(&format!(
            "update orders set reserved_until = clock_timestamp() where id = '{order}'"
        ))
        .await;
}

async fn refunds(world: &World) -> i64 {
    world.count("select count(*) from refunds").await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_event_delivered_one_to_five_times_and_shuffled_ends_the_same() {
    let world = upstream().await;
    let payments = Upstream::new(&world);
    world.operator().put_sku("SHUFFLE", 100, &json!({})).await;
    let mut deliveries = Vec::new();
    let mut orders = Vec::new();
    for number in 0..60 {
        let order = place(&world, &format!("s-{number}"), "SHUFFLE").await;
        let (kind, data) = if number % 3 == 0 {
            let failed = json!({ "payment_id": format!("p-{number}"), "order_id": order,
                                 "reason_code": "declined", "final": true });
            ("PAYMENT_FAILED", failed)
        } else {
            (
                "PAYMENT_COMPLETED",
                Upstream::completed(&format!("p-{number}"), &order, (PRICE, "KRW")),
            )
        };
        for _ in 0..=(number % 5) {
            deliveries.push((order.clone(), format!("e-{number}"), kind, data.clone()));
        }
        orders.push(order);
    }
    deliveries.shuffle(&mut rand::rng());
    for (order, event, kind, data) in &deliveries {
        payments.write(None, (event, *kind), order, data).await;
    }
    for (number, order) in orders.iter().enumerate() {
        let end = if number % 3 == 0 {
            "CANCELED"
        } else {
            "CONFIRMED"
        };
        assert_eq!(world.until(order, end).await["version"], 2);
    }
    world.settled().await;
    let stock = world.operator().get("/v1/skus/SHUFFLE").await;
    assert_eq!(
        (&stock["sold"], &stock["held"]),
        (&json!(40), &json!(0)),
        "{stock}"
    );
    assert_eq!(refunds(&world).await, 0);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn money_that_comes_after_expiry_is_refunded_once() {
    let world = upstream().await;
    let payments = Upstream::new(&world);
    world.operator().put_sku("SHORT", 1, &json!({})).await;
    let order = place(&world, "short", "SHORT").await;
    make_due(&world, &order).await;
    assert_eq!(
        world.until(&order, "EXPIRED").await["reason"],
        "deadline-passed"
    );
    // The unit is resold meanwhile; the gate may follow the expiry a moment later.
    let other = wait_for("the unit to come back", || async {
        let answer = world
            .shop()
            .decide("resold", &api::order("c-2", &[("SHORT", 1)]))
            .await;
        (answer.status == 201).then(|| api::accepted(&answer))
    })
    .await;
    payments.pays("e-2", "p-2", &other).await;
    world.until(&other, "CONFIRMED").await;
    for event in ["e-1", "e-1", "e-1-again"] {
        payments.pays(event, "p-1", &order).await;
    }
    payments.handled(3).await;
    assert_eq!(world.until(&order, "EXPIRED").await["version"], 2);
    assert_eq!(refunds(&world).await, 1);
    let asked = world.count(
        "select count(distinct data::jsonb ->> 'refund_key') from outbox
         where type = 'REFUND_REQUESTED'",
    );
    assert_eq!(asked.await, 1);
    world.settled().await;
    let stock = world.operator().get("/v1/skus/SHORT").await;
    assert_eq!(
        (&stock["sold"], &stock["available"]),
        (&json!(1), &json!(0)),
        "{stock}"
    );
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn expiry_after_the_money_changes_nothing() {
    let world = upstream().await;
    let payments = Upstream::new(&world);
    world.operator().put_sku("PAID", 1, &json!({})).await;
    let order = place(&world, "paid", "PAID").await;
    payments.pays("e-1", "p-1", &order).await;
    world.until(&order, "CONFIRMED").await;
    // The deadline passes; another order whose passes later expires, so expiry has looked.
    make_due(&world, &order).await;
    world.operator().put_sku("WITNESS", 1, &json!({})).await;
    let witness = place(&world, "witness", "WITNESS").await;
    make_due(&world, &witness).await;
    world.until(&witness, "EXPIRED").await;
    assert_eq!(world.until(&order, "CONFIRMED").await["version"], 2);
    assert_eq!(refunds(&world).await, 0);
    world.settled().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn expiry_and_money_fired_together_have_one_end_each_and_the_money_is_right() {
    let world = upstream().await;
    let payments = Upstream::new(&world);
    world
        .operator()
        .put_sku("RACE", 100, &json!({ "reservation_ttl_seconds": 2 }))
        .await;
    let orders = join_all((0..80).map(|n| {
        let world = &world;
        async move { place(world, &format!("race-{n}"), "RACE").await }
    }))
    .await;
    // Each is paid around its own deadline.
    join_all(orders.iter().enumerate().map(|(number, order)| {
        let payments = &payments;
        async move {
            let wait = 1_800 + 10 * (number as u64);
            let at = tokio::time::Instant::now() + std::time::Duration::from_millis(wait);
            tokio::time::sleep_until(at).await;
            let (event, payment) = (format!("e-{number}"), format!("p-{number}"));
            payments.pays(&event, &payment, order).await;
        }
    }))
    .await;
    payments.handled(80).await;
    world.settled().await;
    let ends = "select count(*) from orders where status = ";
    let confirmed = world.count(&format!("{ends}'CONFIRMED'")).await;
    let expired = world.count(&format!("{ends}'EXPIRED'")).await;
    assert_eq!(confirmed + expired, 80);
    assert_eq!(
        refunds(&world).await,
        expired,
        "one refund per expired and paid order"
    );
    assert_eq!(
        world.operator().get("/v1/skus/RACE").await["sold"],
        confirmed
    );
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_before_and_after_the_money() {
    let world = upstream().await;
    let payments = Upstream::new(&world);
    world.operator().put_sku("CANCEL", 10, &json!({})).await;
    let first = place(&world, "cancel-first", "CANCEL").await;
    assert_eq!(cancel(&world, &first).await, 200);
    assert_eq!(
        cancel(&world, &first).await,
        200,
        "a repeat answers the same"
    );
    payments.pays("e-1", "p-1", &first).await;
    payments.handled(1).await;
    assert_eq!(
        world.until(&first, "CANCELED").await["reason"],
        "changed my mind"
    );
    assert_eq!(refunds(&world).await, 1);

    let second = place(&world, "paid-first", "CANCEL").await;
    payments.pays("e-2", "p-2", &second).await;
    world.until(&second, "CONFIRMED").await;
    assert_eq!(cancel(&world, &second).await, 409);
    assert_eq!(refunds(&world).await, 1);
    world.settled().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_and_money_fired_together_have_one_end_each_and_the_money_is_right() {
    let world = upstream().await;
    let payments = Upstream::new(&world);
    world.operator().put_sku("BOTH", 100, &json!({})).await;
    let (mut canceled, mut late) = (0, 0);
    for number in 0..30 {
        let order = place(&world, &format!("both-{number}"), "BOTH").await;
        let (event, payment) = (format!("e-{number}"), format!("p-{number}"));
        let money = || payments.pays(&event, &payment, &order);
        let status = match number {
            // Each of the two orders once for certain, however slow the machine.
            0 => {
                let status = cancel(&world, &order).await;
                money().await;
                status
            }
            29 => {
                money().await;
                world.until(&order, "CONFIRMED").await;
                cancel(&world, &order).await
            }
            _ => {
                let after_a_while = async {
                    // From clearly before to clearly after the event is handled.
                    let wait = std::time::Duration::from_millis(number * 2);
                    tokio::time::sleep_until(tokio::time::Instant::now() + wait).await;
                    cancel(&world, &order).await
                };
                tokio::join!(after_a_while, money()).0
            }
        };
        match status.as_u16() {
            200 => canceled += 1,
            409 => late += 1,
            other => panic!("cancel answered {other}"),
        }
    }
    assert!(canceled > 0 && late > 0, "{canceled} before, {late} after");
    payments.handled(30).await;
    world.settled().await;
    assert_eq!(
        world
            .count("select count(*) from orders where status = 'CANCELED'")
            .await,
        canceled
    );
    assert_eq!(refunds(&world).await, canceled);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_amount_never_confirms_and_goes_back() {
    let world = upstream().await;
    let payments = Upstream::new(&world);
    world.operator().put_sku("WRONG", 10, &json!({})).await;
    let order = place(&world, "wrong", "WRONG").await;
    let wrong = Upstream::completed("p-1", &order, (1, "KRW"));
    payments
        .write(None, ("e-1", "PAYMENT_COMPLETED"), &order, &wrong)
        .await;
    payments.handled(1).await;
    assert_eq!(world.until(&order, "RESERVED").await["version"], 1);
    assert_eq!(refunds(&world).await, 1);
    // The buyer pays again, and rightly.
    payments.pays("e-2", "p-2", &order).await;
    world.until(&order, "CONFIRMED").await;
    // And a third time, by mistake.
    payments.pays("e-3", "p-3", &order).await;
    payments.handled(3).await;
    assert_eq!(refunds(&world).await, 2);
    world.settled().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_payments_give_their_units_back_and_abandoned_ones_expire() {
    let world = World::with(Options {
        gateway_flags: ["--gateway-decline-rate=0.4", "--gateway-not-final-rate=0.5"]
            .map(str::to_owned)
            .to_vec(),
        ..Options::default()
    })
    .await;
    world.operator().put_sku("FAIL", 100, &json!({})).await;
    let shop = world.shop();
    join_all((0..60).map(|number| {
        let shop = shop.clone();
        async move {
            let body = api::order(&format!("c-{number}"), &[("FAIL", 1)]);
            api::accepted(&shop.decide(&format!("f-{number}"), &body).await)
        }
    }))
    .await;
    let undecided = "select count(*) from orders o where not exists
                     (select from payments p where p.order_id = o.id and p.state <> 'PENDING')";
    wait_for("every order to have been tried", || async {
        (world.count(undecided).await == 0).then_some(())
    })
    .await;
    // The news of each is handled before anybody's time ends.
    let unread = "select count(*) from outbox
                  where type in ('PAYMENT_COMPLETED', 'PAYMENT_FAILED') and event_id::text not in (select event_id from inbox where consumer = 'stock')";
    wait_for("their news to be handled", || async {
        (world.count(unread).await == 0).then_some(())
    })
    .await;
    world
        .tamper("update orders set reserved_until = clock_timestamp() where status = 'RESERVED'")
        .await;
    world.settled().await;
    let ends = "select count(*) from orders where status = ";
    for end in ["CONFIRMED", "CANCELED", "EXPIRED"] {
        assert!(
            world.count(&format!("{ends}'{end}'")).await > 0,
            "no order was {end}"
        );
    }
    let stock = world.operator().get("/v1/skus/FAIL").await;
    let confirmed = world.count(&format!("{ends}'CONFIRMED'")).await;
    assert_eq!(
        (&stock["sold"], &stock["held"]),
        (&json!(confirmed), &json!(0)),
        "{stock}"
    );
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_executes_and_does_not_answer_charges_once() {
    let world = World::with(Options {
        gateway_flags: ["--gateway-hang-rate=0.3"].map(str::to_owned).to_vec(),
        ..Options::default()
    })
    .await;
    world.operator().put_sku("HANG", 100, &json!({})).await;
    let shop = world.shop();
    join_all((0..30).map(|number| {
        let shop = shop.clone();
        async move {
            let body = api::order(&format!("c-{number}"), &[("HANG", 1)]);
            api::accepted(&shop.decide(&format!("h-{number}"), &body).await)
        }
    }))
    .await;
    world.settled().await;
    assert_eq!(
        world
            .count("select count(*) from orders where status = 'CONFIRMED'")
            .await,
        30
    );
    let journal = world.gateway().get("/v1/journal").await;
    assert_eq!(journal["totals"]["captures"], 30, "{}", journal["totals"]);
    world.end().await;
}

/// Our row says that the charge failed, and the gateway has the money.
#[tokio::test(flavor = "multi_thread")]
async fn a_capture_that_our_row_denies_is_found_in_the_gateway_s_journal() {
    let world = World::start().await;
    world.operator().put_sku("DENIED", 10, &json!({})).await;
    let order = place(&world, "denied", "DENIED").await;
    world.until(&order, "CONFIRMED").await;
    world.settled().await;
    world
        .tamper("update payments set state = 'FAILED', captured_minor = 0")
        .await;
    let captured = "select count(*) from payments
                    where state = 'COMPLETED' and captured_minor = 12900 and applied";
    wait_for("the capture to be recorded", || async {
        (world.count(captured).await == 1).then_some(())
    })
    .await;
    world.consistent().await;
    world.end().await;
}
