//! The audit is believed because it turns red: each kind of damage that is planted here is seen, by
//! the invariant that it breaks, within the time that the design names.

use std::{sync::Arc, time::Duration};

use contracts::ConsumerName;
use stock::{Audit, RepairDrift, ResendEvents};
use store::{StoreOptions, audit::Auditor, verify::Payments};

use crate::support::{World, completed, eventually};

/// How long a look may take to see what was planted (T21, gate).
const SEEN_WITHIN: Duration = Duration::from_secs(5);

/// How often it is planted before that counts as missed: one that looks too seldom misses each time,
/// a machine that is busy with something else does not.
const TRIES: usize = 3;

struct Watch {
    audit: Audit,
    drift: Arc<RepairDrift>,
}

impl Watch {
    fn over(world: &World) -> Self {
        let drift = Arc::new(RepairDrift::new(world.stock.clone()));
        let options = StoreOptions::background(&world.url, "stock-it");
        let auditor = Auditor::new(&options, Payments::Internal).unwrap();
        let consumers = vec![ConsumerName::Payment, ConsumerName::Stock];
        let resend = ResendEvents::new(world.stock.clone(), auditor.clone(), consumers);
        let audit = Audit::new(
            world.stock.clone(),
            auditor,
            Arc::clone(&drift),
            Arc::new(resend),
        );
        Self { audit, drift }
    }

    /// Looks until the count of an invariant is as wanted; how long it took.
    async fn until(&self, id: &str, wanted: impl Fn(usize) -> bool) -> Duration {
        let begun = platform::clock::monotonic();
        loop {
            self.audit.look().await.unwrap();
            let red = self.audit.red().await;
            if red.get(id).copied().is_some_and(&wanted) {
                return begun.elapsed();
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{id}: {red:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn a_sale() -> World {
    let world = World::with_gate().await;
    world.sku("L", 50, Some(5)).await;
    stock::sync_gate::sync_skus(&world.stock, &[crate::support::sku("L")])
        .await
        .unwrap();
    let paid = world.place_with_hold("c-1", &[("A", 2), ("L", 1)]).await;
    world
        .deliver(&[completed("p-1", paid.order, paid.total)])
        .await;
    let ended = world.place_with_hold("c-2", &[("A", 1)]).await;
    world.cancel(ended.order).await;
    stock::sync_gate::sync_orders(&world.stock, &[ended.order])
        .await
        .unwrap();
    world.place_with_hold("c-3", &[("A", 3)]).await;
    world.all_is_well().await;
    world
}

#[tokio::test]
async fn nothing_is_red_where_nothing_is_wrong() {
    let world = a_sale().await;
    let watch = Watch::over(&world);
    watch.drift.look().await.unwrap();
    watch.drift.look().await.unwrap();
    for _ in 0..2 {
        watch.audit.walk_around().await.unwrap();
        watch.audit.look().await.unwrap();
    }
    let red = watch.audit.red().await;
    assert!(red.values().all(|count| *count == 0), "{red:?}");
    let checked: Vec<&str> = red.keys().copied().collect();
    assert_eq!(
        checked,
        [
            "I1", "I10", "I13", "I14", "I15", "I17", "I18", "I19", "I2", "I20", "I21", "I24",
            "I25", "I26", "I3", "I4", "I5", "I6", "I7", "I8", "I9"
        ]
    );
}

#[tokio::test]
async fn a_check_that_fails_keeps_its_pace_and_stops_none_behind_it() {
    let world = a_sale().await;
    let watch = Watch::over(&world);
    world
        .execute("alter table outages rename to outages_elsewhere")
        .await;
    assert!(watch.audit.look().await.is_err(), "I13 can't be asked");
    // At once again: what failed is not due yet, all others are.
    watch.audit.look().await.unwrap();
    let checked = watch.audit.red().await;
    for id in ["I2", "I3", "I4", "I26"] {
        assert_eq!(checked.get(id), Some(&0), "{id}: {checked:?}");
    }
    assert_eq!(checked.get("I13"), None);
}

#[tokio::test]
async fn sums_that_can_not_be_read_are_neither_right_nor_right_again() {
    let world = a_sale().await;
    let rename = |from: &str, to: &str| format!("alter table {from} rename to {to}");
    let (hide, show) = (
        rename("stock_adjustments", "adjustments_elsewhere"),
        rename("adjustments_elsewhere", "stock_adjustments"),
    );
    world.execute(&hide).await;
    let blind = Watch::over(&world);
    assert!(blind.audit.look().await.is_err(), "no sum can be made");
    for _ in 0..3 {
        blind.audit.look().await.unwrap();
    }
    assert_eq!(blind.audit.red().await.get("I3"), None, "it is not known");
    world.execute(&show).await;

    let watch = Watch::over(&world);
    watch.until("I3", |count| count == 0).await;
    world
        .execute("update stock set on_hand = on_hand - 1 where sku = 'A'")
        .await;
    watch.until("I3", |count| count == 1).await;
    world.execute(&hide).await;
    world
        .execute("update stock set on_hand = on_hand + 1 where sku = 'A'")
        .await;
    eventually("a look fails", async || watch.audit.look().await.is_err()).await;
    watch.audit.look().await.unwrap();
    assert_eq!(watch.audit.red().await["I3"], 1, "as it was last seen");
    world.execute(&show).await;
    watch.until("I3", |count| count == 0).await;
}

#[tokio::test]
async fn a_gate_that_was_not_compared_is_not_called_right() {
    let world = a_sale().await;
    let watch = Watch::over(&world);
    watch.audit.look().await.unwrap();
    let known = watch.audit.red().await;
    for id in ["I10", "I19", "I20"] {
        assert_eq!(known.get(id), None, "{id}: {known:?}");
    }
    watch.drift.look().await.unwrap();
    for id in ["I10", "I19", "I20"] {
        watch.until(id, |count| count == 0).await;
    }
}

#[tokio::test]
async fn a_row_of_stock_changed_by_hand_is_seen_within_five_seconds() {
    let world = a_sale().await;
    let watch = Watch::over(&world);
    watch.until("I3", |count| count == 0).await;
    for (change, back, id) in [
        ("held = held + 1", "held = held - 1", "I2"),
        ("sold = sold + 1", "sold = sold - 1", "I2"),
        ("on_hand = on_hand - 1", "on_hand = on_hand + 1", "I3"),
        (
            "sold = sold + 1, version = version + 1",
            "sold = sold - 1, version = version + 1",
            "I3",
        ),
    ] {
        let set = |change: &str| format!("update stock set {change} where sku = 'A'");
        let mut took = Duration::MAX;
        for _ in 0..TRIES {
            world.execute(&set(change)).await;
            // Beside it the gate is compared, as in the service: it knows what `held` should be.
            for _ in 0..2 {
                watch.drift.look().await.unwrap();
            }
            took = watch.until(id, |count| count > 0).await;
            // And it is said again when it is right again.
            world.execute(&set(back)).await;
            watch.until(id, |count| count == 0).await;
            if took < SEEN_WITHIN {
                break;
            }
        }
        assert!(took < SEEN_WITHIN, "{change}: seen after {took:?}");
    }
}

#[tokio::test]
async fn drift_of_a_gate_is_seen_and_is_gone_when_it_was_repaired() {
    let world = a_sale().await;
    let watch = Watch::over(&world);
    let gate = crate::gate::key(&world, ":gate:A").await;
    crate::gate::redis_do(&world, &["HINCRBY", &gate, "held", "7"]).await;
    watch.drift.look().await.unwrap();
    watch.until("I19", |count| count == 0).await;
    watch.drift.look().await.unwrap();
    watch.until("I19", |count| count == 1).await;
    for _ in 0..4 {
        watch.drift.look().await.unwrap();
    }
    watch.until("I19", |count| count == 0).await;
    world.assert_gate_agrees().await;
    // The stock was right: it is not accused.
    assert_eq!(watch.audit.red().await["I2"], 0);
}

#[tokio::test]
#[expect(
    clippy::too_many_lines,
    reason = "a table of damages and where each must show"
)]
async fn whatever_is_wrong_with_an_order_a_key_or_a_buyer_is_seen_by_the_walk() {
    let world = a_sale().await;
    let mut damaged = Vec::new();
    for (number, (id, damage)) in [
        (
            "I2",
            "update orders set total_minor = total_minor + 1 where id = '$ORDER'",
        ),
        (
            "I4",
            "insert into order_history (order_id, version, to_status, cause, at)
             values ('$ORDER', 3, 'CONFIRMED', 'x', now())",
        ),
        (
            "I5",
            "insert into payments (id, order_id, state, amount_minor, currency, method, applied)
             values ('five', '$ORDER', 'FAILED', 1, 'KRW', 'card', true)",
        ),
        (
            "I6",
            "update orders set status = 'EXPIRED', ended_at = now(),
                    reserved_until = now() + interval '1 s' where id = '$ORDER'",
        ),
        (
            "I7",
            "insert into order_history (order_id, version, from_status, to_status, cause, at)
             values ('$ORDER', 2, 'RESERVED', 'CANCELED', 'accept', now())",
        ),
        ("I8", "delete from idempotency where order_id = '$ORDER'"),
        ("I9", "delete from buyer_units where customer_id = 'd-6'"),
        (
            "I26",
            "insert into payments (id, order_id, state, amount_minor, currency, method,
                                   captured_minor, refunded_minor, updated_at)
             values ('kept', '$ORDER', 'COMPLETED', 9, 'KRW', 'card', 9, 0,
                     now() - interval '1 minute');
             update orders set status = 'CANCELED', ended_at = now() where id = '$ORDER'",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let placed = world
            .place(&format!("d-{number}"), &[("A", 1), ("L", 1)], 600.0)
            .await;
        world
            .execute(&damage.replace("$ORDER", &placed.order.to_string()))
            .await;
        damaged.push((id, placed.order.to_string()));
    }
    world
        .execute(
            "insert into idempotency (hold_id, fingerprint, order_id)
             values ('00000000-0000-4000-8000-000000000001', '', gen_random_uuid());
             update buyer_units set units = 4 where customer_id = 'd-1';
             insert into payments (id, order_id, state, amount_minor, currency, method,
                                   captured_minor, updated_at)
             values ('stray', gen_random_uuid(), 'COMPLETED', 5, 'KRW', 'card', 5,
                     now() - interval '1 minute')",
        )
        .await;
    damaged.push(("I8", "00000000-0000-4000-8000-000000000001".to_owned()));
    damaged.push(("I9", "L shop/d-1".to_owned()));
    damaged.push(("I15", "stray".to_owned()));
    let watch = Watch::over(&world);
    let begun = platform::clock::monotonic();
    loop {
        watch.audit.walk_around().await.unwrap();
        let found = watch.audit.offenders().await;
        damaged.retain(|(id, what)| {
            !found
                .get(id)
                .is_some_and(|all| all.iter().any(|one| one.starts_with(what)))
        });
        if damaged.is_empty() {
            return;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "not seen: {damaged:?}; {found:?}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn what_is_late_is_seen() {
    let world = a_sale().await;
    let watch = Watch::over(&world);
    for (delay, undo, id) in [
        (
            "update orders set reserved_until = now() - interval '1 hour' where status = 'RESERVED'",
            "update orders set reserved_until = now() + interval '1 hour' where status = 'RESERVED'",
            "I13",
        ),
        (
            "insert into refunds (payment_id, refund_key, order_id, amount_minor, currency, reason,
                                  state, next_ask_at, created_at)
             values ('p', 'r', gen_random_uuid(), 5, 'KRW', 'x', 'REQUESTED', now(),
                     now() - interval '11 s')",
            "delete from refunds where payment_id = 'p'",
            "I15",
        ),
        (
            "update outbox set at = now() - interval '6 s'; update relay_watermark set low = 0",
            "update relay_watermark set low = (select max(id) from outbox)",
            "I17",
        ),
        (
            "insert into payments (id, order_id, state, amount_minor, currency, method,
                                   next_attempt_at, created_at)
             values ('late', gen_random_uuid(), 'PENDING', 5, 'KRW', 'card', now(),
                     now() - interval '2 minutes')",
            "delete from payments where id = 'late'",
            "I21",
        ),
    ] {
        let mut took = Duration::MAX;
        for _ in 0..TRIES {
            watch.until(id, |count| count == 0).await;
            world.execute(delay).await;
            took = watch.until(id, |count| count > 0).await;
            world.execute(undo).await;
            if took < SEEN_WITHIN {
                break;
            }
        }
        assert!(took < SEEN_WITHIN, "{id}: seen after {took:?}");
    }
}
