//! What differs between the gate and PostgreSQL at one look.

use std::collections::{BTreeMap, BTreeSet};

use reservations::GateSnapshot;
use store::verify::facts::GateFacts;
use uuid::Uuid;

/// A race moves its counter by hand, all the time.
const MOVED_BY_HAND: &str = "RACE-DRIFT";

/// One thing at the gate that PostgreSQL contradicts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Difference {
    /// No hold of a RESERVED order.
    Missing(Uuid),
    /// The hold of an order that has ended.
    Ended(Uuid),
    /// A hold without an order, which the sweep should have asked about.
    Orphan(Uuid),
    /// A hold that the sweep will never ask about.
    NeverAsked(Uuid),
    /// A hold of other units than its order.
    Lines(Uuid),
    /// This limit, while PostgreSQL says others. Without the other side: that moves, and a gate that
    /// stands still must not look new each time.
    Limit(String, Option<i64>),
    /// A counter that is so much more than its holds.
    Held(String, i64),
    /// Units counted for a buyer: so many more than in PostgreSQL, holds without an order left out.
    Buyer(String, String, i64),
    /// What none of the scripts writes.
    Damaged(String),
}

/// What one look saw.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) open: bool,
    pub(super) differences: BTreeSet<Difference>,
}

/// What differs; `known` are the orders of the holds at the gate that were not RESERVED before the
/// gate was read, with their status after it.
pub(super) fn compare(
    wanted: &GateFacts,
    found: &GateSnapshot,
    known: &BTreeMap<Uuid, String>,
    now_ms: i64,
) -> Reading {
    let mut reading = Reading {
        open: found.epoch.as_ref().is_some_and(|epoch| epoch.open),
        differences: found
            .damaged
            .iter()
            .cloned()
            .map(Difference::Damaged)
            .collect(),
    };
    let differ = &mut reading.differences;
    let mut held: BTreeMap<&str, i64> = BTreeMap::new();
    let mut extra: BTreeMap<(&str, String), i64> = BTreeMap::new();
    for (id, stored) in &found.holds {
        let lines = &stored.hold.lines;
        for line in lines {
            *held.entry(line.sku.as_str()).or_default() += i64::from(line.quantity.get());
        }
        let due = found.due.get(id);
        if due.is_none() {
            differ.insert(Difference::NeverAsked(id.0));
        }
        if let Some(want) = wanted.holds.get(&id.0) {
            let same = want.len() == lines.len()
                && lines.iter().all(|line| {
                    want.get(line.sku.as_str()) == Some(&i64::from(line.quantity.get()))
                });
            if !same {
                differ.insert(Difference::Lines(id.0));
            }
            continue;
        }
        for (line, counted) in lines.iter().zip(&stored.counted) {
            if *counted {
                let key = (line.sku.as_str(), stored.hold.buyer.to_string());
                *extra.entry(key).or_default() += i64::from(line.quantity.get());
            }
        }
        match known.get(&id.0).map(String::as_str) {
            // Accepted while we looked.
            Some("RESERVED") => {}
            Some(_) => {
                differ.insert(Difference::Ended(id.0));
            }
            None if due.is_some_and(|due| *due <= now_ms) => {
                differ.insert(Difference::Orphan(id.0));
            }
            None => {}
        }
    }
    let at_gate: BTreeSet<Uuid> = found.holds.keys().map(|hold| hold.0).collect();
    let missing = wanted.holds.keys().filter(|hold| !at_gate.contains(hold));
    differ.extend(missing.copied().map(Difference::Missing));
    compare_units(wanted, found, &held, differ);
    compare_buyers(wanted, found, &extra, differ);
    reading
}

fn compare_units(
    wanted: &GateFacts,
    found: &GateSnapshot,
    held: &BTreeMap<&str, i64>,
    differ: &mut BTreeSet<Difference>,
) {
    for (sku, want) in &wanted.skus {
        let row = found.gates.iter().find(|(known, _)| known.as_str() == sku);
        let row = row.map(|(_, row)| row);
        let limit = row.map(|row| row.limit);
        if limit != Some(want.limit) {
            differ.insert(Difference::Limit(sku.clone(), limit));
        }
        let sum = held.get(sku.as_str()).copied().unwrap_or(0);
        let more = row.map_or(0, |row| row.held) - sum;
        if more != 0 && sku != MOVED_BY_HAND {
            differ.insert(Difference::Held(sku.clone(), more));
        }
    }
}

fn compare_buyers(
    wanted: &GateFacts,
    found: &GateSnapshot,
    extra: &BTreeMap<(&str, String), i64>,
    differ: &mut BTreeSet<Difference>,
) {
    let limited = |sku: &str| wanted.skus.get(sku).is_some_and(|sku| sku.limited);
    let at_gate: BTreeMap<(&str, String), i64> = found
        .buyers
        .iter()
        .map(|((sku, buyer), units)| ((sku.as_str(), buyer.to_string()), *units))
        .collect();
    let want: BTreeMap<(&str, String), i64> = wanted
        .buyers
        .iter()
        .map(|((sku, buyer), units)| ((sku.as_str(), buyer.clone()), *units))
        .collect();
    let keys: BTreeSet<&(&str, String)> = at_gate.keys().chain(want.keys()).collect();
    for key in keys.into_iter().filter(|(sku, _)| limited(sku)) {
        let of = |units: &BTreeMap<(&str, String), i64>| units.get(key).copied().unwrap_or(0);
        let more = of(&at_gate) - of(extra) - of(&want);
        if more != 0 {
            let (sku, buyer) = key;
            differ.insert(Difference::Buyer((*sku).to_owned(), buyer.clone(), more));
        }
    }
}

#[cfg(test)]
mod tests {
    use contracts::{HoldId, Sku};
    use domain::{Buyer, Hold};
    use reservations::{EpochState, GateRow, StoredHold};
    use store::verify::facts::GateSku;

    use super::*;

    const NOW: i64 = 1_000_000;
    const ONE: Uuid = Uuid::from_u128(1);

    /// One RESERVED order of two units, out of ten, the same on both sides.
    fn agreeing() -> (GateFacts, GateSnapshot) {
        let sku = Sku::parse("A").unwrap();
        let buyer = Buyer {
            shop: "shop".parse().unwrap(),
            customer: "c".parse().unwrap(),
        };
        let hold = Hold {
            hold_id: HoldId(ONE),
            buyer: buyer.clone(),
            lines: vec![contracts::Line {
                sku: sku.clone(),
                quantity: contracts::Quantity::new(2).unwrap(),
            }],
        };
        let mut facts = GateFacts::default();
        let want = GateSku {
            shard: 0,
            limit: 10,
            held: 2,
            limited: true,
        };
        facts.skus.insert("A".to_owned(), want);
        facts
            .holds
            .entry(ONE)
            .or_default()
            .insert("A".to_owned(), 2);
        facts
            .buyers
            .insert(("A".to_owned(), "shop/c".to_owned()), 2);
        let mut gate = GateSnapshot {
            epoch: Some(EpochState {
                epoch: "e".to_owned(),
                open: true,
            }),
            ..GateSnapshot::default()
        };
        let row = GateRow {
            limit: 10,
            version: 1,
            held: 2,
            opens_at_ms: None,
            closes_at_ms: None,
            per_customer_limit: Some(5),
        };
        gate.gates.insert(sku.clone(), row);
        gate.buyers.insert((sku, buyer), 2);
        let stored = StoredHold {
            hold,
            counted: vec![true],
        };
        gate.holds.insert(HoldId(ONE), stored);
        gate.due.insert(HoldId(ONE), NOW + 1);
        (facts, gate)
    }

    fn differences(facts: &GateFacts, gate: &GateSnapshot, known: &[&str]) -> Vec<Difference> {
        let known = known.iter().map(|status| (ONE, (*status).to_owned()));
        let reading = compare(facts, gate, &known.collect(), NOW);
        assert!(reading.open);
        reading.differences.into_iter().collect()
    }

    #[test]
    fn two_sides_that_agree_differ_in_nothing() {
        let (facts, gate) = agreeing();
        assert_eq!(differences(&facts, &gate, &[]), []);
    }

    #[test]
    fn a_hold_without_an_order_is_wrong_once_it_is_due_and_that_of_an_ended_one_at_once() {
        let (mut facts, mut gate) = agreeing();
        facts.holds.clear();
        facts.buyers.clear();
        assert_eq!(differences(&facts, &gate, &[]), []);
        assert_eq!(differences(&facts, &gate, &["RESERVED"]), []);
        let ended = differences(&facts, &gate, &["EXPIRED"]);
        assert_eq!(ended, [Difference::Ended(ONE)]);
        gate.due.insert(HoldId(ONE), NOW);
        let orphan = differences(&facts, &gate, &[]);
        assert_eq!(orphan, [Difference::Orphan(ONE)]);
    }

    #[test]
    fn a_gate_that_forgot_an_order_lacks_its_hold_and_its_units() {
        let (facts, mut gate) = agreeing();
        gate.holds.clear();
        gate.buyers.clear();
        let forgot = [
            Difference::Missing(ONE),
            Difference::Held("A".to_owned(), 2),
            Difference::Buyer("A".to_owned(), "shop/c".to_owned(), -2),
        ];
        assert_eq!(differences(&facts, &gate, &[]), forgot);
    }

    #[test]
    fn an_old_limit_and_other_units_are_seen() {
        let (mut facts, gate) = agreeing();
        facts.skus.get_mut("A").unwrap().limit = 9;
        facts.holds.get_mut(&ONE).unwrap().insert("A".to_owned(), 1);
        let wrong = [
            Difference::Lines(ONE),
            Difference::Limit("A".to_owned(), Some(10)),
        ];
        assert_eq!(differences(&facts, &gate, &[]), wrong);
    }
}
