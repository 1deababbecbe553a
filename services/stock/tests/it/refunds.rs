//! Refunds: asked for once per payment, again under the same key until they are closed, and what the
//! rows say of money that went back unasked.

use crate::{
    settlement::payment,
    support::{World, completed, dollars, failed, money, refunded},
};

#[tokio::test]
async fn a_refund_is_closed_by_its_answer_and_by_nothing_else() {
    let world = World::with_gate().await;
    let placed = world.place("c", &[("A", 2)], 600.0).await;
    let (order, total) = (placed.order, placed.total);
    assert!(world.cancel(order).await);
    world.deliver(&[completed("p", order, total)]).await;
    assert_eq!(
        payment(&world, "p").await,
        "COMPLETED 2000 - - REQUESTED 2000"
    );
    world
        .deliver(&[refunded("refund-p", "p", order, money(1_000))])
        .await;
    assert_eq!(
        payment(&world, "p").await,
        "COMPLETED 2000 - refund-mismatch REQUESTED 2000"
    );
    world
        .deliver(&[refunded("refund-p", "p", order, dollars(2_000))])
        .await;
    assert_eq!(
        payment(&world, "p").await,
        "COMPLETED 2000 - refund-mismatch REQUESTED 2000"
    );
    assert_eq!(
        world
            .value::<i64>("select refunded_minor from payments")
            .await,
        0
    );
    let answer = refunded("refund-p", "p", order, total);
    world.deliver(std::slice::from_ref(&answer)).await;
    assert_eq!(
        payment(&world, "p").await,
        "COMPLETED 2000 - refund-mismatch CLOSED 2000"
    );
    assert_eq!(
        world
            .value::<i64>("select refunded_minor from payments")
            .await,
        2_000
    );
    world
        .deliver(&[answer.again(), completed("p", order, total)])
        .await;
    assert_eq!(
        payment(&world, "p").await,
        "COMPLETED 2000 - refund-mismatch CLOSED 2000"
    );
    assert_eq!(world.events().await["REFUND_REQUESTED"], 1);
    world.assert_invariants().await;
}

#[tokio::test]
async fn money_that_went_back_unasked_is_recorded_and_its_payment_never_applied() {
    let world = World::with_gate().await;
    let placed = world.place("c", &[("A", 1)], 600.0).await;
    let (order, total) = (placed.order, placed.total);
    world.deliver(&[failed("p", order, false)]).await;
    world
        .deliver(&[refunded("theirs", "p", order, total)])
        .await;
    assert_eq!(
        payment(&world, "p").await,
        "FAILED 0 - external-refund EXTERNAL 1000"
    );
    world.deliver(&[completed("p", order, total)]).await;
    assert_eq!(
        payment(&world, "p").await,
        "COMPLETED 1000 - external-refund EXTERNAL 1000"
    );
    assert_eq!(
        world
            .value::<i64>("select refunded_minor from payments")
            .await,
        1_000
    );
    assert_eq!(world.status(order).await, "RESERVED");
    assert!(!world.events().await.contains_key("REFUND_REQUESTED"));
    world.assert_invariants().await;
}

#[tokio::test]
async fn what_is_left_of_a_payment_that_went_back_in_part_before_it_came_goes_back_too() {
    let world = World::with_gate().await;
    let placed = world.place("c", &[("A", 1)], 600.0).await;
    let (order, total) = (placed.order, placed.total);
    world.deliver(&[failed("p", order, false)]).await;
    world
        .deliver(&[refunded("theirs", "p", order, money(400))])
        .await;
    world.deliver(&[completed("p", order, total)]).await;
    assert_eq!(
        payment(&world, "p").await,
        "COMPLETED 1000 - external-refund REQUESTED 600"
    );
    assert_eq!(world.events().await["REFUND_REQUESTED"], 1);
    // The part's news again is none of the rest's; nor is the capture's.
    world
        .deliver(&[
            refunded("theirs", "p", order, money(600)),
            completed("p", order, total),
        ])
        .await;
    assert_eq!(
        payment(&world, "p").await,
        "COMPLETED 1000 - external-refund REQUESTED 600"
    );
    world
        .deliver(&[refunded("refund-p", "p", order, money(600))])
        .await;
    assert_eq!(
        payment(&world, "p").await,
        "COMPLETED 1000 - external-refund CLOSED 600"
    );
    assert_eq!(
        world
            .value::<i64>("select refunded_minor from payments")
            .await,
        1_000
    );
    assert_eq!(world.status(order).await, "RESERVED");
    world.cancel(order).await;
    world.assert_invariants().await;
}

#[tokio::test]
async fn a_foreign_refund_key_never_stands_in_the_way_of_another_payments_refund() {
    let world = World::with_gate().await;
    let placed = world.place("c", &[("A", 1)], 600.0).await;
    let (order, total) = (placed.order, placed.total);
    world.deliver(&[completed("p", order, total)]).await;
    // The key that a refund of "q" will have.
    world
        .deliver(&[refunded("refund-q", "p", order, total)])
        .await;
    world.deliver(&[completed("q", order, total)]).await;
    assert_eq!(
        payment(&world, "q").await,
        "COMPLETED 1000 - - REQUESTED 1000"
    );
}

#[tokio::test]
async fn the_refund_of_an_unknown_order_is_asked_for_and_can_be_closed() {
    let world = World::with_gate().await;
    let order = contracts::OrderId::generate();
    assert_eq!(
        world
            .deliver(&[completed("p", order, money(700))])
            .await
            .len(),
        1
    );
    assert_eq!(world.events().await["REFUND_REQUESTED"], 1);
    assert!(
        world
            .deliver(&[refunded("refund-p", "p", order, money(700))])
            .await
            .is_empty()
    );
    assert_eq!(payment(&world, "p").await, "COMPLETED 700 - - CLOSED 700");
}

#[tokio::test]
async fn a_refund_is_asked_for_again_under_the_same_key_until_it_is_closed() {
    let world = World::with_gate().await;
    let placed = world.place("c", &[("A", 1)], 600.0).await;
    world.cancel(placed.order).await;
    world
        .deliver(&[completed("p", placed.order, placed.total)])
        .await;
    let ask = || stock::request_refunds::request_refunds(&world.stock);
    assert_eq!(ask().await.unwrap(), 0, "not before 2 s have passed");
    let mut waits = Vec::new();
    for _ in 0..6 {
        world
            .execute("update refunds set next_ask_at = now()")
            .await;
        // Two replicas at once ask once.
        let (one, two) = tokio::join!(ask(), ask());
        assert_eq!(one.unwrap() + two.unwrap(), 1);
        let wait: i32 = world
            .value("select round(extract(epoch from next_ask_at - clock_timestamp()))::int from refunds")
            .await;
        waits.push(wait);
    }
    assert_eq!(waits, [4, 8, 16, 32, 60, 60]);
    assert_eq!(
        world.count("outbox where type = 'REFUND_REQUESTED'").await,
        7
    );
    let keys: i64 = world
        .value("select count(distinct data::json ->> 'refund_key') from outbox where type = 'REFUND_REQUESTED'")
        .await;
    let ids: i64 = world
        .value("select count(distinct event_id) from outbox where type = 'REFUND_REQUESTED'")
        .await;
    assert_eq!((keys, ids), (1, 7));
    world
        .deliver(&[refunded("refund-p", "p", placed.order, placed.total)])
        .await;
    assert_eq!(ask().await.unwrap(), 0);
}
