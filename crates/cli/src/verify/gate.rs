//! I10, I14, I20: the gate against PostgreSQL.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use domain::Shard;
use reservations::{Gate, GateConfig, GateSnapshot};
use store::verify::{
    Check,
    facts::{self, GateFacts},
};

use super::Target;

pub(super) async fn checks(target: &Target) -> anyhow::Result<Vec<Check>> {
    let mut config = GateConfig::new(target.redis_url.clone());
    config.key_prefix.clone_from(&target.key_prefix);
    let gate = Gate::new(config)?;
    let facts = facts::gate(&target.store).await?;
    let shards: BTreeSet<i32> = facts
        .skus
        .values()
        .map(|sku| sku.shard)
        .chain([0])
        .collect();
    let mut found = Found::default();
    for shard in shards {
        let snapshot = gate
            .snapshot(Shard(shard))
            .await
            .context("Redis can't be reached")?;
        found.compare(shard, &facts, &snapshot);
    }
    found.holds_without_gate(&facts);
    Ok(found.checks())
}

#[derive(Default)]
struct Found {
    bounds: Vec<String>,
    units: Vec<String>,
    sums: Vec<String>,
    holds: Vec<String>,
    buyers: Vec<String>,
    due: Vec<String>,
    stray: Vec<String>,
    seen: BTreeSet<uuid::Uuid>,
}

impl Found {
    fn compare(&mut self, shard: i32, facts: &GateFacts, gate: &GateSnapshot) {
        self.stray.extend(
            gate.stray
                .iter()
                .map(|key| format!("{key}: not ours to have")),
        );
        self.stray
            .extend(gate.damaged.iter().map(|key| format!("{key}: damaged")));
        if !gate.epoch.as_ref().is_some_and(|epoch| epoch.open) {
            self.units.push(format!("shard {shard}: no open gate"));
            return;
        }
        let mut sums: BTreeMap<&str, i64> = BTreeMap::new();
        for (hold_id, stored) in &gate.holds {
            self.seen.insert(hold_id.0);
            for line in &stored.hold.lines {
                *sums.entry(line.sku.as_str()).or_insert(0) += i64::from(line.quantity.get());
            }
            match facts.holds.get(&hold_id.0) {
                None => self
                    .holds
                    .push(format!("hold {hold_id}: at the gate, no RESERVED order")),
                Some(lines) => {
                    let same = stored.hold.lines.iter().all(|line| {
                        lines.get(line.sku.as_str()) == Some(&i64::from(line.quantity.get()))
                    });
                    if !same {
                        self.holds
                            .push(format!("hold {hold_id}: other lines than its order"));
                    }
                }
            }
            if !gate.due.contains_key(hold_id) {
                self.due.push(format!("hold {hold_id}: never asked about"));
            }
        }
        for hold_id in gate.due.keys().filter(|id| !gate.holds.contains_key(*id)) {
            self.due
                .push(format!("hold {hold_id}: asked about, not there"));
        }
        for (sku, want) in facts.skus.iter().filter(|(_, want)| want.shard == shard) {
            let Some(row) = gate.gates.iter().find(|(known, _)| known.as_str() == sku) else {
                self.units.push(format!("{sku}: no gate"));
                continue;
            };
            let row = row.1;
            if (row.limit, row.held) != (want.limit, want.held) {
                self.units.push(format!(
                    "{sku}: limit {}, held {} at the gate; {}, {} in stock",
                    row.limit, row.held, want.limit, want.held
                ));
            }
            if row.held > row.limit {
                self.bounds
                    .push(format!("{sku}: held {} > limit {}", row.held, row.limit));
            }
            let sum = sums.get(sku.as_str()).copied().unwrap_or(0);
            if sum != row.held {
                self.sums
                    .push(format!("{sku}: held {}, holds sum to {sum}", row.held));
            }
        }
        self.compare_buyers(shard, facts, gate);
    }

    fn compare_buyers(&mut self, shard: i32, facts: &GateFacts, gate: &GateSnapshot) {
        let counted: BTreeMap<(String, String), i64> = gate
            .buyers
            .iter()
            .filter(|(_, units)| **units != 0)
            .map(|((sku, buyer), units)| ((sku.to_string(), buyer.to_string()), *units))
            .collect();
        let here = |sku: &str| {
            facts
                .skus
                .get(sku)
                .is_some_and(|s| s.shard == shard && s.limited)
        };
        for (key, units) in facts.buyers.iter().filter(|((sku, _), _)| here(sku)) {
            let at_gate = counted.get(key).copied().unwrap_or(0);
            if at_gate != *units {
                self.buyers.push(format!(
                    "{} {}: {at_gate} at the gate, {units}",
                    key.0, key.1
                ));
            }
        }
        for (key, units) in counted.iter().filter(|((sku, _), _)| here(sku)) {
            if !facts.buyers.contains_key(key) {
                self.buyers
                    .push(format!("{} {}: {units} at the gate, 0", key.0, key.1));
            }
        }
    }

    fn holds_without_gate(&mut self, facts: &GateFacts) {
        for hold_id in facts.holds.keys().filter(|id| !self.seen.contains(id)) {
            self.holds
                .push(format!("hold {hold_id}: RESERVED order, not at the gate"));
        }
    }

    fn checks(self) -> Vec<Check> {
        vec![
            Check::of(
                "I10",
                "no gate holds more than its limit",
                "held <= limit",
                self.bounds,
            ),
            Check::of(
                "I20",
                "limit and held of each gate are on_hand - sold and held of the stock",
                "gate = stock",
                self.units,
            ),
            Check::of(
                "I20",
                "the holds of each gate sum to its held units",
                "holds = held",
                self.sums,
            ),
            Check::of(
                "I20",
                "the holds at the gate are those of the RESERVED orders",
                "holds = orders",
                self.holds,
            ),
            Check::of(
                "I20",
                "the units counted per buyer at the gate are those in PostgreSQL",
                "gate = buyer units",
                self.buyers,
            ),
            Check::of(
                "I14",
                "every hold is asked about, and nothing else",
                "due = holds",
                self.due,
            ),
            Check::of(
                "I20",
                "no key of ours is stray or damaged",
                "0 stray",
                self.stray,
            ),
        ]
    }
}
