//! Captured money whose news was set aside goes back when its order has ended without it.

use contracts::OrderId;
use stock::refund_dead_money::refund_dead_money;

use crate::support::{World, completed, money};

/// Payment has captured, and said so 61 s ago; stock has not heard of it.
async fn captured(world: &World, id: &str, order: OrderId) {
    world
        .execute(&format!(
            "insert into payments (id, order_id, gateway_key, state, amount_minor, currency, method,
                                   captured_minor, updated_at)
             values ('{id}', '{order}', 'order-{order}-{id}', 'COMPLETED', 1000, 'KRW', 'card', 1000,
                     now() - interval '61 seconds')"
        ))
        .await;
}

async fn dead_letter(world: &World, consumer: &str, key: &str) {
    world
        .execute(&format!(
            "insert into dead_letters (id, consumer, topic, partition, \"offset\", key,
                                       payload_sha256, headers, reason, class, attempts,
                                       first_seen, dlq_topic)
             select gen_random_uuid(), '{consumer}', 'payments.v1', 0, count(*), '{key}', '', '[]',
                    'x', 'unclassified', 5, now(), 'x' from dead_letters"
        ))
        .await;
}

#[tokio::test]
async fn money_whose_news_is_a_dead_letter_is_asked_back_when_the_order_has_ended() {
    let world = World::with_gate().await;
    let placed = world.place_with_hold("c-1", &[("A", 1)]).await;
    captured(&world, "p-1", placed.order).await;
    dead_letter(&world, "stock", &placed.order.to_string()).await;
    // Keys that name nothing.
    for key in [
        "",
        "no id",
        "\\xff00ff",
        "01890a5d-ac96-774b-bcce-b302099a805",
    ] {
        dead_letter(&world, "stock", key).await;
    }
    assert_eq!(
        refund_dead_money(&world.stock).await.unwrap(),
        0,
        "the order waits: its news may still be handled"
    );
    world.cancel(placed.order).await;
    assert_eq!(refund_dead_money(&world.stock).await.unwrap(), 1);
    assert_eq!(
        world
            .rows("select payment_id, refund_key, amount_minor, reason, state from refunds")
            .await,
        ["(p-1,refund-p-1,1000,order-ended,REQUESTED)"]
    );
    assert_eq!(world.events().await["REFUND_REQUESTED"], 1);
    assert_eq!(refund_dead_money(&world.stock).await.unwrap(), 0, "once");
    // Redriven after all, it is recorded and never applied.
    world
        .deliver(&[completed("p-1", placed.order, money(1_000))])
        .await;
    assert_eq!(world.status(placed.order).await, "CANCELED");
    assert_eq!(world.count("refunds").await, 1);
    world.assert_invariants().await;
}

#[tokio::test]
async fn money_whose_news_was_parked_is_asked_back() {
    let world = World::with_gate().await;
    let placed = world.place_with_hold("c-1", &[("A", 1)]).await;
    captured(&world, "p-1", placed.order).await;
    world.cancel(placed.order).await;
    world
        .execute(&format!(
            "insert into outbox (event_id, topic, key, type, source, aggregate_version, data)
             values (gen_random_uuid(), 'payments.v1', '{}', 'PAYMENT_COMPLETED',
                     '/holdfast/payment', 2, '{{}}')",
            placed.order
        ))
        .await;
    assert_eq!(refund_dead_money(&world.stock).await.unwrap(), 0);
    world
        .execute(
            "insert into parked_events (id, event_id, reason)
             select id, event_id, 'too large' from outbox where type = 'PAYMENT_COMPLETED'",
        )
        .await;
    assert_eq!(refund_dead_money(&world.stock).await.unwrap(), 1);
}

#[tokio::test]
async fn money_that_is_news_or_nobody_s_or_applied_is_left_alone() {
    let world = World::with_gate().await;
    let ended = async |customer| {
        let placed = world.place_with_hold(customer, &[("A", 1)]).await;
        world.cancel(placed.order).await;
        placed.order
    };
    // Its news is on its way.
    let fresh = ended("c-1").await;
    captured(&world, "p-1", fresh).await;
    world
        .execute("update payments set updated_at = now() - interval '50 seconds'")
        .await;
    dead_letter(&world, "stock", &fresh.to_string()).await;
    // Set aside by another consumer, and set aside and redriven.
    let other = ended("c-2").await;
    captured(&world, "p-2", other).await;
    dead_letter(&world, "payment", &other.to_string()).await;
    let redriven = ended("c-3").await;
    captured(&world, "p-3", redriven).await;
    dead_letter(&world, "stock", &redriven.to_string()).await;
    world
        .execute(&format!(
            "update dead_letters set state = 'REDRIVEN' where key = '{redriven}'"
        ))
        .await;
    // It confirmed its order; another payment of that order did not.
    let paid = world.place_with_hold("c-4", &[("A", 1)]).await;
    world
        .deliver(&[completed("p-4", paid.order, paid.total)])
        .await;
    world
        .execute("update payments set updated_at = now() - interval '61 seconds' where id = 'p-4'")
        .await;
    captured(&world, "p-5", paid.order).await;
    dead_letter(&world, "stock", &paid.order.to_string()).await;

    assert_eq!(refund_dead_money(&world.stock).await.unwrap(), 1);
    assert_eq!(
        world.rows("select payment_id, reason from refunds").await,
        ["(p-5,paid-twice)"]
    );
}
