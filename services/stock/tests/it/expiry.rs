//! Expiry: never early, never under a payment in flight, never because of an outage of ours.

use std::time::Duration;

use stock::Expired;

use crate::support::{World, completed, failed};

async fn pending(world: &World, order: contracts::OrderId) {
    world
        .execute(&format!(
            "insert into payments (id, order_id, gateway_key, state, amount_minor, currency, method,
                                   next_attempt_at)
             values ('pay-{order}', '{order}', '{order}', 'PENDING', 1000, 'KRW', 'card', now())"
        ))
        .await;
}

#[tokio::test]
async fn an_order_expires_at_its_deadline_and_never_before() {
    let world = World::with_gate().await;
    let early = world.place_with_hold("c", &[("A", 1)]).await;
    let soon = world.place("c", &[("A", 1)], 600.0).await;
    let none = Expired::Orders(vec![]);
    assert_eq!(world.expire().await, none, "before its deadline");
    world
        .execute(&format!(
            "update orders set reserved_until = clock_timestamp() + interval '300 milliseconds'
             where id = '{}'",
            soon.order
        ))
        .await;
    // That none ends before its deadline is I6, below.
    let begun = platform::clock::monotonic();
    while world.status(soon.order).await == "RESERVED" {
        world.expire().await;
        assert!(begun.elapsed() < Duration::from_secs(60), "never expired");
    }
    assert_eq!(world.status(soon.order).await, "EXPIRED");
    assert_eq!(world.status(early.order).await, "RESERVED");
    assert_eq!(world.events().await["ORDER_EXPIRED"], 1);
    assert_eq!(world.stock_of("A").await, (100, 1, 0));
    world.assert_invariants().await;
    world.assert_gate_agrees().await;
}

#[tokio::test]
async fn a_payment_in_flight_protects_its_order_for_the_grace_and_no_longer() {
    let world = World::with_gate().await;
    let paying = world.place("c", &[("A", 1)], -1.0).await;
    let idle = world.place("c", &[("A", 1)], -1.0).await;
    pending(&world, paying.order).await;
    let expired = world.expire().await;
    assert_eq!(expired, Expired::Orders(vec![idle.order]));
    assert_eq!(world.status(paying.order).await, "RESERVED");
    world.all_is_well().await;
    let after_grace = world
        .expiry()
        .with_payment_grace(Duration::from_millis(500));
    let expired = after_grace.expire_due_orders().await.unwrap();
    assert_eq!(expired, Expired::Orders(vec![paying.order]));
    world.assert_invariants().await;
}

#[tokio::test]
async fn a_charge_that_is_just_beginning_is_seen_by_the_second_statement() {
    let world = World::with_gate().await;
    let placed = world.place("c", &[("A", 1)], -1.0).await;
    // payment's guarded read holds the order FOR SHARE: expiry skips it.
    let mut charge = world.pool.begin().await.unwrap();
    sqlx::query("select id from orders where id = $1 for share")
        .bind(placed.order.0)
        .fetch_one(&mut *charge)
        .await
        .unwrap();
    let expired = world.expire().await;
    assert_eq!(expired, Expired::Orders(vec![]));
    // Statement 1 has locked the order before the payment appears; statement 2 sees it.
    charge.rollback().await.unwrap();
    let mut tx = world.stock.store.begin().await.unwrap();
    let due = store::expiry::lock_due(&mut tx, store::expiry::Cursor::START, 10)
        .await
        .unwrap();
    assert_eq!(due.len(), 1);
    pending(&world, placed.order).await;
    let free = store::expiry::without_payment(&mut tx, &[placed.order], 60.0)
        .await
        .unwrap();
    assert_eq!(free, []);
    tx.rollback().await.unwrap();
}

#[tokio::test]
async fn a_captured_payment_whose_news_is_on_its_way_protects_its_order() {
    let world = World::with_gate().await;
    let placed = world.place("c", &[("A", 1)], -1.0).await;
    pending(&world, placed.order).await;
    world
        .execute(
            "update payments set state = 'COMPLETED', captured_minor = 1000, next_attempt_at = null",
        )
        .await;
    world.all_is_well().await;
    let expired = world.expiry().expire_due_orders().await.unwrap();
    assert_eq!(expired, Expired::Orders(Vec::new()));
    let expiry = world
        .expiry()
        .with_payment_grace(Duration::from_millis(500));
    let expired = expiry.expire_due_orders().await.unwrap();
    assert_eq!(
        expired,
        Expired::Orders(vec![placed.order]),
        "no longer than the grace"
    );
}

#[tokio::test]
async fn protected_orders_at_the_head_do_not_hold_up_the_others() {
    let world = World::with_gate().await;
    world.sku("B", 10_000, None).await;
    let batch = usize::try_from(stock::expire_orders::BATCH).unwrap();
    let mut statement = String::new();
    for _ in 0..batch {
        let placed = world.place("c", &[("B", 1)], -100.0).await;
        statement += &format!(
            "insert into payments (id, order_id, state, amount_minor, currency, method, next_attempt_at)
             values ('{0}', '{0}', 'PENDING', 1000, 'KRW', 'card', now());",
            placed.order
        );
    }
    world.execute(&statement).await;
    let behind = world.place("c", &[("A", 1)], -1.0).await;
    world.all_is_well().await;
    let expiry = world.expiry().with_payment_grace(Duration::from_secs(600));
    let expired = expiry.expire_due_orders().await.unwrap();
    assert_eq!(expired, Expired::Orders(vec![behind.order]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_replicas_expire_each_order_once() {
    let world = World::with_gate().await;
    for _ in 0..50 {
        world.place("c", &[("A", 1)], -1.0).await;
    }
    world.all_is_well().await;
    let (one, two) = (world.expiry(), world.expiry());
    let (a, b) = tokio::join!(one.expire_due_orders(), two.expire_due_orders());
    a.unwrap();
    b.unwrap();
    world.expire().await;
    assert_eq!(
        world
            .count("order_history where to_status = 'EXPIRED'")
            .await,
        50
    );
    assert_eq!(world.stock_of("A").await, (100, 0, 0));
    world.assert_invariants().await;
}

#[tokio::test]
async fn an_outage_of_ours_pauses_expiry_and_gives_the_lost_time_back_once() {
    let world = World::with_gate().await;
    let due = world.place("c", &[("A", 1)], -1.0).await;
    let waiting = world.place("c", &[("A", 1)], 30.0).await;
    let paid = world.place("c", &[("A", 1)], 30.0).await;
    world
        .deliver(&[completed("p", paid.order, paid.total)])
        .await;
    world
        .execute("update orders set created_at = created_at - interval '1 hour'")
        .await;
    world
        .execute("update outbox set at = clock_timestamp() - interval '20 seconds'")
        .await;
    let expiry = world.expiry();
    assert_eq!(expiry.expire_due_orders().await.unwrap(), Expired::Paused);
    assert_eq!(expiry.expire_due_orders().await.unwrap(), Expired::Paused);
    assert_eq!(world.status(due.order).await, "RESERVED");
    assert_eq!(world.count("outages where closed_at is null").await, 1);
    let deadline = |order: contracts::OrderId| {
        format!(
            "select extract(epoch from reserved_until)::float8 from orders where id = '{order}'"
        )
    };
    let before: f64 = world.value(&deadline(waiting.order)).await;
    let untouched: f64 = world.value(&deadline(paid.order)).await;

    world.all_is_well().await;
    assert_eq!(
        expiry.expire_due_orders().await.unwrap(),
        Expired::Orders(vec![]),
        "it moved out of reach"
    );
    let after: f64 = world.value(&deadline(waiting.order)).await;
    let downtime: f64 = world
        .value("select extract(epoch from closed_at - opened_at)::float8 from outages")
        .await;
    assert!((20.0..30.0).contains(&downtime), "{downtime}");
    assert!(
        (after - before - downtime).abs() < 0.001,
        "{before} {after} {downtime}"
    );
    assert_eq!(
        world.value::<f64>(&deadline(paid.order)).await,
        untouched,
        "it had ended"
    );
    assert_eq!(world.value::<i64>("select moved from outages").await, 2);
    expiry.expire_due_orders().await.unwrap();
    assert_eq!(
        world.value::<f64>(&deadline(waiting.order)).await,
        after,
        "moved twice"
    );
    world.assert_invariants().await;
}

#[tokio::test]
async fn an_order_that_came_during_the_outage_gets_its_own_share_of_it() {
    let world = World::with_gate().await;
    world.place("c", &[("A", 1)], 100.0).await;
    world
        .execute("update heartbeats set at = clock_timestamp() - interval '60 seconds'")
        .await;
    assert_eq!(
        world.expiry().expire_due_orders().await.unwrap(),
        Expired::Paused
    );
    let late = world.place("c", &[("A", 1)], 100.0).await;
    world
        .execute("update orders set created_at = clock_timestamp() - interval '10 seconds'")
        .await;
    let deadline = format!(
        "select extract(epoch from reserved_until)::float8 from orders where id = '{}'",
        late.order
    );
    let before: f64 = world.value(&deadline).await;
    world.all_is_well().await;
    world.expiry().expire_due_orders().await.unwrap();
    let after: f64 = world.value(&deadline).await;
    let lost: f64 = world
        .value(&format!(
            "select extract(epoch from (select closed_at from outages) - created_at)::float8
             from orders where id = '{}'",
            late.order
        ))
        .await;
    assert!((10.0..60.0).contains(&lost), "{lost}");
    assert!(
        (after - before - lost).abs() < 0.001,
        "{before} {after} {lost}"
    );
}

/// A time-out is of the server, not of an order: fewer orders at once would only wait more often.
#[tokio::test]
async fn a_time_out_ends_the_pass_at_once() {
    let world = World::with_gate().await;
    for _ in 0..3 {
        world.place("c", &[("A", 1)], -1.0).await;
    }
    world
        .execute(
            "create sequence tries;
             create function late() returns trigger language plpgsql as $$
             begin
                 perform nextval('tries');
                 raise 'too late' using errcode = 'query_canceled';
             end $$;
             create trigger late before update on orders
                 for each statement execute function late();",
        )
        .await;
    world.all_is_well().await;
    let error = world.expiry().expire_due_orders().await.unwrap_err();
    let stock::StockError::Store(error) = error else {
        panic!("{error}")
    };
    assert_eq!(error.sqlstate().as_deref(), Some("57014"));
    assert_eq!(world.value::<i64>("select last_value from tries").await, 1);
    world.execute("drop trigger late on orders").await;
    world.expire().await;
    assert_eq!(world.count("orders where status = 'EXPIRED'").await, 3);
}

#[tokio::test]
async fn a_consumer_that_never_ran_pauses_expiry() {
    let world = World::with_gate().await;
    world.place("c", &[("A", 1)], -1.0).await;
    world.all_is_well().await;
    world
        .execute("delete from heartbeats where name = 'payment'")
        .await;
    assert_eq!(
        world.expiry().expire_due_orders().await.unwrap(),
        Expired::Paused
    );
    // In upstream mode nobody of ours charges.
    world.execute("delete from outages").await;
    let upstream = stock::ExpireOrders::new(world.stock.clone(), vec!["stock"]);
    assert!(
        matches!(upstream.expire_due_orders().await.unwrap(), Expired::Orders(gone) if gone.len() == 1)
    );
}

/// Rows that always fail, here because their SKU's stock holds less than they say, take no place of
/// others, and are left for people.
#[tokio::test]
async fn orders_that_can_never_expire_do_not_hold_up_those_behind_them() {
    let world = World::with_gate().await;
    world.sku("B", 1_000, None).await;
    for _ in 0..20 {
        world.place("c", &[("B", 1)], -100.0).await;
    }
    world
        .execute("update stock set held = 0 where sku = 'B'")
        .await;
    let mut behind = Vec::new();
    for _ in 0..30 {
        behind.push(world.place("c", &[("A", 1)], -1.0).await.order);
    }
    for _ in 0..2 {
        world.all_is_well().await;
        let _ = world.expiry().expire_due_orders().await;
    }
    for order in behind {
        assert_eq!(world.status(order).await, "EXPIRED");
    }
    assert_eq!(world.stock_of("A").await, (100, 0, 0));
    // Each is still there to be looked at, and expires once its stock is right.
    let stuck = "orders where status = 'RESERVED'";
    assert_eq!(world.count(stuck).await, 20);
    world
        .execute("update stock set held = 20 where sku = 'B'")
        .await;
    world.expire().await;
    assert_eq!(world.count(stuck).await, 0);
    world.assert_invariants().await;
}

/// Whatever states its payments are in, an overdue order ends: no state is one that no sweep selects.
#[tokio::test]
async fn an_overdue_order_ends_whatever_its_payments_say() {
    let world = World::with_gate().await;
    let states = [
        ("PENDING", 0, "now()"),
        ("COMPLETED", 1_000, "null"),
        ("COMPLETED", 999, "null"),
        ("FAILED", 0, "null"),
        ("VOIDED", 0, "null"),
    ];
    let mut pairs = vec![world.place("c", &[("A", 1)], -1.0).await.order];
    for (first, (state, captured, next)) in states.iter().enumerate() {
        for (second, (also, more, then)) in states.iter().enumerate() {
            let order = world.place("c", &[("A", 1)], -1.0).await.order;
            world
                .execute(&format!(
                    "insert into payments (id, order_id, state, amount_minor, currency, method,
                                           captured_minor, next_attempt_at)
                     values ('p-{first}-{second}-1', '{order}', '{state}', 1000, 'KRW', 'card', {captured}, {next}),
                            ('p-{first}-{second}-2', '{order}', '{also}', 1000, 'KRW', 'card', {more}, {then})"
                ))
                .await;
            pairs.push(order);
        }
    }
    world.all_is_well().await;
    let expiry = world
        .expiry()
        .with_payment_grace(Duration::from_millis(500));
    expiry.expire_due_orders().await.unwrap();
    for order in pairs {
        assert_eq!(world.status(order).await, "EXPIRED");
    }
    assert_eq!(world.stock_of("A").await, (100, 0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_failed_attempt_leaves_time_for_another_and_no_chain_of_them_passes_the_cap() {
    let rules = domain::deadline::HoldRules::parse("", 0, 120, 300).unwrap();
    let world = World::with_gate().await.with_rules(rules);
    let order = world.place("c-1", &[("A", 1)], 60.0).await;
    let seconds = format!(
        "select round(extract(epoch from reserved_until - created_at))::bigint from orders
         where id = '{}'",
        order.order
    );
    assert_eq!(world.value::<i64>(&seconds).await, 60);
    world.deliver(&[failed("first", order.order, false)]).await;
    let renewed: i64 = world.value(&seconds).await;
    assert!((120..150).contains(&renewed), "{renewed}");
    let older = format!(
        "update orders set created_at = created_at - interval '1000 seconds',
                           reserved_until = now() + interval '1 second' where id = '{}'",
        order.order
    );
    world.execute(&older).await;
    let before: i64 = world.value(&seconds).await;
    world.deliver(&[failed("second", order.order, false)]).await;
    assert_eq!(
        world.value::<i64>(&seconds).await,
        before,
        "beyond the cap already"
    );
    world.deliver(&[failed("third", order.order, true)]).await;
    assert_eq!(world.status(order.order).await, "CANCELED");
}
