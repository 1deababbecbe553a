//! What is wrong with the gate, for people, and its repair on demand: with the calls that the
//! service makes by itself all the time ([`RepairDrift`], [`rebuild_if_lost`]), and no others.
//!
//! 1. See what differs, twice, 2 s apart: what stands still is wrong. *Dies here:* nothing happened.
//! 2. Rebuild lost shards and look for drift until none of it is left. *Dies here:* some of it is
//!    repaired; each call may be repeated, by a service at the same time too.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use domain::Shard;
use reservations::GateSnapshot;
use serde::Serialize;
use serde_json::{Value, json};
use store::verify::facts::{self, GateFacts};

use crate::{RepairDrift, Stock, StockError, rebuild_gate::rebuild_if_lost};

/// How far apart two readings are.
const APART: Duration = Duration::from_secs(2);

/// How far apart the looks of a repair are.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long a repair may take: a hold without an order is left alone for 6 s.
const REPAIR_WITHIN: Duration = Duration::from_secs(30);

/// An epoch that was closed for so long is nobody's any more.
const ABANDONED_AFTER: Duration = Duration::from_secs(10);

/// The SKU of what concerns a whole shard.
const ALL_SKUS: &str = "*";

/// One thing at the gate that PostgreSQL contradicts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Repair {
    /// Of which SKU; `*` when a shard is concerned.
    pub sku: String,
    /// `limit`, `held`, `hold ID`, `due ID`, `buyer SHOP/CUSTOMER`, `shard N` or a damaged key.
    pub what: String,
    /// At the gate: units, or a word; null when it is not there.
    pub before: Said,
    /// By PostgreSQL.
    pub after: Said,
}

/// A number of units, a word, or nothing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Said {
    /// Not there.
    Nothing,
    /// Units.
    Units(i64),
    /// How a shard or key is.
    Word(&'static str),
}

impl Serialize for Said {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Nothing => Value::Null.serialize(serializer),
            Self::Units(units) => json!(units).serialize(serializer),
            Self::Word(word) => json!(word).serialize(serializer),
        }
    }
}

/// What `reconcile` found, and whether the gate is right now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reconciled {
    /// Nothing is wrong (any more).
    pub ok: bool,
    /// What was wrong, and with `fix` was repaired where `ok` says so.
    pub repairs: Vec<Repair>,
}

/// What is wrong and stays so for 2 s.
///
/// # Errors
/// A store is away.
pub async fn plan(stock: &Stock) -> Result<Reconciled, StockError> {
    let mut repairs = differences(stock).await?;
    if !repairs.is_empty() {
        tokio::time::sleep(APART).await;
        let again = differences(stock).await?;
        repairs.retain(|repair| again.contains(repair));
    }
    Ok(Reconciled {
        ok: repairs.is_empty(),
        repairs: repairs.into_iter().collect(),
    })
}

/// Repairs what is wrong.
///
/// # Errors
/// A store is away; part of it may be repaired.
pub async fn fix(stock: &Stock) -> Result<Reconciled, StockError> {
    let mut wrong = plan(stock).await?;
    if wrong.ok {
        return Ok(wrong);
    }
    let skus: BTreeSet<String> = wrong.repairs.iter().map(|one| one.sku.clone()).collect();
    let concerned = |repair: &Repair| skus.contains(&repair.sku) || skus.contains(ALL_SKUS);
    let drift = RepairDrift::new(stock.clone());
    let begun = platform::clock::monotonic();
    let mut closed = BTreeMap::new();
    while begun.elapsed() < REPAIR_WITHIN {
        rebuild_lost(stock, &mut closed).await?;
        drift.look().await?;
        wrong.ok = !differences(stock).await?.iter().any(concerned);
        if wrong.ok {
            return Ok(wrong);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    // Of a SKU that sells something is under way at any moment: what stays is wrong.
    wrong.ok = !plan(stock).await?.repairs.iter().any(concerned);
    Ok(wrong)
}

/// Rebuilds shards without an epoch. A closed one is being built by a service: it is left alone
/// unless nobody has opened it for long, or the two would overtake each other for ever.
async fn rebuild_lost(
    stock: &Stock,
    closed: &mut BTreeMap<String, Instant>,
) -> Result<(), StockError> {
    for shard in store::sweep::shards(&stock.store).await? {
        let abandoned = match stock.gate.current_epoch(shard).await? {
            None => true,
            Some(state) if state.open => false,
            Some(state) => {
                let now = platform::clock::monotonic();
                let since = *closed.entry(state.epoch).or_insert(now);
                now.saturating_duration_since(since) >= ABANDONED_AFTER
            }
        };
        if abandoned {
            rebuild_if_lost(stock, shard).await?;
        }
    }
    Ok(())
}

async fn differences(stock: &Stock) -> Result<BTreeSet<Repair>, StockError> {
    let facts = facts::gate(&stock.store).await?;
    let mut found = Found::default();
    for shard in store::sweep::shards(&stock.store).await? {
        let snapshot = stock.gate.snapshot(shard).await?;
        found.compare(shard, &facts, &snapshot);
    }
    Ok(found.0)
}

#[derive(Default)]
struct Found(BTreeSet<Repair>);

impl Found {
    fn add(&mut self, sku: &str, what: String, before: Said, after: Said) {
        if before != after {
            self.0.insert(Repair {
                sku: sku.to_owned(),
                what,
                before,
                after,
            });
        }
    }

    fn compare(&mut self, shard: Shard, facts: &GateFacts, gate: &GateSnapshot) {
        let state = match &gate.epoch {
            None => Said::Word("lost"),
            Some(epoch) if !epoch.open => Said::Word("closed"),
            Some(_) => Said::Word("open"),
        };
        let lost = state != Said::Word("open");
        let what = format!("shard {}", shard.0);
        self.add(ALL_SKUS, what, state, Said::Word("open"));
        if lost {
            return;
        }
        for key in &gate.damaged {
            self.add(
                ALL_SKUS,
                key.clone(),
                Said::Word("damaged"),
                Said::Word("rebuilt"),
            );
        }
        for (sku, want) in facts.skus.iter().filter(|(_, want)| want.shard == shard.0) {
            let row = gate
                .gates
                .iter()
                .find(|(known, _)| known.as_str() == sku)
                .map(|(_, row)| row);
            let said = |of: fn(&reservations::GateRow) -> i64| {
                row.map_or(Said::Nothing, |row| Said::Units(of(row)))
            };
            self.add(
                sku,
                "limit".to_owned(),
                said(|row| row.limit),
                Said::Units(want.limit),
            );
            self.add(
                sku,
                "held".to_owned(),
                said(|row| row.held),
                Said::Units(want.held),
            );
        }
        self.compare_holds(shard, facts, gate);
        self.compare_buyers(shard, facts, gate);
    }

    fn compare_holds(&mut self, shard: Shard, facts: &GateFacts, gate: &GateSnapshot) {
        let here = |sku: &str| facts.skus.get(sku).is_some_and(|s| s.shard == shard.0);
        let mut at_gate: BTreeMap<(uuid::Uuid, String), i64> = BTreeMap::new();
        for (id, stored) in &gate.holds {
            for line in &stored.hold.lines {
                let units = i64::from(line.quantity.get());
                at_gate.insert((id.0, line.sku.to_string()), units);
            }
            if !gate.due.contains_key(id) {
                let what = format!("due {id}");
                self.add(ALL_SKUS, what, Said::Nothing, Said::Word("asked about"));
            }
        }
        let mut wanted: BTreeMap<(uuid::Uuid, String), i64> = BTreeMap::new();
        for (id, lines) in &facts.holds {
            for (sku, units) in lines.iter().filter(|(sku, _)| here(sku)) {
                wanted.insert((*id, sku.clone()), *units);
            }
        }
        self.add_units("hold", &at_gate, &wanted, |(id, sku)| {
            (sku.clone(), id.to_string())
        });
    }

    fn compare_buyers(&mut self, shard: Shard, facts: &GateFacts, gate: &GateSnapshot) {
        let here = |sku: &str| {
            let known = facts.skus.get(sku);
            known.is_some_and(|s| s.shard == shard.0 && s.limited)
        };
        let at_gate: BTreeMap<(String, String), i64> = gate
            .buyers
            .iter()
            .map(|((sku, buyer), units)| ((sku.to_string(), buyer.to_string()), *units))
            .filter(|((sku, _), units)| here(sku) && *units != 0)
            .collect();
        let wanted: BTreeMap<(String, String), i64> = facts
            .buyers
            .iter()
            .filter(|((sku, _), _)| here(sku))
            .map(|(key, units)| (key.clone(), *units))
            .collect();
        self.add_units("buyer", &at_gate, &wanted, Clone::clone);
    }

    /// Whatever is at one place only, or with other units at the other; `split` gives SKU and name.
    fn add_units<K: Ord>(
        &mut self,
        kind: &str,
        at_gate: &BTreeMap<K, i64>,
        wanted: &BTreeMap<K, i64>,
        split: impl Fn(&K) -> (String, String),
    ) {
        let said = |of: &BTreeMap<K, i64>, key: &K| {
            of.get(key)
                .map_or(Said::Nothing, |units| Said::Units(*units))
        };
        for key in at_gate.keys().chain(wanted.keys()) {
            let (sku, name) = split(key);
            let (before, after) = (said(at_gate, key), said(wanted, key));
            self.add(&sku, format!("{kind} {name}"), before, after);
        }
    }
}
