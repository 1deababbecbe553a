//! Batches as tables: what came in, and what became of it.

use contracts::Money;
use domain::{Decision, Refusal, SkuView};

use crate::batch::{Shelf, after_now, money, request, sku, view};

fn limited(available: i64, limit: i64) -> SkuView {
    SkuView {
        per_customer_limit: Some(limit),
        ..view(available)
    }
}

#[test]
fn the_last_unit_goes_to_who_came_first() {
    let shelf = Shelf::of([("A", view(3))]);
    assert_eq!(
        shelf.decide(&["ann A=2", "bob A=2", "cem A=1", "dan A=1"]),
        [
            "yes 200 KRW for 600 s",
            "sold out A",
            "yes 100 KRW for 600 s",
            "sold out A"
        ]
    );
}

#[test]
fn an_order_gets_all_its_lines_or_none() {
    let shelf = Shelf::of([("A", view(1)), ("B", view(1))]);
    assert_eq!(
        shelf.decide(&["ann A=1 B=2", "bob A=1 B=1", "cem B=1"]),
        ["sold out B", "yes 200 KRW for 600 s", "sold out B"]
    );
}

#[test]
fn crossed_pairs_have_one_winner() {
    let shelf = Shelf::of([("A", view(1)), ("B", view(1))]);
    let plan = shelf.plan(&[request(1, "ann", "A=1 B=1"), request(2, "bob", "A=1 B=1")]);
    assert!(matches!(plan.decisions[0], Decision::Accept(_)));
    assert_eq!(
        plan.decisions[1],
        Decision::Refuse(Refusal::SoldOut { sku: sku("A") })
    );
    assert_eq!(plan.taken, [(sku("A"), 1), (sku("B"), 1)].into());
}

#[test]
fn a_buyer_s_orders_in_one_batch_count_together() {
    let shelf = Shelf::of([("A", limited(100, 3))]).owning("A", "ann", 1);
    assert_eq!(
        shelf.decide(&["ann A=1", "ann A=2", "bob A=3", "ann A=1", "bob A=1"]),
        [
            "yes 100 KRW for 600 s",
            "limit A",
            "yes 300 KRW for 600 s",
            "yes 100 KRW for 600 s",
            "limit A",
        ]
    );
}

#[test]
fn customers_of_two_shops_are_two_buyers() {
    let shelf = Shelf::of([("A", limited(100, 1))]);
    let mut other = request(2, "ann", "A=1");
    other.buyer.shop = "shop-2".parse().expect("a shop");
    let plan = shelf.plan(&[request(1, "ann", "A=1"), other]);
    assert!(
        plan.decisions
            .iter()
            .all(|decision| matches!(decision, Decision::Accept(_)))
    );
    assert_eq!(plan.bought.len(), 2);
}

#[test]
fn only_units_of_limited_skus_are_counted_per_buyer() {
    let shelf = Shelf::of([("A", limited(9, 9)), ("B", view(9))]);
    let plan = shelf.plan(&[request(1, "ann", "A=2 B=3"), request(2, "ann", "A=1")]);
    assert_eq!(plan.bought.into_values().collect::<Vec<_>>(), [3]);
    assert_eq!(plan.taken, [(sku("A"), 3), (sku("B"), 3)].into());
}

#[test]
fn the_shortest_reservation_counts_for_the_whole_order() {
    let shelf = Shelf::of([
        ("A", view(9)),
        (
            "B",
            SkuView {
                ttl_seconds: 30,
                ..view(9)
            },
        ),
        (
            "C",
            SkuView {
                ttl_seconds: 86_400,
                ..view(9)
            },
        ),
    ]);
    assert_eq!(
        shelf.decide(&["ann A=1 B=1 C=1", "bob A=1 C=1", "cem C=1"]),
        [
            "yes 300 KRW for 30 s",
            "yes 200 KRW for 600 s",
            "yes 100 KRW for 86400 s"
        ]
    );
}

#[test]
fn the_total_is_exact_up_to_the_greatest_amount_and_not_beyond() {
    let dear = |amount| SkuView {
        unit_price: money(amount, "KRW"),
        ..view(9)
    };
    let shelf = Shelf::of([
        ("A", dear(Money::MAX)),
        ("B", dear(Money::MAX - 1)),
        ("C", dear(1)),
        ("D", dear(0)),
    ]);
    assert_eq!(
        shelf.decide(&[
            "ann A=1",
            "ann A=2",
            "ann A=1 C=1",
            "ann B=1 C=1",
            "ann D=9"
        ]),
        [
            "yes 9007199254740991 KRW for 600 s",
            "total",
            "total",
            "yes 9007199254740991 KRW for 600 s",
            "yes 0 KRW for 600 s",
        ]
    );
}

#[test]
fn an_order_has_one_currency_and_a_batch_may_have_several() {
    let shelf = Shelf::of([
        ("A", view(9)),
        (
            "B",
            SkuView {
                unit_price: money(250, "USD"),
                ..view(9)
            },
        ),
    ]);
    assert_eq!(
        shelf.decide(&["ann A=1 B=1", "bob B=2", "cem A=1"]),
        ["total", "yes 500 USD for 600 s", "yes 100 KRW for 600 s"]
    );
}

#[test]
fn an_order_without_lines_is_refused() {
    assert_eq!(
        Shelf::of([]).plan(&[request(1, "ann", "")]).decisions,
        [Decision::Refuse(Refusal::Total)]
    );
}

#[test]
fn a_window_opens_at_its_moment_and_closes_at_its_moment() {
    let window = |opens: i64, closes: i64| SkuView {
        opens_at: Some(after_now(opens)),
        closes_at: Some(after_now(closes)),
        ..view(9)
    };
    let shelf = Shelf::of([
        ("EARLY", window(1, 2)),
        ("FIRST", window(0, 1)),
        ("LAST", window(-2, 0)),
        ("LATE", window(-2, -1)),
    ]);
    assert_eq!(
        shelf.decide(&["a EARLY=1", "a FIRST=1", "a LAST=1", "a LATE=1"]),
        [
            "not open EARLY",
            "yes 100 KRW for 600 s",
            "over LAST",
            "over LATE"
        ]
    );
}

#[test]
fn of_several_reasons_the_one_that_the_caller_can_do_least_about_is_told() {
    let later = SkuView {
        opens_at: Some(after_now(9)),
        ..view(9)
    };
    let over = SkuView {
        closes_at: Some(after_now(-9)),
        ..view(9)
    };
    let dollars = SkuView {
        unit_price: money(1, "USD"),
        ..view(9)
    };
    let shelf = Shelf::of([
        ("A-EMPTY", view(0)),
        ("B-LIMITED", limited(0, 1)),
        ("C-OVER", over),
        ("D-LATER", later),
        ("E-DOLLARS", dollars),
    ]);
    assert_eq!(
        shelf.decide(&[
            "a A-EMPTY=1 B-LIMITED=2 C-OVER=1 D-LATER=1 E-DOLLARS=1 F-UNKNOWN=1 G-UNKNOWN=1",
            "a A-EMPTY=1 B-LIMITED=2 C-OVER=1 D-LATER=1 E-DOLLARS=1",
            "a A-EMPTY=1 B-LIMITED=2 C-OVER=1 D-LATER=1",
            "a A-EMPTY=1 B-LIMITED=2 C-OVER=1",
            "a A-EMPTY=1 B-LIMITED=2",
            "a A-EMPTY=1 B-LIMITED=1",
        ]),
        [
            "unknown F-UNKNOWN",
            "total",
            "not open D-LATER",
            "over C-OVER",
            "limit B-LIMITED",
            "sold out A-EMPTY"
        ]
    );
}

#[test]
fn a_refusal_before_the_opening_says_when() {
    let shelf = Shelf::of([(
        "A",
        SkuView {
            opens_at: Some(after_now(60)),
            ..view(9)
        },
    )]);
    assert_eq!(
        shelf.plan(&[request(1, "ann", "A=1")]).decisions,
        [Decision::Refuse(Refusal::NotOpen {
            sku: sku("A"),
            opens_at: Some(after_now(60))
        })]
    );
}

#[test]
fn stock_that_is_below_zero_gives_nothing() {
    // Can't be (a check of the database forbids it), and must not become a credit if it is.
    assert_eq!(
        Shelf::of([("A", view(-5))]).decide(&["ann A=1"]),
        ["sold out A"]
    );
}
