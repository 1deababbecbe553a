use payment::{
    charge_payments::{Work, gateway_key},
    gateway::{Charge, ChargeOutcome},
    record_results::News,
};

use crate::{gateway::Mood, world::World};

#[tokio::test]
async fn an_order_that_is_announced_three_times_is_charged_once() {
    let world = World::new().await;
    let order = world.order();
    world
        .deliver(vec![Work::Reserved(order), Work::Reserved(order)])
        .await;
    world.deliver(vec![Work::Reserved(order)]).await;
    world.wait_state(order, "COMPLETED").await;
    world.deliver(vec![Work::Reserved(order)]).await;
    assert_eq!(world.state(order), "COMPLETED");
    assert_eq!(world.gateway.state().captures, 1);
    let events = world.events("PAYMENT_COMPLETED");
    assert_eq!(events.len(), 1, "{events:?}");
    let (data, version) = &events[0];
    assert_eq!(data["order_id"], order.to_string());
    assert_eq!(data["amount"]["amount_minor"], 1000);
    assert_eq!(data["method"], "card");
    assert_eq!(*version, 2);
}

#[tokio::test]
async fn an_answer_that_is_lost_after_the_capture_is_asked_for() {
    let world = World::new().await;
    let order = world.order();
    world.gateway.is(Mood::Silent);
    world.deliver(vec![Work::Reserved(order)]).await;
    world.wait("select attempts from payments", "1").await;
    assert_eq!(world.state(order), "PENDING");
    world.gateway.is(Mood::Well);
    world.sweep().await;
    assert_eq!(world.state(order), "COMPLETED");
    assert_eq!(world.events("PAYMENT_COMPLETED").len(), 1);
    let state = world.gateway.state();
    assert_eq!(
        (state.captures, state.charge_calls),
        (1, 1),
        "it was asked, not charged again"
    );
}

#[tokio::test]
async fn an_order_that_has_ended_or_has_no_time_left_is_not_charged() {
    let world = World::new().await;
    for order in [
        world.order_with("CANCELED", "1 minute"),
        world.order_with("EXPIRED", "1 minute"),
        world.order_with("CONFIRMED", "1 minute"),
        world.order_with("RESERVED", "9 seconds"),
    ] {
        world.deliver(vec![Work::Reserved(order)]).await;
        assert_eq!(world.state(order), "");
    }
    assert_eq!(world.gateway.state().charge_calls, 0);
}

#[tokio::test]
async fn an_event_about_an_order_that_does_not_exist_is_set_aside() {
    let world = World::new().await;
    let (known, unknown) = (world.order(), contracts::OrderId::generate());
    let events = vec![Work::Reserved(known), Work::Reserved(unknown)];
    let aside = world.set_aside(events).await;
    let what: Vec<_> = aside.iter().map(|one| (one.index, one.class)).collect();
    assert_eq!(what, [(1, messaging::Class::UnknownSubject)]);
    assert_eq!(
        (world.state(known).as_str(), world.state(unknown).as_str()),
        ("PENDING", "")
    );
}

#[tokio::test]
async fn an_order_cannot_end_between_the_guard_and_its_pending_payment() {
    let world = World::new().await;
    let order = world.order();
    let mut tx = world.store.begin().await.unwrap();
    let min_left = std::time::Duration::from_secs(10);
    let waiting = store::payments::lock_waiting_orders(&mut tx, &[order], min_left)
        .await
        .unwrap();
    assert_eq!(waiting.len(), 1);
    let free = format!(
        "select count(*) from (select from orders where id = '{order}'
                               for no key update skip locked) x"
    );
    assert_eq!(
        world.sql(&free),
        "0",
        "expiry and cancel must wait for the guard"
    );
    tx.rollback().await.unwrap();
    assert_eq!(world.sql(&free), "1");
}

#[tokio::test]
async fn a_process_that_dies_after_the_commit_leaves_the_charge_to_the_sweep() {
    let world = World::new().await;
    let order = world.order();
    world.deliver_and_die(vec![Work::Reserved(order)]).await;
    assert_eq!(world.state(order), "PENDING");
    world.sweep().await;
    assert_eq!(world.state(order), "COMPLETED");
    assert_eq!(world.gateway.state().captures, 1);
}

#[tokio::test]
async fn a_row_that_is_being_worked_on_is_left_alone_by_the_sweep() {
    let world = World::new().await;
    let order = world.order();
    world.deliver_and_die(vec![Work::Reserved(order)]).await;
    let desk = payment::desk::Desk::new(world.gateway.clone(), world.recorder.clone());
    let swept = payment::sweep_payments::sweep_payments(&world.store, &desk)
        .await
        .unwrap();
    assert_eq!(swept, 0);
    assert_eq!(world.gateway.state().charge_calls, 0);
}

#[tokio::test]
async fn a_pending_payment_of_an_ended_order_is_canceled_for_ever() {
    let world = World::new().await;
    let order = world.order();
    world.deliver_and_die(vec![Work::Reserved(order)]).await;
    world.end_order(order);
    world.sweep().await;
    assert_eq!(world.state(order), "VOIDED");
    let state = world.gateway.state();
    assert_eq!((state.captures, state.charge_calls), (0, 0));
    assert_eq!(
        state.charges[&gateway_key(order)].outcome,
        ChargeOutcome::Canceled
    );
    drop(state);
    assert!(world.events("PAYMENT_FAILED").is_empty());
}

#[tokio::test]
async fn a_charge_that_the_gateway_still_executes_is_canceled_when_its_order_has_ended() {
    let world = World::new().await;
    let order = world.order();
    world.gateway.is(Mood::Slow);
    world.deliver(vec![Work::Reserved(order)]).await;
    world.wait("select attempts from payments", "1").await;
    world.sweep().await;
    let row = world.sql("select state, attempts, next_attempt_at > now() from payments");
    assert_eq!(
        row, "PENDING|2|t",
        "the order waits, and so does its charge"
    );
    world.end_order(order);
    world.sweep().await;
    assert_eq!(world.state(order), "VOIDED");
    let state = world.gateway.state();
    assert_eq!(
        state.charges[&gateway_key(order)].outcome,
        ChargeOutcome::Canceled
    );
}

#[tokio::test]
async fn money_that_was_taken_for_an_ended_order_is_published() {
    let world = World::new().await;
    let order = world.order();
    world.gateway.is(Mood::Silent);
    world.deliver(vec![Work::Reserved(order)]).await;
    world.wait("select attempts from payments", "1").await;
    world.gateway.is(Mood::Well);
    world.end_order(order);
    world.sweep().await;
    assert_eq!(world.state(order), "COMPLETED");
    assert_eq!(world.events("PAYMENT_COMPLETED").len(), 1);
    assert_eq!(
        world.gateway.state().refund_calls,
        0,
        "payment never voids unasked"
    );
}

#[tokio::test]
async fn a_capture_that_comes_to_light_after_the_void_is_published() {
    let world = World::new().await;
    let order = world.order();
    world.deliver_and_die(vec![Work::Reserved(order)]).await;
    world.end_order(order);
    world.sweep().await;
    let amount = serde_json::from_str(r#"{"amount_minor":1000,"currency":"KRW"}"#).unwrap();
    let charge = Charge {
        key: gateway_key(order),
        order_id: Some(order),
        outcome: ChargeOutcome::Captured {
            amount,
            at: platform::clock::now(),
        },
    };
    assert!(world.recorder.record(News::Charge(charge.clone())).await);
    assert!(world.recorder.record(News::Charge(charge)).await);
    assert_eq!(world.state(order), "COMPLETED");
    assert_eq!(world.events("PAYMENT_COMPLETED").len(), 1);
}

#[tokio::test]
async fn declines_say_whether_they_are_final() {
    let world = World::new().await;
    for is_final in [true, false] {
        world.gateway.is(Mood::Declines { is_final });
        let order = world.order();
        world.deliver(vec![Work::Reserved(order)]).await;
        world.wait_state(order, "FAILED").await;
        let (data, _) = world.events("PAYMENT_FAILED").pop().unwrap();
        assert_eq!(data["final"], is_final);
        assert_eq!(data["reason_code"], "card-declined");
    }
}

#[tokio::test]
async fn a_capture_of_another_amount_is_published_as_it_is() {
    let world = World::new().await;
    let order = world.order();
    world.gateway.is(Mood::Greedy);
    world.paid(order).await;
    assert_eq!(
        world.events("PAYMENT_COMPLETED")[0].0["amount"]["amount_minor"],
        1001
    );
    let recorded = world.sql("select captured_minor, reason_code from payments");
    assert_eq!(recorded, "1001|amount-differs");
}

#[tokio::test]
async fn news_that_names_another_order_changes_nothing() {
    let world = World::new().await;
    let order = world.order();
    world.deliver_and_die(vec![Work::Reserved(order)]).await;
    let amount = serde_json::from_str(r#"{"amount_minor":1000,"currency":"KRW"}"#).unwrap();
    for named in [None, Some(contracts::OrderId::generate())] {
        let outcome = ChargeOutcome::Captured {
            amount,
            at: platform::clock::now(),
        };
        let charge = Charge {
            key: gateway_key(order),
            order_id: named,
            outcome,
        };
        world.recorder.record(News::Charge(charge)).await;
    }
    assert_eq!(world.state(order), "PENDING");
}

#[tokio::test]
async fn while_the_gateway_is_down_payments_wait_and_nothing_is_decided() {
    let world = World::new().await;
    let order = world.order();
    world.gateway.is(Mood::Down);
    world.deliver(vec![Work::Reserved(order)]).await;
    world.wait("select attempts from payments", "1").await;
    world.sweep().await;
    world.sweep().await;
    let row = world.sql("select state, attempts, next_attempt_at > now() from payments");
    assert_eq!(row, "PENDING|3|t");
    world.gateway.is(Mood::Well);
    world.sweep().await;
    assert_eq!(world.state(order), "COMPLETED");
}

#[tokio::test]
async fn results_that_come_twice_at_once_over_two_recorders_are_recorded_once() {
    let world = World::new().await;
    let orders = world.orders(100);
    world
        .deliver_and_die(orders.iter().map(|order| Work::Reserved(*order)).collect())
        .await;
    let shutdown = platform::Shutdown::new();
    let twin = payment::record_results::Recorder::start(world.store.clone(), &shutdown);
    let amount = serde_json::from_str(r#"{"amount_minor":1000,"currency":"KRW"}"#).unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for order in orders.iter().rev().chain(&orders) {
        for recorder in [world.recorder.clone(), twin.clone()] {
            let outcome = ChargeOutcome::Captured {
                amount,
                at: platform::clock::now(),
            };
            let charge = Charge {
                key: gateway_key(*order),
                order_id: Some(*order),
                outcome,
            };
            tasks.spawn(async move { recorder.record(News::Charge(charge)).await });
        }
    }
    assert!(tasks.join_all().await.into_iter().all(|recorded| recorded));
    assert_eq!(world.events("PAYMENT_COMPLETED").len(), 100);
    assert_eq!(
        world.sql("select count(*), min(version), max(version) from payments"),
        "100|2|2"
    );
}

#[tokio::test]
async fn a_payment_that_begins_renews_the_hold_up_to_the_cap_and_only_where_the_rules_say_so() {
    let until = |world: &World, order| {
        world.sql(&format!(
            "select round(extract(epoch from reserved_until - created_at) / 60) from orders
             where id = '{order}'"
        ))
    };
    let world = World::new().await;
    let order = world.order();
    world.deliver_and_die(vec![Work::Reserved(order)]).await;
    assert_eq!(until(&world, order), "2", "a minute old, a minute left");
    for (seconds, cap, minutes) in [(240, 86_400, "5"), (240, 180, "3"), (30, 86_400, "2")] {
        let rules = domain::deadline::HoldRules::parse("", seconds.min(cap), 0, cap).unwrap();
        let world = World::new().await.with_rules(rules);
        let order = world.order();
        world.deliver_and_die(vec![Work::Reserved(order)]).await;
        assert_eq!(world.state(order), "PENDING");
        assert_eq!(until(&world, order), minutes, "{seconds} up to {cap}");
    }
}
