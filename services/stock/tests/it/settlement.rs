//! The table of P6, cell by cell, against the real tables, and what a batch of its events writes.

use messaging::Class;

use crate::support::{News, Placed, World, completed, dollars, failed, money, refunded};

/// The order of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Reserved,
    ConfirmedByThis,
    ConfirmedByAnother,
    Canceled,
    Expired,
    Unknown,
}

/// The news of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cell {
    Right,
    WrongAmount,
    WrongCurrency,
    FailedFinal,
    FailedNotFinal,
}

/// What must be there afterwards: the order's status, and of the payment `p`: state, captured,
/// applied, flag and refund, as one text; and whether the event was set aside.
type After = (&'static str, &'static str, bool);

#[rustfmt::skip]
const TABLE: &[(Before, Cell, After)] = {
    use Before::*;
    use Cell::*;
    &[
        (Reserved, Right, ("CONFIRMED", "COMPLETED 2000 applied - -", false)),
        (Reserved, WrongAmount, ("RESERVED", "COMPLETED 1999 - wrong-amount REQUESTED 1999", false)),
        (Reserved, WrongCurrency, ("RESERVED", "COMPLETED 2000 - wrong-amount REQUESTED 2000", false)),
        (Reserved, FailedFinal, ("CANCELED", "FAILED 0 - - -", false)),
        (Reserved, FailedNotFinal, ("RESERVED", "FAILED 0 - - -", false)),
        (ConfirmedByThis, Right, ("CONFIRMED", "COMPLETED 2000 applied - -", false)),
        (ConfirmedByThis, WrongAmount, ("CONFIRMED", "COMPLETED 2000 applied amount-changed -", false)),
        (ConfirmedByThis, WrongCurrency, ("CONFIRMED", "COMPLETED 2000 applied amount-changed -", false)),
        (ConfirmedByThis, FailedFinal, ("CONFIRMED", "COMPLETED 2000 applied failed-after-confirm -", false)),
        (ConfirmedByThis, FailedNotFinal, ("CONFIRMED", "COMPLETED 2000 applied - -", false)),
        (ConfirmedByAnother, Right, ("CONFIRMED", "COMPLETED 2000 - - REQUESTED 2000", false)),
        (ConfirmedByAnother, WrongAmount, ("CONFIRMED", "COMPLETED 1999 - - REQUESTED 1999", false)),
        (ConfirmedByAnother, WrongCurrency, ("CONFIRMED", "COMPLETED 2000 - - REQUESTED 2000", false)),
        (ConfirmedByAnother, FailedFinal, ("CONFIRMED", "FAILED 0 - - -", false)),
        (ConfirmedByAnother, FailedNotFinal, ("CONFIRMED", "FAILED 0 - - -", false)),
        (Canceled, Right, ("CANCELED", "COMPLETED 2000 - - REQUESTED 2000", false)),
        (Canceled, WrongAmount, ("CANCELED", "COMPLETED 1999 - - REQUESTED 1999", false)),
        (Canceled, WrongCurrency, ("CANCELED", "COMPLETED 2000 - - REQUESTED 2000", false)),
        (Canceled, FailedFinal, ("CANCELED", "FAILED 0 - - -", false)),
        (Canceled, FailedNotFinal, ("CANCELED", "FAILED 0 - - -", false)),
        (Expired, Right, ("EXPIRED", "COMPLETED 2000 - - REQUESTED 2000", false)),
        (Expired, WrongAmount, ("EXPIRED", "COMPLETED 1999 - - REQUESTED 1999", false)),
        (Expired, WrongCurrency, ("EXPIRED", "COMPLETED 2000 - - REQUESTED 2000", false)),
        (Expired, FailedFinal, ("EXPIRED", "FAILED 0 - - -", false)),
        (Expired, FailedNotFinal, ("EXPIRED", "FAILED 0 - - -", false)),
        (Unknown, Right, ("none", "COMPLETED 2000 - - REQUESTED 2000", true)),
        (Unknown, WrongAmount, ("none", "COMPLETED 1999 - - REQUESTED 1999", true)),
        (Unknown, WrongCurrency, ("none", "COMPLETED 2000 - - REQUESTED 2000", true)),
        (Unknown, FailedFinal, ("none", "none", true)),
        (Unknown, FailedNotFinal, ("none", "none", true)),
    ]
};

async fn prepare(world: &World, before: Before, payment: &str) -> Placed {
    let mut placed = world.place("c-1", &[("A", 2)], 600.0).await;
    match before {
        Before::Reserved => {}
        Before::ConfirmedByThis => {
            world
                .deliver(&[completed(payment, placed.order, placed.total)])
                .await;
        }
        Before::ConfirmedByAnother => {
            let another = format!("{payment}-another");
            world
                .deliver(&[completed(&another, placed.order, placed.total)])
                .await;
        }
        Before::Canceled => assert!(world.cancel(placed.order).await),
        Before::Expired => {
            let id = placed.order;
            world
                .execute(&format!(
                    "update orders set reserved_until = now() where id = '{id}'"
                ))
                .await;
            world.expire().await;
            assert_eq!(world.status(id).await, "EXPIRED");
        }
        Before::Unknown => {
            world.cancel(placed.order).await;
            placed.order = contracts::OrderId::generate();
        }
    }
    placed
}

fn news(cell: Cell, payment: &str, placed: &Placed) -> News {
    match cell {
        Cell::Right => completed(payment, placed.order, placed.total),
        Cell::WrongAmount => completed(payment, placed.order, money(1_999)),
        Cell::WrongCurrency => completed(payment, placed.order, dollars(2_000)),
        Cell::FailedFinal => failed(payment, placed.order, true),
        Cell::FailedNotFinal => failed(payment, placed.order, false),
    }
}

async fn status(world: &World, placed: &Placed) -> String {
    let query = format!(
        "select coalesce((select status from orders where id = '{}'), 'none')",
        placed.order
    );
    world.value(&query).await
}

pub(crate) async fn payment(world: &World, id: &str) -> String {
    world
        .value(&format!(
            "select coalesce((
                 select concat_ws(' ', p.state, p.captured_minor,
                                  case when p.applied then 'applied' else '-' end,
                                  coalesce(p.flagged, '-'),
                                  coalesce(r.state || ' ' || r.amount_minor, '-'))
                 from payments p left join refunds r on r.payment_id = p.id
                 where p.id = '{id}'), 'none')"
        ))
        .await
}

#[tokio::test]
async fn every_cell_of_the_table_holds_and_a_repeat_changes_nothing() {
    let world = World::new().await;
    world.sku("A", 1_000, None).await;
    for (number, (before, cell, (order, row, aside))) in TABLE.iter().enumerate() {
        let id = format!("pay-{number}");
        let placed = prepare(&world, *before, &id).await;
        let first = news(*cell, &id, &placed);
        let asides = world.deliver(std::slice::from_ref(&first)).await;
        let name = format!("{before:?} x {cell:?}");
        assert_eq!(asides.len() == 1, *aside, "{name}: set aside");
        assert!(
            asides.iter().all(|one| one.class == Class::UnknownSubject),
            "{name}: class"
        );
        assert_eq!(status(&world, &placed).await, *order, "{name}: order");
        assert_eq!(payment(&world, &id).await, *row, "{name}: payment");

        let events = world.events().await;
        let history = world.count("order_history").await;
        world.deliver(std::slice::from_ref(&first)).await;
        world.deliver(&[first.again(), first.again()]).await;
        assert_eq!(
            status(&world, &placed).await,
            *order,
            "{name} repeated: order"
        );
        assert_eq!(payment(&world, &id).await, *row, "{name} repeated: payment");
        assert_eq!(world.events().await, events, "{name} repeated: events");
        assert_eq!(
            world.count("order_history").await,
            history,
            "{name} repeated: history"
        );
    }
    world.assert_invariants().await;
}

#[tokio::test]
async fn two_payments_of_one_order_confirm_it_once_and_the_other_goes_back() {
    let world = World::with_gate().await;
    let apart = world.place_with_hold("c-1", &[("A", 2)]).await;
    world
        .deliver(&[completed("p1", apart.order, apart.total)])
        .await;
    world
        .deliver(&[completed("p2", apart.order, apart.total)])
        .await;
    let together = world.place_with_hold("c-1", &[("A", 1)]).await;
    world
        .deliver(&[
            completed("p3", together.order, together.total),
            completed("p4", together.order, together.total),
            failed("p4", together.order, true),
        ])
        .await;
    for (id, row) in [
        ("p1", "COMPLETED 2000 applied - -"),
        ("p2", "COMPLETED 2000 - - REQUESTED 2000"),
        ("p3", "COMPLETED 1000 applied - -"),
        ("p4", "COMPLETED 1000 - - REQUESTED 1000"),
    ] {
        assert_eq!(payment(&world, id).await, row, "{id}");
    }
    assert_eq!(world.stock_of("A").await, (100, 0, 3));
    world.assert_invariants().await;
    world.assert_gate_agrees().await;
}

#[tokio::test]
async fn a_batch_writes_one_stock_event_per_sku_and_kind() {
    let world = World::with_gate().await;
    world.sku("B", 50, Some(10)).await;
    stock::sync_gate::sync_skus(&world.stock, &[crate::support::sku("B")])
        .await
        .unwrap();
    let mut news = Vec::new();
    for number in 0..20 {
        let lines: &[(&str, i64)] = if number % 2 == 0 {
            &[("A", 1), ("B", 1)]
        } else {
            &[("A", 2)]
        };
        let placed = world.place_with_hold(&format!("c-{number}"), lines).await;
        if number < 15 {
            news.push(completed(&format!("p{number}"), placed.order, placed.total));
        } else {
            news.push(failed(&format!("p{number}"), placed.order, true));
        }
    }
    world.deliver(&news).await;
    let events = world.events().await;
    assert_eq!(events["ORDER_CONFIRMED"], 15);
    assert_eq!(events["ORDER_CANCELED"], 5);
    assert_eq!(events["STOCK_COMMITTED"], 2);
    assert_eq!(events["STOCK_RELEASED"], 2);
    assert_eq!(world.stock_of("A").await, (100, 0, 22));
    assert_eq!(world.stock_of("B").await, (50, 0, 8));
    world.assert_invariants().await;
    world.assert_gate_agrees().await;
}

#[tokio::test]
async fn each_event_one_to_five_times_and_shuffled_ends_the_same() {
    let world = World::with_gate().await;
    let mut news = Vec::new();
    let mut orders = Vec::new();
    for number in 0..10_u64 {
        let placed = world.place_with_hold("c", &[("A", 1)]).await;
        let one = if number % 3 == 0 {
            failed(&format!("p{number}"), placed.order, true)
        } else {
            completed(&format!("p{number}"), placed.order, placed.total)
        };
        for _ in 0..=(number % 5) {
            news.push(one.clone());
        }
        orders.push((
            placed.order,
            if number % 3 == 0 {
                "CANCELED"
            } else {
                "CONFIRMED"
            },
        ));
    }
    // A shuffle that is the same each time.
    news.sort_by_key(|one| one.id.bytes().rev().collect::<Vec<u8>>());
    for batch in news.chunks(7) {
        world.deliver(batch).await;
    }
    for (order, status) in orders {
        assert_eq!(world.status(order).await, status);
    }
    assert_eq!(world.stock_of("A").await, (100, 0, 6));
    assert_eq!(world.count("order_history where version = 2").await, 10);
    world.assert_invariants().await;
    world.assert_gate_agrees().await;
}

#[tokio::test]
async fn our_own_payment_is_applied_on_the_row_that_payment_wrote() {
    let world = World::with_gate().await;
    let placed = world.place_with_hold("c", &[("A", 1)]).await;
    world
        .execute(&format!(
            "insert into payments (id, order_id, gateway_key, state, amount_minor, currency, method,
                                   captured_minor, attempts)
             values ('own', '{}', 'key-own', 'COMPLETED', 1000, 'KRW', 'card', 1000, 1)",
            placed.order
        ))
        .await;
    world
        .deliver(&[completed("own", placed.order, placed.total)])
        .await;
    assert_eq!(payment(&world, "own").await, "COMPLETED 1000 applied - -");
    assert_eq!(world.status(placed.order).await, "CONFIRMED");
    let pending = world.place_with_hold("c", &[("A", 1)]).await;
    world
        .execute(&format!(
            "insert into payments (id, order_id, gateway_key, state, amount_minor, currency, method,
                                   next_attempt_at)
             values ('slow', '{}', 'key-slow', 'PENDING', 1000, 'KRW', 'card', now())",
            pending.order
        ))
        .await;
    world.deliver(&[failed("slow", pending.order, false)]).await;
    assert_eq!(
        payment(&world, "slow").await,
        "PENDING 0 - - -",
        "whoever tries again decides"
    );
    world
        .deliver(&[completed("slow", pending.order, pending.total)])
        .await;
    assert_eq!(payment(&world, "slow").await, "COMPLETED 1000 applied - -");
    world.assert_invariants().await;
}

#[tokio::test]
async fn news_that_contradicts_what_is_recorded_is_set_aside_alone() {
    let world = World::with_gate().await;
    let mine = world.place("c", &[("A", 1)], 600.0).await;
    let other = world.place("c", &[("A", 1)], 600.0).await;
    let good = world.place("c", &[("A", 1)], 600.0).await;
    world
        .deliver(&[completed("p", mine.order, mine.total)])
        .await;
    let asides = world
        .deliver(&[
            completed("p", other.order, other.total),
            failed("p", other.order, true),
            refunded("r", "never", other.order, other.total),
            refunded("r", "p", other.order, other.total),
            completed("good", good.order, good.total),
        ])
        .await;
    let seen: Vec<(usize, Class)> = asides.iter().map(|one| (one.index, one.class)).collect();
    assert_eq!(
        seen,
        [
            (0, Class::Conflict),
            (1, Class::Conflict),
            (2, Class::UnknownSubject),
            (3, Class::Conflict)
        ]
    );
    assert_eq!(world.status(mine.order).await, "CONFIRMED");
    assert_eq!(world.status(other.order).await, "RESERVED");
    assert_eq!(world.status(good.order).await, "CONFIRMED");
    world.assert_invariants().await;
}
