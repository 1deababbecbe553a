//! The table of P6, copied from the protocol.

use contracts::PaymentId;
use domain::{
    OrderStatus,
    settlement::{Action, News, OrderView, decide},
};

const TABLE: &str = "
| order | COMPLETED, amount right | COMPLETED, amount or currency wrong | FAILED final | FAILED not final |
|---|---|---|---|---|
| RESERVED | CONFIRMED, payment applied | record, refund, order unchanged, flagged once | CANCELED | record |
| CONFIRMED by this payment | repeat | record, alarm | record, alarm | record |
| CONFIRMED by another | record, refund | record, refund | record | record |
| CANCELED, EXPIRED | record, refund | record, refund | record | record |
| unknown id | dead letter, refund requested | the same | dead letter | dead letter |
";

fn news(column: &str) -> News {
    match column {
        "COMPLETED, amount right" => News::CompletedRight,
        "COMPLETED, amount or currency wrong" => News::CompletedWrong,
        "FAILED final" => News::FailedFinal,
        "FAILED not final" => News::FailedNotFinal,
        other => panic!("{other:?} is no news"),
    }
}

fn orders(row: &str) -> Vec<OrderView> {
    let confirmed = |by| OrderView::Confirmed { by };
    match row {
        "RESERVED" => vec![OrderView::Reserved],
        "CONFIRMED by this payment" => vec![confirmed(payment("this"))],
        "CONFIRMED by another" => vec![confirmed(payment("another"))],
        "CANCELED, EXPIRED" => [OrderStatus::Canceled, OrderStatus::Expired]
            .map(|status| OrderView::of(status, None).expect("a view"))
            .to_vec(),
        "unknown id" => vec![OrderView::Unknown],
        other => panic!("{other:?} is no order"),
    }
}

fn in_words(action: Action) -> &'static str {
    match action {
        Action::Confirm => "CONFIRMED, payment applied",
        Action::Cancel => "CANCELED",
        Action::Record => "record",
        Action::Repeat => "repeat",
        Action::RecordAndRefund => "record, refund",
        Action::RecordRefundAndFlag => "record, refund, order unchanged, flagged once",
        Action::RecordAndAlarm => "record, alarm",
        Action::DeadLetterAndRefund => "dead letter, refund requested",
        Action::DeadLetter => "dead letter",
    }
}

fn payment(name: &str) -> PaymentId {
    name.parse().expect("a payment")
}

fn row(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').map(str::trim).collect()
}

#[test]
fn every_cell_of_p6_is_as_the_protocol_says() {
    let mut lines = TABLE.trim().lines();
    let head = row(lines.next().expect("a head"));
    let mut cells = 0;
    for line in lines.skip(1) {
        let row = row(line);
        let mut left = "";
        for (column, cell) in head[1..].iter().zip(&row[1..]) {
            let expected = if *cell == "the same" { left } else { *cell };
            for order in orders(row[0]) {
                let action = decide(&order, &payment("this"), news(column));
                assert_eq!(in_words(action), expected, "{} | {column}", row[0]);
            }
            left = expected;
            cells += 1;
        }
    }
    assert_eq!(cells, 5 * News::ALL.len());
}

#[test]
fn only_an_order_that_waits_is_moved_by_a_payment() {
    let ended = [
        "CONFIRMED by this payment",
        "CONFIRMED by another",
        "CANCELED, EXPIRED",
    ];
    for order in ended
        .into_iter()
        .flat_map(orders)
        .chain([OrderView::Unknown])
    {
        for news in News::ALL {
            let action = decide(&order, &payment("this"), news);
            assert!(
                !matches!(action, Action::Confirm | Action::Cancel),
                "{order:?} {news:?}"
            );
        }
    }
}

#[test]
fn money_that_pays_no_confirmed_order_always_goes_back() {
    for order in [
        "RESERVED",
        "CONFIRMED by another",
        "CANCELED, EXPIRED",
        "unknown id",
    ]
    .into_iter()
    .flat_map(orders)
    {
        for news in [News::CompletedRight, News::CompletedWrong] {
            let action = decide(&order, &payment("this"), news);
            let refunded = matches!(
                action,
                Action::RecordAndRefund | Action::RecordRefundAndFlag | Action::DeadLetterAndRefund
            );
            assert_eq!(refunded, action != Action::Confirm, "{order:?} {news:?}");
        }
    }
}

#[test]
fn a_confirmed_order_without_its_payment_is_no_view() {
    assert_eq!(OrderView::of(OrderStatus::Confirmed, None), None);
    assert_eq!(
        OrderView::of(OrderStatus::Confirmed, Some(payment("this"))),
        Some(OrderView::Confirmed {
            by: payment("this")
        })
    );
    assert_eq!(
        OrderView::of(OrderStatus::Reserved, None),
        Some(OrderView::Reserved)
    );
}
