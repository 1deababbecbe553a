//! What a flash sale sends: the whole list, made from a seed before the first request, so that a
//! run can be repeated.

use bytes::Bytes;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::json;

/// One request. Two with the same key have the same body.
#[derive(Debug, Clone)]
pub(super) struct Planned {
    /// Its `Idempotency-Key`.
    pub(super) key: String,
    /// Its JSON.
    pub(super) body: Bytes,
    /// Whether the key was sent before in the list.
    pub(super) duplicate: bool,
}

/// How likely a request has two lines.
const TWO_LINES: f64 = 0.2;

/// A duplicate follows its original within this many requests: some race with it, some come later.
const DUPLICATE_WITHIN: usize = 400;

/// Makes the list: `requests` entries, about `duplicates` of them repeats.
pub(super) fn plan(
    run: &str,
    skus: &[String],
    requests: usize,
    duplicates: f64,
    seed: u64,
) -> Vec<Planned> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut planned: Vec<Planned> = Vec::with_capacity(requests);
    for number in 0..requests {
        if number > 0 && random.random_bool(duplicates) {
            let back = random.random_range(1..=number.min(DUPLICATE_WITHIN));
            let original = planned[number - back].clone();
            planned.push(Planned {
                duplicate: true,
                ..original
            });
            continue;
        }
        let first = random.random_range(0..skus.len());
        let mut lines = vec![json!({ "sku": skus[first], "quantity": 1 })];
        if skus.len() > 1 && random.random_bool(TWO_LINES) {
            let second = (first + random.random_range(1..skus.len())) % skus.len();
            lines.push(json!({ "sku": skus[second], "quantity": 1 }));
        }
        let body = json!({
            "customer_id": format!("c-{run}-{number}"),
            "lines": lines,
            "payment_method": "card",
        });
        planned.push(Planned {
            key: format!("{run}-{number}"),
            body: Bytes::from(body.to_string()),
            duplicate: false,
        });
    }
    planned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_list() {
        let skus = vec!["A".to_owned(), "B".to_owned()];
        let [one, two] = [(); 2].map(|()| plan("r", &skus, 500, 0.1, 7));
        assert!(
            one.iter()
                .zip(&two)
                .all(|(a, b)| a.key == b.key && a.body == b.body)
        );
    }

    #[test]
    fn a_duplicate_repeats_key_and_body_of_an_earlier_request() {
        let skus = vec!["A".to_owned(), "B".to_owned(), "C".to_owned()];
        let planned = plan("r", &skus, 2_000, 0.1, 1);
        let repeats = planned.iter().filter(|p| p.duplicate).count();
        assert!(
            (100..400).contains(&repeats),
            "{repeats} of 2000 are duplicates"
        );
        for (at, request) in planned.iter().enumerate() {
            let before = planned[..at].iter().find(|p| p.key == request.key);
            assert_eq!(before.is_some(), request.duplicate);
            assert!(before.is_none_or(|original| original.body == request.body));
        }
    }
}
