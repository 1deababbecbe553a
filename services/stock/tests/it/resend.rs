//! Events that were published and that nobody has handled are sent again, with the same event ids.

use std::time::Duration;

use contracts::ConsumerName;
use stock::ResendEvents;
use store::{StoreOptions, audit::Auditor, verify::Payments};

use crate::support::World;

fn resender(world: &World) -> ResendEvents {
    let options = StoreOptions::background(&world.url, "stock-it");
    let auditor = Auditor::new(&options, Payments::Internal).unwrap();
    let consumers = vec![ConsumerName::Payment, ConsumerName::Stock];
    ResendEvents::new(world.stock.clone(), auditor, consumers)
}

/// Three events that payment must handle, one that stock must, one that nobody must; published.
async fn published(world: &World, seconds_ago: i64) {
    world
        .execute(&format!(
            "insert into outbox (event_id, topic, key, type, source, aggregate_version, data, at)
             select gen_random_uuid(), 'orders.v1', 'k-' || n, 'ORDER_RESERVED', '/holdfast/order',
                    1, '{{}}', clock_timestamp() - interval '{seconds_ago} s'
             from generate_series(1, 3) n;
             insert into outbox (event_id, topic, key, type, source, aggregate_version, data, at)
             values (gen_random_uuid(), 'payments.v1', 'k-1', 'PAYMENT_COMPLETED',
                     '/holdfast/payment', 1, '{{}}',
                     clock_timestamp() - interval '{seconds_ago} s'),
                    (gen_random_uuid(), 'orders.v1', 'k-2', 'ORDER_CONFIRMED', '/holdfast/stock',
                     2, '{{}}', clock_timestamp() - interval '{seconds_ago} s')"
        ))
        .await;
    world.all_is_well().await;
}

/// Looks until `condition` holds.
async fn look_until(resend: &ResendEvents, what: &str, condition: impl AsyncFn() -> bool) {
    let begun = platform::clock::monotonic();
    while !condition().await {
        assert!(begun.elapsed() < Duration::from_secs(30), "never {what}");
        resend.look().await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn until_waiting(resend: &ResendEvents, wanted: &[ConsumerName]) {
    look_until(resend, "missed", async || resend.waiting().await == wanted).await;
}

#[tokio::test]
async fn what_was_lost_is_sent_again_once_and_only_for_those_who_have_caught_up() {
    let world = World::new().await;
    published(&world, 20).await;
    // One of the three was handled, another set aside.
    world
        .execute(
            "insert into inbox (consumer, source, event_id)
             select 'payment', source, event_id::text from outbox where id = 1;
             insert into dead_letters (id, consumer, topic, partition, \"offset\", event_id,
                                       payload_sha256, headers, reason, class, attempts,
                                       first_seen, dlq_topic)
             select gen_random_uuid(), 'payment', topic, 0, 0, event_id::text, '', '[]', 'x',
                    'contract', 1, now(), 'x' from outbox where id = 2",
        )
        .await;
    let resend = resender(&world);
    until_waiting(&resend, &[ConsumerName::Payment, ConsumerName::Stock]).await;
    assert_eq!(resend.lost().await.len(), 2);
    // Nobody has caught up: their records may still be on the topic.
    assert_eq!(resend.resend(&[]).await.unwrap(), 0);
    assert_eq!(resend.resend(&[ConsumerName::Payment]).await.unwrap(), 1);
    assert_eq!(
        world
            .rows("select count(*), count(distinct event_id) from outbox")
            .await,
        ["(6,5)"]
    );
    let copy = world
        .rows(
            "select o.key, o.type, o.source, o.aggregate_version, o.data from outbox o
             where id = 6 and event_id = (select event_id from outbox where id = 3)",
        )
        .await;
    assert_eq!(copy, ["(k-3,ORDER_RESERVED,/holdfast/order,1,{})"]);
    // Not again at once.
    assert_eq!(resend.resend(&[ConsumerName::Payment]).await.unwrap(), 0);
    // Handled, it is forgotten; whichever copy came.
    world
        .execute(
            "insert into inbox (consumer, source, event_id)
             select 'payment', source, event_id::text from outbox where id = 3",
        )
        .await;
    look_until(&resend, "forgotten", async || {
        resend.lost().await.len() <= 1
    })
    .await;
}

#[tokio::test]
async fn what_was_published_a_moment_ago_is_not_lost() {
    let world = World::new().await;
    published(&world, 20).await;
    published(&world, 5).await;
    let resend = resender(&world);
    // All stand on one page: when the four old ones are seen, the others were looked at too.
    look_until(&resend, "seen", async || !resend.lost().await.is_empty()).await;
    assert_eq!(resend.lost().await.len(), 4);
}

#[tokio::test]
async fn what_the_relay_has_parked_was_not_lost_and_is_not_sent_again() {
    let world = World::new().await;
    published(&world, 20).await;
    world
        .execute(
            "insert into parked_events (id, event_id, reason)
             select id, event_id, 'too large' from outbox where id = 1",
        )
        .await;
    let resend = resender(&world);
    // All stand on one page: when the others are seen, the parked one was looked at too.
    until_waiting(&resend, &[ConsumerName::Payment, ConsumerName::Stock]).await;
    assert_eq!(resend.lost().await.len(), 3);
    // One that is parked after it was missed is forgotten.
    world
        .execute(
            "insert into parked_events (id, event_id, reason)
             select id, event_id, 'too large' from outbox where id = 2",
        )
        .await;
    look_until(&resend, "forgotten", async || {
        resend.lost().await.len() == 2
    })
    .await;
    assert_eq!(resend.resend(&[ConsumerName::Payment]).await.unwrap(), 1);
    // The way on, once their topic takes them: without their rows the next leader misses them.
    world.execute("delete from parked_events").await;
    let next = resender(&world);
    look_until(&next, "missed after all", async || {
        next.lost().await.len() == 4
    })
    .await;
}

#[tokio::test]
async fn a_copy_that_was_published_too_is_no_second_lost_event() {
    let world = World::new().await;
    published(&world, 20).await;
    let resend = resender(&world);
    until_waiting(&resend, &[ConsumerName::Payment, ConsumerName::Stock]).await;
    assert_eq!(resend.resend(&[ConsumerName::Stock]).await.unwrap(), 1);
    // The copy, and another event to see that the page was looked at.
    world
        .execute("update outbox set at = clock_timestamp() - interval '20 s' where id = 6")
        .await;
    world
        .execute(
            "insert into outbox (event_id, topic, key, type, source, aggregate_version, data, at)
             values (gen_random_uuid(), 'payments.v1', 'k-9', 'PAYMENT_FAILED',
                     '/holdfast/payment', 1, '{}', clock_timestamp() - interval '20 s')",
        )
        .await;
    world.all_is_well().await;
    let seen = async || resend.lost().await.iter().any(|one| one.contains("k-9"));
    look_until(&resend, "seen", seen).await;
    assert_eq!(resend.lost().await.len(), 5, "{:?}", resend.lost().await);
}
