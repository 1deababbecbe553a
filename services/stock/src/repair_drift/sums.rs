//! Whether each gate holds what its holds sum up to: pure but for the reading of the counters. A sum
//! that stays wrong can be cured by nothing that the gate is told.

use std::collections::BTreeMap;

use contracts::Sku;
use domain::Shard;
use reservations::{GateRead, GateSnapshot};

use super::{Compare, RepairDrift, Seen};
use crate::StockError;

/// How often in a row a counter must differ from its holds by the same amount.
const WRONG_SUMS: u32 = 3;

impl RepairDrift {
    /// The units that each gate says are held.
    pub(super) async fn counters(
        &self,
        shard: Shard,
        seen: &Seen,
    ) -> Result<BTreeMap<Sku, i64>, StockError> {
        let skus: Vec<Sku> = seen.gates.keys().cloned().collect();
        let gates = self.stock.gate.read_gates(shard, &skus).await?;
        let held = |(sku, gate)| match gate {
            GateRead::Row(row) => Some((sku, row.held)),
            GateRead::Missing | GateRead::Damaged => None,
        };
        Ok(skus.into_iter().zip(gates).filter_map(held).collect())
    }
}

/// Whether a counter has differed from the sum of its holds by the same amount for long enough. The
/// holds are read one after the other, between `before` and the snapshot's counters: of a SKU that
/// sells, any sum between the two is right.
pub(super) fn wrong_sums(
    before: &BTreeMap<Sku, i64>,
    snapshot: &GateSnapshot,
    sums: &mut BTreeMap<Sku, (i64, u32)>,
    why: Compare,
) -> bool {
    let mut held: BTreeMap<&Sku, i64> = BTreeMap::new();
    for stored in snapshot.holds.values() {
        for line in &stored.hold.lines {
            *held.entry(&line.sku).or_default() += i64::from(line.quantity.get());
        }
    }
    let mut now = BTreeMap::new();
    for (sku, gate) in &snapshot.gates {
        let sum = held.get(sku).copied().unwrap_or(0);
        let was = before.get(sku).copied().unwrap_or(gate.held);
        let by = (was.min(gate.held) - sum).max(0) + (was.max(gate.held) - sum).min(0);
        if by != 0 {
            let times = sums
                .get(sku)
                .filter(|(before, _)| *before == by)
                .map_or(0, |(_, n)| *n);
            if times > 0 || why == Compare::Anew {
                now.insert(sku.clone(), (by, times + 1));
            }
        }
    }
    *sums = now;
    sums.values().any(|(_, times)| *times >= WRONG_SUMS)
}

#[cfg(test)]
mod tests {
    use contracts::{CustomerId, HoldId, Line, Quantity};
    use domain::{Buyer, Hold};
    use reservations::{GateRow, StoredHold};

    use super::*;

    fn hold() -> Hold {
        Hold {
            hold_id: HoldId::derive("s", "r", "k"),
            buyer: Buyer {
                shop: contracts::Shop::parse("s").unwrap(),
                customer: CustomerId::parse("c").unwrap(),
            },
            lines: vec![Line {
                sku: Sku::parse("A").unwrap(),
                quantity: Quantity::new(1).unwrap(),
            }],
        }
    }

    /// Whether the counter of a SKU with one hold of one unit is wrong after looks that saw these
    /// counters before and after the holds.
    fn is_wrong(counters: &[(i64, i64)]) -> bool {
        let sku = Sku::parse("A").unwrap();
        let mut sums = BTreeMap::new();
        let mut wrong = false;
        for (before, after) in counters {
            let gate = GateRow {
                limit: 10,
                version: 1,
                held: *after,
                opens_at_ms: None,
                closes_at_ms: None,
                per_customer_limit: None,
            };
            let stored = StoredHold {
                hold: hold(),
                counted: vec![false],
            };
            let snapshot = GateSnapshot {
                gates: BTreeMap::from([(sku.clone(), gate)]),
                holds: BTreeMap::from([(hold().hold_id, stored)]),
                ..GateSnapshot::default()
            };
            let before = BTreeMap::from([(sku.clone(), *before)]);
            wrong = wrong_sums(&before, &snapshot, &mut sums, Compare::Anew);
        }
        wrong
    }

    #[test]
    fn a_counter_that_moves_past_its_holds_is_not_wrong() {
        assert!(!is_wrong(&[(1, 3); 9]), "two were taken meanwhile");
        assert!(!is_wrong(&[(2, 0); 9]), "two went back meanwhile");
        assert!(!is_wrong(&[(1, 1); 9]));
    }

    #[test]
    fn a_counter_that_is_wrong_is_so_three_times() {
        for counters in [(3, 3), (0, 0), (3, 4), (0, -1)] {
            assert!(!is_wrong(&[counters; 2]), "{counters:?}");
            assert!(is_wrong(&[counters; 3]), "{counters:?}");
        }
        assert!(!is_wrong(&[(3, 3), (3, 3), (1, 3), (3, 3)]));
    }
}
