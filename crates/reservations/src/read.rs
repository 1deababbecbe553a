//! Reads the gate, for the drift check, the audit and tests. Read by cursor, so it never holds the
//! server up; what changes meanwhile may be seen before or after. Reading the gate never changes an
//! order.

use std::collections::BTreeMap;

use contracts::{HoldId, Sku};
use domain::gate::{Buyer, Shard};

use crate::{
    EpochState, Gate, GateError, StoredHold,
    error::is_wrong_type,
    keys::KeyKind,
    stored::{parse_buyer, parse_number},
};

/// What the gate knows of a SKU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateRow {
    /// `on_hand - sold` as of `version`.
    pub limit: i64,
    /// `stock.version` of the register that was taken last.
    pub version: i64,
    /// Units of the holds.
    pub held: i64,
    /// Milliseconds since the epoch.
    pub opens_at_ms: Option<i64>,
    /// Milliseconds since the epoch.
    pub closes_at_ms: Option<i64>,
    /// The most units that one buyer may hold and own. Buyers are counted only where there is one.
    pub per_customer_limit: Option<i64>,
}

/// A gate that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateRead {
    /// As the scripts wrote it.
    Row(GateRow),
    /// The SKU has no gate.
    Missing,
    /// Holds what none of the scripts writes: the shard needs a rebuild.
    Damaged,
}

/// Everything that a shard's newest epoch holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GateSnapshot {
    /// The newest epoch; all below is empty without one.
    pub epoch: Option<EpochState>,
    /// Per SKU.
    pub gates: BTreeMap<Sku, GateRow>,
    /// Units held and owned, of the SKUs with a per-customer limit.
    pub buyers: BTreeMap<(Sku, Buyer), i64>,
    /// All holds.
    pub holds: BTreeMap<HoldId, StoredHold>,
    /// When the sweep asks about each hold, in milliseconds of the server's clock.
    pub due: BTreeMap<HoldId, i64>,
    /// Keys of the shard that are none of the newest epoch's, and none that any epoch has.
    pub stray: Vec<String>,
    /// Keys, or `key field`, that hold what none of the scripts writes.
    pub damaged: Vec<String>,
}

const FIELDS: [&str; 6] = [
    "limit",
    "version",
    "held",
    "opens_at",
    "closes_at",
    "per_customer",
];

impl Gate {
    /// What the gate knows of each SKU, in order. All are missing when the shard has no epoch.
    ///
    /// # Errors
    /// [`GateError`]: no answer.
    pub async fn read_gates(&self, shard: Shard, skus: &[Sku]) -> Result<Vec<GateRead>, GateError> {
        let Some(state) = self.current_epoch(shard).await? else {
            return Ok(vec![GateRead::Missing; skus.len()]);
        };
        let mut out = Vec::with_capacity(skus.len());
        for some in skus.chunks(500) {
            let mut pipeline = redis::pipe();
            for sku in some {
                let key = self.inner.keys.gate(shard, &state.epoch, sku);
                pipeline.cmd("HMGET").arg(key).arg(&FIELDS);
            }
            pipeline.ignore_errors();
            let rows: Vec<Result<Vec<Option<String>>, redis::RedisError>> =
                self.inner.link.query_all("read_gates", &pipeline).await?;
            for row in rows {
                out.push(match row {
                    Ok(fields) => parse_gate(&fields),
                    Err(error) if is_wrong_type(&error) => GateRead::Damaged,
                    Err(source) => {
                        return Err(GateError::Call {
                            verb: "read_gates",
                            source,
                        });
                    }
                });
            }
        }
        Ok(out)
    }

    /// The counted units of each buyer of a SKU; what can't be read is left out and logged.
    ///
    /// # Errors
    /// [`GateError`]: no answer, or a key of a wrong type.
    pub async fn read_buyers(
        &self,
        shard: Shard,
        sku: &Sku,
    ) -> Result<BTreeMap<Buyer, i64>, GateError> {
        let Some(state) = self.current_epoch(shard).await? else {
            return Ok(BTreeMap::new());
        };
        let key = self.inner.keys.buyers(shard, &state.epoch, sku);
        let mut out = BTreeMap::new();
        for (buyer, units) in self.walk("HSCAN", &key).await? {
            match (parse_buyer(&buyer), parse_number(&units)) {
                (Some(buyer), Some(units)) => {
                    out.insert(buyer, units);
                }
                _ => tracing::warn!(sku = sku.as_str(), "buyers of a sku are damaged"),
            }
        }
        Ok(out)
    }

    /// Everything that the shard's newest epoch holds, and every key of the shard that it should
    /// not have.
    ///
    /// # Errors
    /// [`GateError`]: no answer. A damaged key is no error but reported.
    pub async fn snapshot(&self, shard: Shard) -> Result<GateSnapshot, GateError> {
        let epoch = self.current_epoch(shard).await?;
        let newest = epoch.as_ref().map(|state| state.epoch.clone());
        let mut snapshot = GateSnapshot {
            epoch,
            ..GateSnapshot::default()
        };
        let mut skus = Vec::new();
        for key in self.scan(&self.inner.keys.all(shard)).await? {
            let kind = self.inner.keys.read(shard, &key);
            if kind != KeyKind::Meta && (newest.is_none() || kind.epoch() != newest.as_deref()) {
                snapshot.stray.push(key);
                continue;
            }
            match kind {
                KeyKind::Meta => {}
                KeyKind::Stray => snapshot.stray.push(key),
                KeyKind::Gate { sku, .. } => match Sku::parse(sku) {
                    Ok(sku) => skus.push(sku),
                    Err(_) => snapshot.stray.push(key),
                },
                KeyKind::Holds { .. } | KeyKind::Due { .. } | KeyKind::Buyers { .. } => {
                    self.read_collection(shard, &key, &mut snapshot).await?;
                }
            }
        }
        let rows = self.read_gates(shard, &skus).await?;
        for (sku, row) in skus.into_iter().zip(rows) {
            match row {
                GateRead::Row(row) => {
                    snapshot.gates.insert(sku, row);
                }
                GateRead::Missing => {}
                GateRead::Damaged => snapshot.damaged.push(format!("gate {sku}")),
            }
        }
        Ok(snapshot)
    }

    async fn read_collection(
        &self,
        shard: Shard,
        key: &str,
        snapshot: &mut GateSnapshot,
    ) -> Result<(), GateError> {
        let kind = self.inner.keys.read(shard, key);
        let verb = if matches!(kind, KeyKind::Due { .. }) {
            "ZSCAN"
        } else {
            "HSCAN"
        };
        let entries = match self.walk(verb, key).await {
            Ok(entries) => entries,
            Err(GateError::Call { source, .. }) if is_wrong_type(&source) => {
                snapshot.damaged.push(key.to_owned());
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        for (field, value) in entries {
            let taken = match &kind {
                KeyKind::Holds { .. } => take_hold(&field, &value, snapshot),
                KeyKind::Due { .. } => take_due(&field, &value, snapshot),
                KeyKind::Buyers { sku, .. } => take_buyer(sku, &field, &value, snapshot),
                KeyKind::Gate { .. } | KeyKind::Meta | KeyKind::Stray => None,
            };
            if taken.is_none() {
                snapshot.damaged.push(format!("{key} {field}"));
            }
        }
        Ok(())
    }

    /// All pairs of a hash or sorted set, read by cursor.
    async fn walk(
        &self,
        verb: &'static str,
        key: &str,
    ) -> Result<BTreeMap<String, String>, GateError> {
        let mut entries = BTreeMap::new();
        let mut cursor = 0_u64;
        loop {
            let mut scan = redis::cmd(verb);
            scan.arg(key).arg(cursor).arg("COUNT").arg(1_000);
            let (next, page): (u64, Vec<(String, String)>) =
                self.inner.link.query("snapshot", &scan).await?;
            entries.extend(page);
            cursor = next;
            if cursor == 0 {
                return Ok(entries);
            }
        }
    }
}

fn take_hold(field: &str, value: &str, snapshot: &mut GateSnapshot) -> Option<()> {
    let hold_id: HoldId = field.parse().ok()?;
    snapshot
        .holds
        .insert(hold_id, StoredHold::parse(hold_id, value)?);
    Some(())
}

fn take_due(field: &str, value: &str, snapshot: &mut GateSnapshot) -> Option<()> {
    snapshot
        .due
        .insert(field.parse().ok()?, parse_number(value)?);
    Some(())
}

fn take_buyer(sku: &str, field: &str, value: &str, snapshot: &mut GateSnapshot) -> Option<()> {
    let buyer = (Sku::parse(sku).ok()?, parse_buyer(field)?);
    snapshot.buyers.insert(buyer, parse_number(value)?);
    Some(())
}

/// The scripts judge a gate the same way.
fn parse_gate(fields: &[Option<String>]) -> GateRead {
    if fields.iter().all(Option::is_none) {
        return GateRead::Missing;
    }
    let number = |n: usize| fields.get(n)?.as_deref().and_then(parse_number);
    let optional = |n: usize| match fields.get(n)?.as_deref()? {
        "-" => Some(None),
        text => parse_number(text).map(Some),
    };
    let row = || {
        Some(GateRow {
            limit: number(0)?,
            version: number(1)?,
            held: number(2)?,
            opens_at_ms: optional(3)?,
            closes_at_ms: optional(4)?,
            per_customer_limit: optional(5)?,
        })
    };
    row().map_or(GateRead::Damaged, GateRead::Row)
}
