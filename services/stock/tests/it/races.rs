//! Whoever's guarded update commits first wins: each race in both orders, and truly at once.

use messaging::HandleError;

use crate::support::{World, completed, eventually};

async fn make_due(world: &World) {
    world
        .execute("update orders set reserved_until = now() where status = 'RESERVED'")
        .await;
}

/// CONFIRMED and paid, or ended with the money on its way back: never both, never neither.
async fn assert_one_end(world: &World, order: contracts::OrderId, payment: &str) {
    let refunds = world
        .count(&format!("refunds where payment_id = '{payment}'"))
        .await;
    let applied = world
        .count(&format!("payments where id = '{payment}' and applied"))
        .await;
    let confirmed = world.status(order).await == "CONFIRMED";
    assert_eq!((applied, refunds), if confirmed { (1, 0) } else { (0, 1) });
    assert_eq!(
        world
            .count(&format!("order_history where order_id = '{order}'"))
            .await,
        2
    );
}

/// Waits until somebody has the row of a RESERVED order, or has ended it. Locks nothing itself: expiry
/// passes over what is locked.
async fn taken(world: &World, order: contracts::OrderId) {
    let free = format!("orders where id = '{order}' and status = 'RESERVED' and xmax::text = '0'");
    eventually("the order is taken", async || world.count(&free).await == 0).await;
}

#[tokio::test]
async fn a_payment_before_the_deadline_confirms_and_one_after_it_goes_back() {
    let world = World::with_gate().await;
    let first = world.place_with_hold("c", &[("A", 1)]).await;
    world
        .deliver(&[completed("p1", first.order, first.total)])
        .await;
    make_due(&world).await;
    world.expire().await;
    assert_eq!(world.status(first.order).await, "CONFIRMED");
    assert_one_end(&world, first.order, "p1").await;

    let second = world.place_with_hold("c", &[("A", 1)]).await;
    make_due(&world).await;
    world.expire().await;
    world
        .deliver(&[completed("p2", second.order, second.total)])
        .await;
    assert_eq!(world.status(second.order).await, "EXPIRED");
    assert_one_end(&world, second.order, "p2").await;
    world.assert_invariants().await;
    world.assert_gate_agrees().await;
}

#[tokio::test]
async fn a_payment_before_the_cancel_confirms_and_one_after_it_goes_back() {
    let world = World::with_gate().await;
    let first = world.place_with_hold("c", &[("A", 1)]).await;
    world
        .deliver(&[completed("p1", first.order, first.total)])
        .await;
    let mut tx = world.stock.store.begin().await.unwrap();
    let locked = store::orders::lock(&mut tx, &[first.order]).await.unwrap();
    assert_eq!(
        locked[0].status,
        domain::OrderStatus::Confirmed,
        "the cancel sees it and refuses"
    );
    tx.rollback().await.unwrap();
    assert_one_end(&world, first.order, "p1").await;

    let second = world.place_with_hold("c", &[("A", 1)]).await;
    assert!(world.cancel(second.order).await);
    world
        .deliver(&[completed("p2", second.order, second.total)])
        .await;
    assert_eq!(world.status(second.order).await, "CANCELED");
    assert_one_end(&world, second.order, "p2").await;
    world.assert_invariants().await;
    world.assert_gate_agrees().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn payment_expiry_and_cancel_at_once_give_one_end_and_the_right_money() {
    let world = World::with_gate().await;
    let mut ends = std::collections::BTreeMap::<String, usize>::new();
    for round in 0..32 {
        let placed = world.place_with_hold("c", &[("A", 1)]).await;
        make_due(&world).await;
        let payment = format!("p{round}");
        let news = [completed(&payment, placed.order, placed.total)];
        // Each side has the order first in some rounds, and the others come while it has it; in the
        // rest all begin at once.
        let first = round % 4;
        let start = async |side: u64| {
            if first < 3 && side != first {
                taken(&world, placed.order).await;
            }
        };
        let (delivered, (), ()) = tokio::join!(
            async {
                start(0).await;
                world.try_deliver(&news).await
            },
            async {
                start(1).await;
                world.expire().await;
            },
            async {
                start(2).await;
                world.cancel(placed.order).await;
            },
        );
        // One that waited too long for the others is told to run again, as the runner does.
        if let Err(error) = delivered {
            assert!(matches!(error, HandleError::Transient(_)), "{error:?}");
            world.try_deliver(&news).await.unwrap();
        }
        assert_one_end(&world, placed.order, &payment).await;
        *ends.entry(world.status(placed.order).await).or_default() += 1;
    }
    assert_eq!(ends.len(), 3, "a side never won: {ends:?}");
    world.assert_invariants().await;
    stock::sweep_holds::sweep_holds(&world.stock).await.unwrap();
    world.assert_gate_agrees().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_payment_id_with_two_orders_at_once_is_recorded_with_one() {
    let world = World::with_gate().await;
    for round in 0..10 {
        let one = world.place("c", &[("A", 1)], 600.0).await;
        let two = world.place("c", &[("A", 1)], 600.0).await;
        let payment = format!("p{round}");
        let first = [completed(&payment, one.order, one.total)];
        let second = [completed(&payment, two.order, two.total)];
        let (a, b) = tokio::join!(world.try_deliver(&first), world.try_deliver(&second));
        // The loser of a true race is told to run again, as the runner does.
        for (outcome, news) in [(a, &first), (b, &second)] {
            if let Err(error) = outcome {
                assert!(matches!(error, HandleError::Transient(_)), "{error:?}");
                world.try_deliver(news).await.unwrap();
            }
        }
        let confirmed = [world.status(one.order).await, world.status(two.order).await]
            .iter()
            .filter(|status| *status == "CONFIRMED")
            .count();
        assert_eq!(confirmed, 1);
    }
    world.assert_invariants().await;
}
