//! The gateway's own journal against our payments: money that it took is never kept unknown.

use contracts::{Money, OrderId};
use payment::{
    charge_payments::{Work, gateway_key},
    compare_journal::CompareJournal,
    gateway::{Charge, ChargeOutcome},
};

use crate::{
    gateway::{FakeGateway, Mood},
    world::World,
};

fn won(amount_minor: i64) -> Money {
    serde_json::from_value(serde_json::json!({"amount_minor": amount_minor, "currency": "KRW"}))
        .unwrap()
}

fn journal(world: &World) -> CompareJournal<FakeGateway> {
    CompareJournal::new(world.store.clone(), world.desk())
}

/// The gateway has taken the money after all.
fn captured(world: &World, order: OrderId) {
    let mut state = world.gateway.state();
    state.mood = Mood::Well;
    state.capture(&gateway_key(order), order, won(1000));
}

#[tokio::test]
async fn a_capture_that_is_here_as_failed_or_voided_comes_to_light() {
    let world = World::new().await;
    let (declined, voided) = (world.order(), world.order());
    world.gateway.is(Mood::Declines { is_final: true });
    world.deliver(vec![Work::Reserved(declined)]).await;
    world.wait_state(declined, "FAILED").await;
    world.deliver_and_die(vec![Work::Reserved(voided)]).await;
    world.end_order(voided);
    world.sweep().await;
    assert_eq!(world.state(voided), "VOIDED");
    let journal = journal(&world);
    assert_eq!(journal.look().await.unwrap(), 0, "both sides agree");
    captured(&world, declined);
    captured(&world, voided);
    assert_eq!(journal.look().await.unwrap(), 2);
    for order in [declined, voided] {
        assert_eq!(world.state(order), "COMPLETED");
    }
    assert_eq!(world.events("PAYMENT_COMPLETED").len(), 2);
    assert_eq!(journal.look().await.unwrap(), 0, "once");
}

#[tokio::test]
async fn a_capture_that_is_not_here_at_all_becomes_ours_under_the_name_that_we_gave_it() {
    let world = World::new().await;
    let order = world.order();
    let id = world.paid(order).await;
    // The database was set back to before the charge.
    world.sql("delete from payments; truncate outbox");
    assert_eq!(journal(&world).look().await.unwrap(), 1);
    let row = world.sql("select id, state, captured_minor, gateway_key from payments");
    assert_eq!(row, format!("{id}|COMPLETED|1000|{}", gateway_key(order)));
    let (data, _) = world.events("PAYMENT_COMPLETED").pop().unwrap();
    assert_eq!(data["payment_id"], id);
    assert_eq!(data["order_id"], order.to_string());
}

#[tokio::test]
async fn what_is_pending_is_left_to_the_sweep() {
    let world = World::new().await;
    let order = world.order();
    world.deliver_and_die(vec![Work::Reserved(order)]).await;
    captured(&world, order);
    assert_eq!(journal(&world).look().await.unwrap(), 0);
    assert_eq!(world.state(order), "PENDING");
}

#[tokio::test]
async fn a_charge_that_is_not_of_our_making_is_not_taken_over() {
    let world = World::new().await;
    let (known, order) = (world.order(), OrderId::generate());
    let id = world.paid(known).await;
    {
        let mut state = world.gateway.state();
        state.capture("somebody-else", order, won(5));
        state.capture(&gateway_key(order), order, won(5));
        // Our name for it is that of another payment.
        let taken = state.references[&gateway_key(known)].clone();
        state.references.insert(gateway_key(order), taken);
        // It says that it is for another order than its key.
        state.capture(&gateway_key(OrderId::generate()), order, won(5));
    }
    let journal = journal(&world);
    for _ in 0..3 {
        assert_eq!(journal.look().await.unwrap(), 0);
    }
    assert_eq!(
        world.sql("select id, captured_minor from payments"),
        format!("{id}|1000")
    );
}

#[tokio::test]
async fn the_slow_round_finds_what_is_old_and_the_quick_one_what_is_behind_many_others() {
    let world = World::new().await;
    {
        let mut state = world.gateway.state();
        // Six hundred of long ago that took nothing, then one that did.
        for n in 0..600 {
            let key = format!("order-01890a5d-ac96-774b-bcce-{n:012}");
            let charge = Charge {
                key: key.clone(),
                order_id: None,
                outcome: ChargeOutcome::Canceled,
            };
            state.charges.insert(key, charge);
        }
        let old: OrderId = "01890a5d-ac96-774b-bcce-b302099a8057".parse().unwrap();
        state.capture(&gateway_key(old), old, won(1000));
        for _ in 0..2_600 {
            let key = gateway_key(OrderId::generate());
            let charge = Charge {
                key: key.clone(),
                order_id: None,
                outcome: ChargeOutcome::Canceled,
            };
            state.charges.insert(key, charge);
        }
        let new = OrderId::generate();
        state.capture(&gateway_key(new), new, won(1000));
    }
    let journal = journal(&world);
    assert_eq!(journal.look().await.unwrap(), 0);
    assert_eq!(journal.look().await.unwrap(), 2);
    assert_eq!(
        world.sql("select count(*) from payments where state = 'COMPLETED'"),
        "2"
    );
}

#[tokio::test]
async fn while_the_gateway_is_away_nothing_is_compared_and_the_next_look_does_it() {
    let world = World::new().await;
    let order = world.order();
    world.gateway.is(Mood::Declines { is_final: true });
    world.deliver(vec![Work::Reserved(order)]).await;
    world.wait_state(order, "FAILED").await;
    let journal = journal(&world);
    world.gateway.is(Mood::Down);
    assert!(journal.look().await.is_err());
    captured(&world, order);
    assert_eq!(journal.look().await.unwrap(), 1);
}
