use crate::{
    gateway::Mood,
    world::{World, refund_request},
};

const STATE: &str = "select state from refund_executions";

#[tokio::test]
async fn a_refund_that_is_asked_for_again_and_again_is_executed_once_and_answered_each_time() {
    let world = World::new().await;
    let order = world.order();
    let payment = world.paid(order).await;
    let request = || refund_request(&payment, order, 1000);
    world.deliver(vec![request(), request()]).await;
    world.wait(STATE, "DONE").await;
    assert_eq!(world.events("PAYMENT_REFUNDED").len(), 1);
    world.deliver(vec![request()]).await;
    world.deliver(vec![request()]).await;
    let events = world.events("PAYMENT_REFUNDED");
    let versions: Vec<i64> = events.iter().map(|(_, version)| *version).collect();
    assert_eq!(versions, [3, 4, 5]);
    for (data, _) in &events {
        assert_eq!(data["refund_key"], format!("refund-{payment}"));
        assert_eq!(data["amount"]["amount_minor"], 1000);
    }
    let ids =
        world.sql("select count(distinct event_id) from outbox where type = 'PAYMENT_REFUNDED'");
    assert_eq!(ids, "3");
    let state = world.gateway.state();
    assert_eq!((state.refund_calls, state.refunds_executed), (1, 1));
    drop(state);
    assert_eq!(world.sql("select refunded_minor from payments"), "1000");
}

#[tokio::test]
async fn a_refund_whose_answer_is_lost_is_asked_for() {
    let world = World::new().await;
    let order = world.order();
    let payment = world.paid(order).await;
    world.gateway.is(Mood::Silent);
    world
        .deliver(vec![refund_request(&payment, order, 1000)])
        .await;
    world
        .wait("select attempts from refund_executions", "1")
        .await;
    world.gateway.is(Mood::Well);
    world.sweep().await;
    assert_eq!(world.sql(STATE), "DONE");
    assert_eq!(world.events("PAYMENT_REFUNDED").len(), 1);
    assert_eq!(world.gateway.state().refund_calls, 1);
}

#[tokio::test]
async fn a_process_that_dies_after_the_commit_leaves_the_refund_to_the_sweep() {
    let world = World::new().await;
    let order = world.order();
    let payment = world.paid(order).await;
    world
        .deliver_and_die(vec![refund_request(&payment, order, 400)])
        .await;
    world.sweep().await;
    assert_eq!(world.sql(STATE), "DONE");
    assert_eq!(world.gateway.state().refunds_executed, 1);
    assert_eq!(
        world.events("PAYMENT_REFUNDED")[0].0["amount"]["amount_minor"],
        400
    );
}

#[tokio::test]
async fn what_was_not_captured_by_us_is_not_refunded() {
    let world = World::new().await;
    let order = world.order();
    let payment = world.paid(order).await;
    let cases = [
        (refund_request(&payment, order, 1001), "exceeds-captured"),
        (
            refund_request(&payment, contracts::OrderId::generate(), 1000),
            "another-order",
        ),
        (refund_request("upstream-7", order, 1000), "unknown-payment"),
    ];
    for (request, reason) in cases {
        world.deliver(vec![request]).await;
        let last =
            "select state, reason_code from refund_executions order by updated_at desc limit 1";
        assert_eq!(world.sql(last), format!("REFUSED|{reason}"));
    }
    assert_eq!(world.gateway.state().refund_calls, 0);
    assert!(world.events("PAYMENT_REFUNDED").is_empty());
    // The right request under the same key is examined anew.
    world
        .deliver(vec![refund_request(&payment, order, 1000)])
        .await;
    world
        .wait(
            "select state from refund_executions where reason_code is null",
            "DONE",
        )
        .await;
    assert_eq!(world.gateway.state().refunds_executed, 1);
}

#[tokio::test]
async fn a_payment_of_someone_else_is_not_refunded_by_us() {
    let world = World::new().await;
    let order = world.order();
    world.sql(&format!(
        "insert into payments (id, order_id, state, amount_minor, currency, method, captured_minor)
         values ('theirs', '{order}', 'COMPLETED', 1000, 'KRW', 'card', 1000)"
    ));
    world
        .deliver(vec![refund_request("theirs", order, 1000)])
        .await;
    let row = world.sql("select state, reason_code from refund_executions");
    assert_eq!(row, "REFUSED|not-our-payment");
}

#[tokio::test]
async fn a_refund_that_the_gateway_refuses_stops_and_says_why() {
    let world = World::new().await;
    let order = world.order();
    let payment = world.paid(order).await;
    world.gateway.state().charges.clear();
    world
        .deliver(vec![refund_request(&payment, order, 1000)])
        .await;
    world
        .wait(
            "select state, reason_code from refund_executions",
            "REFUSED|unknown-charge",
        )
        .await;
    world.sweep().await;
    assert_eq!(world.gateway.state().refund_calls, 1);
}
