//! What the clients ask for: each request is made from the seed and its number alone.

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

/// What is on sale.
#[derive(Debug, Clone, Copy)]
pub struct Article {
    /// Its name.
    pub sku: &'static str,
    /// Units at the start.
    pub on_hand: i64,
    /// Whether orders of it last as long as an outage, or a few seconds.
    pub lasts: bool,
    /// Units per customer.
    pub limit: Option<i32>,
}

const fn article(sku: &'static str, on_hand: i64, lasts: bool) -> Article {
    Article {
        sku,
        on_hand,
        lasts,
        limit: None,
    }
}

/// Plenty of some, hardly any of others.
pub const ARTICLES: [Article; 11] = [
    article("LONG-1", 1_000_000, true),
    article("LONG-2", 1_000_000, true),
    article("LONG-3", 1_000_000, true),
    article("LONG-4", 1_000_000, true),
    article("SHORT-1", 1_000_000, false),
    article("SHORT-2", 1_000_000, false),
    article("SHORT-3", 1_000_000, false),
    article("TIGHT-1", 10, false),
    article("TIGHT-2", 10, false),
    article("TIGHT-3", 10, false),
    Article {
        sku: "LIMIT-1",
        on_hand: 1_000_000,
        lasts: false,
        limit: Some(2),
    },
];

/// Articles that last.
const LONG: std::ops::Range<usize> = 0..4;
/// Articles whose orders end in seconds.
const SHORT: std::ops::Range<usize> = 4..7;
/// Articles that are sold out most of the time.
pub const TIGHT: std::ops::Range<usize> = 7..10;
const LIMITED: usize = 10;

/// What a client does beside placing the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// Nothing.
    Nothing,
    /// A twin sends the same at the same time to another replica.
    Twin,
    /// Somebody sends another body under the same key afterwards.
    Reuse,
    /// It hangs up at once, and tries again.
    HangUp,
    /// It cancels when the order is accepted, after so many milliseconds.
    Cancel(u64),
    /// It sends the same again a second later.
    Again,
}

/// One request.
#[derive(Debug, Clone)]
pub struct Planned {
    /// Its key.
    pub key: String,
    /// For the log.
    pub what: &'static str,
    /// Its body.
    pub body: Value,
    /// What else happens.
    pub beside: Beside,
    /// The replica that is asked first.
    pub replica: usize,
}

/// The request of this number.
#[must_use]
pub fn plan(seed: u64, number: u64, replicas: usize) -> Planned {
    let mut random = StdRng::seed_from_u64(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let (what, method, mut skus) = fate(&mut random);
    // The second line in any order: the service sorts its locks.
    if what == "card" && random.random_bool(0.2) {
        let other = ARTICLES[random.random_range(0..TIGHT.end)].sku;
        if other != skus[0] {
            skus.push(other);
        }
        if random.random_bool(0.5) {
            skus.reverse();
        }
    }
    let customer = random.random_range(0..2_000);
    let lines: Vec<Value> = skus
        .iter()
        .map(|sku| json!({ "sku": sku, "quantity": random.random_range(1..=2) }))
        .collect();
    let beside = match random.random_range(0..100) {
        0..8 => Beside::Twin,
        8..10 => Beside::Reuse,
        10..13 => Beside::HangUp,
        13..18 => Beside::Cancel(random.random_range(0..600)),
        18..22 => Beside::Again,
        _ => Beside::Nothing,
    };
    Planned {
        key: format!("k-{number}"),
        what,
        body: json!({
            "customer_id": format!("c-{customer}"),
            "lines": lines,
            "payment_method": method,
        }),
        beside,
        replica: random.random_range(0..replicas.max(1)),
    }
}

/// How it is paid, and what it is for: what never ends is for articles that expire soon.
fn fate(random: &mut StdRng) -> (&'static str, &'static str, Vec<&'static str>) {
    let mut of = |range: std::ops::Range<usize>| ARTICLES[random.random_range(range)].sku;
    let long = of(LONG);
    let short = of(SHORT);
    let tight = of(TIGHT);
    match random.random_range(0..100) {
        0..45 => ("card", "card", vec![long]),
        45..60 => ("card", "card", vec![short]),
        60..72 => ("tight", "card", vec![tight]),
        72..77 => ("limited", "card", vec![ARTICLES[LIMITED].sku]),
        77..83 => ("declined", "card-declined", vec![long]),
        83..89 => ("abandoned", "card-abandoned", vec![short]),
        89..96 => ("hanging", "card-hang", vec![long]),
        _ => ("wrong amount", "card-wrong", vec![short]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_asks_for_the_same() {
        for number in 0..200 {
            let (one, two) = (plan(7, number, 2), plan(7, number, 2));
            assert_eq!(one.body, two.body);
            assert_eq!(
                (one.beside, one.replica, one.what),
                (two.beside, two.replica, two.what)
            );
        }
        let differ = (0..200).filter(|n| plan(7, *n, 2).body != plan(8, *n, 2).body);
        assert!(differ.count() > 150);
    }
}
