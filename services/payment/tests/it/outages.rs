//! An outage of ours is not the buyer's fault: what it took is counted before stock gives it back,
//! and who was too late because of it is looked at again.

use std::time::Duration;

use contracts::OrderId;
use payment::charge_payments::Work;
use store::{expiry::Cursor, outages::Closing};

use crate::{gateway::Mood, world::World};

/// An order that is older than a lease and whose deadline has passed.
fn late_order(world: &World, created: &str, deadline: &str) -> OrderId {
    let order = world.order();
    world.sql(&format!(
        "update orders set created_at = now() - interval '{created}',
                           reserved_until = now() - interval '{deadline}'
         where id = '{order}'"
    ));
    order
}

fn outage(world: &World, opened: &str) {
    world.sql(&format!(
        "insert into outages (id, reason, opened_at)
         values (gen_random_uuid(), 'a test', now() - interval '{opened}')"
    ));
}

/// A step of closing the outage that is open, as stock does it.
async fn close_by(tx: &mut store::Tx, orders: i64) -> Closing {
    let signals = store::outages::signals(tx, &[]).await.unwrap();
    let open = signals.open.unwrap();
    let ended = open.ended_at.unwrap_or(signals.now);
    store::outages::close(tx, open.id, ended, None, Cursor::START, orders)
        .await
        .unwrap()
}

async fn close(world: &World) {
    let mut tx = world.store.begin().await.unwrap();
    let closing = close_by(&mut tx, 1_000).await;
    assert!(matches!(closing, Closing::Closed(_)), "{closing:?}");
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn an_order_whose_time_an_open_outage_took_is_charged() {
    let world = World::new().await;
    let order = late_order(&world, "1 minute", "30 seconds");
    outage(&world, "2 minutes");
    world.deliver(vec![Work::Reserved(order)]).await;
    world.wait_state(order, "COMPLETED").await;
}

#[tokio::test]
async fn an_outage_counts_since_the_order_and_for_half_an_hour_at_most() {
    let world = World::new().await;
    outage(&world, "40 minutes");
    // Thirty minutes are theirs, not forty; and a minute of a minute old one.
    let too_old = late_order(&world, "50 minutes", "35 minutes");
    let too_late = late_order(&world, "1 minute", "55 seconds");
    let right = late_order(&world, "50 minutes", "25 minutes");
    let orders = [too_old, too_late, right];
    world
        .deliver(orders.map(Work::Reserved).into_iter().collect())
        .await;
    world.wait_state(right, "COMPLETED").await;
    for late in [too_old, too_late] {
        assert_eq!(world.state(late), "");
    }
}

#[tokio::test]
async fn an_outage_that_closes_under_the_guarded_read_is_not_counted_twice() {
    let world = World::new().await;
    // With the minute that it lost, five seconds are left: too few.
    let order = late_order(&world, "1 minute", "55 seconds");
    outage(&world, "1 minute");
    let mut closing = world.store.begin().await.unwrap();
    close_by(&mut closing, 1_000).await;
    let store = world.store.clone();
    let read = tokio::spawn(async move {
        let mut tx = store.begin().await.unwrap();
        let min_left = Duration::from_secs(10);
        let waiting = store::payments::lock_waiting_orders(&mut tx, &[order], min_left)
            .await
            .unwrap();
        tx.rollback().await.unwrap();
        waiting
    });
    let waits = "select count(*) from pg_stat_activity
                 where datname = current_database() and wait_event_type = 'Lock'";
    world.wait(waits, "1").await;
    closing.commit().await.unwrap();
    assert_eq!(read.await.unwrap(), []);
}

/// While deadlines move, some have and the outage is still open; and it takes no more time.
#[tokio::test]
async fn what_an_outage_took_counts_once_while_deadlines_move() {
    let world = World::new().await;
    // Of twenty-four minutes.
    outage(&world, "25 minutes");
    world.sql("update outages set ended_at = now() - interval '1 minute'");
    let too_late = late_order(&world, "40 minutes", "30 minutes");
    let moved = late_order(&world, "40 minutes", "20 minutes");
    let to_be_moved = late_order(&world, "40 minutes", "19 minutes");
    let came_after = late_order(&world, "50 seconds", "20 seconds");
    let mut tx = world.store.begin().await.unwrap();
    let closing = close_by(&mut tx, 2).await;
    assert!(matches!(closing, Closing::Upto(_)), "{closing:?}");
    tx.commit().await.unwrap();
    let mut tx = world.store.begin().await.unwrap();
    let min_left = Duration::from_secs(10);
    let orders = [too_late, moved, to_be_moved, came_after];
    let waiting = store::payments::lock_waiting_orders(&mut tx, &orders, min_left)
        .await
        .unwrap();
    let waiting: Vec<OrderId> = waiting.iter().map(|order| order.order_id).collect();
    assert_eq!(waiting, [moved, to_be_moved]);
    tx.rollback().await.unwrap();
}

#[tokio::test]
async fn a_payment_that_nobody_tried_is_charged_by_the_sweep_in_an_outage() {
    let world = World::new().await;
    let order = world.order();
    world.deliver_and_die(vec![Work::Reserved(order)]).await;
    outage(&world, "1 minute");
    world.sql(&format!(
        "update orders set reserved_until = now() - interval '30 seconds' where id = '{order}'"
    ));
    world.sweep().await;
    assert_eq!(world.state(order), "COMPLETED");
}

/// Everything of ours was down, and payment is back before stock has noticed.
#[tokio::test]
async fn a_late_order_keeps_its_key_until_it_has_ended_since_an_outage_may_give_it_time() {
    let world = World::new().await;
    let order = world.order();
    world.deliver_and_die(vec![Work::Reserved(order)]).await;
    world.sql(&format!(
        "update orders set reserved_until = now() - interval '30 seconds' where id = '{order}'"
    ));
    world.sweep().await;
    assert_eq!(world.state(order), "PENDING");
    assert_eq!(world.gateway.state().charges.len(), 0);
    outage(&world, "1 minute");
    close(&world).await;
    world.sweep().await;
    assert_eq!(world.state(order), "COMPLETED");
}

#[tokio::test]
async fn an_order_that_was_too_late_is_charged_when_the_outage_has_closed() {
    let world = World::new().await;
    let missed = world.missed();
    let order = late_order(&world, "1 minute", "10 seconds");
    world.deliver(vec![Work::Reserved(order)]).await;
    assert_eq!(
        missed.look().await.unwrap(),
        1,
        "the first look of a process"
    );
    assert_eq!(world.state(order), "", "nothing has moved its deadline");
    assert_eq!(missed.look().await.unwrap(), 0, "no outage has closed");
    outage(&world, "1 minute");
    assert_eq!(missed.look().await.unwrap(), 0, "it is open");
    close(&world).await;
    assert_eq!(missed.look().await.unwrap(), 1);
    world.wait_state(order, "COMPLETED").await;
    assert_eq!(missed.look().await.unwrap(), 0, "once per outage");
}

#[tokio::test]
async fn who_has_a_payment_or_is_new_is_not_missed() {
    let world = World::new().await;
    let declined = world.order();
    world.gateway.is(Mood::Declines { is_final: false });
    world.deliver(vec![Work::Reserved(declined)]).await;
    world.wait_state(declined, "FAILED").await;
    world.gateway.is(Mood::Well);
    // More than two pages of them.
    world.orders(450);
    world.sql("update orders set created_at = now() - interval '1 minute'");
    let fresh = world.order();
    world.sql(&format!(
        "update orders set created_at = now() where id = '{fresh}'"
    ));
    assert_eq!(world.missed().look().await.unwrap(), 450);
    assert_eq!(world.state(declined), "FAILED");
    assert_eq!(world.state(fresh), "");
}
