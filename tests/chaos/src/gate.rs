//! Whether the gate is exact while orders keep coming: what differs from PostgreSQL in two readings
//! half a second apart is a difference, what differs once is on its way.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use domain::Shard;
use reservations::{Gate, GateConfig};
use store::{Store, StoreOptions, verify::facts};

use crate::faults::Site;

const APART: Duration = Duration::from_millis(500);

/// One reading.
#[derive(Debug, Default)]
struct Differences {
    open: bool,
    holds: BTreeSet<uuid::Uuid>,
    limits: BTreeMap<String, (i64, i64)>,
}

/// Whether nothing differs for longer than it is on its way.
///
/// # Errors
/// A server can't be reached.
pub async fn agrees(site: &Site) -> anyhow::Result<bool> {
    let options = StoreOptions::background(&site.plant.database_url, "chaos gate");
    let store = Store::connect(&options)?;
    let gate = Gate::new(GateConfig::new(site.plant.redis_url.clone()))?;
    let first = read(&store, &gate).await?;
    let exact = if first.open {
        tokio::time::sleep(APART).await;
        let second = read(&store, &gate).await?;
        second.open
            && first.holds.is_disjoint(&second.holds)
            && !first
                .limits
                .iter()
                .any(|(sku, sides)| second.limits.get(sku) == Some(sides))
    } else {
        false
    };
    store.close().await;
    Ok(exact)
}

async fn read(store: &Store, gate: &Gate) -> anyhow::Result<Differences> {
    let wanted = facts::gate(store).await?;
    let found = gate.snapshot(Shard(0)).await?;
    let at_gate: BTreeSet<uuid::Uuid> = found.holds.keys().map(|hold| hold.0).collect();
    let reserved: BTreeSet<uuid::Uuid> = wanted.holds.keys().copied().collect();
    let limits = wanted.skus.iter().filter_map(|(sku, want)| {
        let row = found.gates.iter().find(|(known, _)| known.as_str() == sku);
        let limit = row.map_or(-1, |(_, row)| row.limit);
        (limit != want.limit).then(|| (sku.clone(), (limit, want.limit)))
    });
    Ok(Differences {
        open: found.epoch.as_ref().is_some_and(|epoch| epoch.open),
        holds: at_gate.symmetric_difference(&reserved).copied().collect(),
        limits: limits.collect(),
    })
}
