//! The order's life as a table: rows are statuses, columns are triggers.

use std::collections::BTreeSet;

use domain::order::{EndReason, OrderStatus, Transition, Trigger, apply};

const TABLE: &str = "
            | PaymentCompleted | PaymentFailed | CancelRequested | DeadlinePassed
  RESERVED  | to CONFIRMED     | to CANCELED   | to CANCELED     | to EXPIRED
  CONFIRMED | already there    | settled       | settled         | settled
  CANCELED  | settled          | already there | already there   | settled
  EXPIRED   | settled          | settled       | settled         | already there
";

fn in_words(transition: Transition) -> String {
    match transition {
        Transition::To(status) => format!("to {status}"),
        Transition::AlreadyThere => "already there".to_owned(),
        Transition::Settled => "settled".to_owned(),
    }
}

#[test]
fn every_cell_of_the_table_is_as_written() {
    let mut lines = TABLE
        .trim_matches('\n')
        .lines()
        .map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    let triggers = lines.next().expect("a head");
    let columns: Vec<Trigger> = triggers[1..]
        .iter()
        .map(|name| {
            Trigger::ALL
                .into_iter()
                .find(|trigger| format!("{trigger:?}") == *name)
                .expect(name)
        })
        .collect();
    let mut cells = 0;
    for row in lines {
        let status = OrderStatus::parse(row[0]).expect("a status");
        for (trigger, cell) in columns.iter().zip(&row[1..]) {
            assert_eq!(
                in_words(apply(status, *trigger)),
                *cell,
                "{status} {trigger:?}"
            );
            cells += 1;
        }
    }
    assert_eq!(cells, OrderStatus::ALL.len() * Trigger::ALL.len());
}

#[test]
fn every_status_that_can_be_reached_has_a_way_out_or_is_an_end() {
    let mut reached = vec![OrderStatus::Reserved];
    let mut next = 0;
    while let Some(status) = reached.get(next).copied() {
        next += 1;
        let exits: Vec<OrderStatus> = Trigger::ALL
            .into_iter()
            .filter_map(|trigger| match apply(status, trigger) {
                Transition::To(to) => Some(to),
                Transition::AlreadyThere | Transition::Settled => None,
            })
            .collect();
        assert_eq!(exits.is_empty(), status.is_end(), "{status}");
        for to in exits {
            if !reached.contains(&to) {
                reached.push(to);
            }
        }
    }
    assert_eq!(
        reached.len(),
        OrderStatus::ALL.len(),
        "every status can be reached"
    );
}

#[test]
fn a_trigger_that_moved_an_order_is_a_repeat_when_it_comes_again() {
    for trigger in Trigger::ALL {
        let Transition::To(end) = apply(OrderStatus::Reserved, trigger) else {
            panic!("{trigger:?} does nothing to a reserved order");
        };
        assert_eq!(apply(end, trigger), Transition::AlreadyThere, "{trigger:?}");
    }
}

#[test]
fn words_are_unique_and_found_again() {
    for status in OrderStatus::ALL {
        assert_eq!(OrderStatus::parse(status.as_str()), Some(status));
    }
    assert_eq!(OrderStatus::parse("reserved"), None);
    assert_eq!(OrderStatus::parse(""), None);
    let reasons = [
        EndReason::Paid,
        EndReason::PaymentFailed,
        EndReason::Canceled,
        EndReason::DeadlinePassed,
    ];
    let words: BTreeSet<&str> = reasons.into_iter().map(EndReason::as_str).collect();
    assert_eq!(words.len(), reasons.len());
}
