//! Step 2 of the repair: holds one by one against live orders, and buyers against `buyer_units`.
//! Guarantee: only what two comparisons in a row show is cured; a hold without an order is left to
//! the due sweep first; and what no cure can mend is named.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use contracts::{HoldId, Sku};
use domain::{Buyer, Hold, HoldState, HoldView, Shard};
use reservations::{BuyerUnits, GateSnapshot};

use super::{PAGE, RepairDrift, Repaired, Seen, note};
use crate::{StockError, rebuild_gate::drop_old_epochs, sweep_holds::ask, sync_gate::sync_views};

/// How long a hold without an order may be there before the due sweep must have seen it.
const ORPHAN_AFTER: Duration = Duration::from_secs(6);

/// How often in a row a counter must differ from its holds by the same amount.
const WRONG_SUMS: u32 = 3;

impl RepairDrift {
    /// Step 2: compares holds and buyers; why the shard needs a new epoch, if it does.
    pub(super) async fn compare(
        &self,
        shard: Shard,
        seen: &mut Seen,
        repaired: &mut Repaired,
    ) -> Result<Option<&'static str>, StockError> {
        let live = self.live_holds(shard).await?;
        let snapshot = self.stock.gate.snapshot(shard).await?;
        seen.compared = Some(platform::clock::monotonic());
        if !snapshot.damaged.is_empty() {
            let damaged = snapshot.damaged.iter().map(|key| format!("{key}: damaged"));
            seen.report.holds.extend(damaged);
            return Ok(Some("damaged"));
        }
        if !snapshot.stray.is_empty() {
            drop_old_epochs(&self.stock, shard).await?;
        }
        let wrong = wrong_sums(&snapshot, &mut seen.sums);
        for (sku, (by, _)) in seen.sums.iter().filter(|(_, (_, times))| *times > 1) {
            let sums = format!("{sku}: held is {by} more than its holds");
            seen.report.holds.push(sums);
        }
        if wrong {
            return Ok(Some("held is not the sum of its holds"));
        }
        repaired.holds = self
            .repair_holds(
                shard,
                &live,
                &snapshot,
                &mut seen.suspects,
                &mut seen.report.holds,
            )
            .await?;
        repaired.buyers = self.repair_buyers(shard, &snapshot, seen).await?;
        Ok(None)
    }

    async fn live_holds(&self, shard: Shard) -> Result<BTreeMap<HoldId, Hold>, StockError> {
        let mut live = BTreeMap::new();
        let mut after = None;
        loop {
            let page = store::holds::live_page(&self.stock.store, shard, after, PAGE).await?;
            live.extend(
                page.holds
                    .into_iter()
                    .map(|view| (view.hold.hold_id, view.hold)),
            );
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(live),
            }
        }
    }

    async fn repair_holds(
        &self,
        shard: Shard,
        live: &BTreeMap<HoldId, Hold>,
        snapshot: &GateSnapshot,
        suspects: &mut BTreeMap<HoldId, Instant>,
        report: &mut Vec<String>,
    ) -> Result<usize, StockError> {
        let now = platform::clock::monotonic();
        let mut fresh = BTreeMap::new();
        let mut twice: BTreeMap<HoldId, Hold> = BTreeMap::new();
        for (id, hold) in differing(live, snapshot) {
            let since = suspects.get(&id).copied();
            if since.is_some() {
                twice.insert(id, hold);
            }
            fresh.insert(id, since.unwrap_or(now));
        }
        *suspects = fresh;
        if twice.is_empty() {
            return Ok(0);
        }
        let (views, _) = ask(&self.stock, shard, twice).await?;
        let views: Vec<HoldView> = views
            .into_iter()
            .filter(|view| {
                let known =
                    live.contains_key(&view.hold.hold_id) || view.state != HoldState::Released;
                let since = suspects.get(&view.hold.hold_id).copied().unwrap_or(now);
                known || now.saturating_duration_since(since) >= ORPHAN_AFTER
            })
            .collect();
        let count = views.len();
        if count > 0 {
            report.extend(
                views
                    .iter()
                    .map(|view| format!("hold {}: not as its order", view.hold.hold_id)),
            );
            sync_views(&self.stock, BTreeMap::from([(shard, views)])).await?;
            note(shard, "hold", count);
        }
        Ok(count)
    }

    async fn repair_buyers(
        &self,
        shard: Shard,
        snapshot: &GateSnapshot,
        seen: &mut Seen,
    ) -> Result<usize, StockError> {
        let limited: BTreeSet<Sku> = seen
            .gates
            .values()
            .filter(|sighting| sighting.register.per_customer_limit.is_some())
            .map(|sighting| sighting.register.sku.clone())
            .collect();
        let mut wrong: BTreeMap<(Sku, Buyer), (i64, i64)> = BTreeMap::new();
        for (key, &units) in &snapshot.buyers {
            if limited.contains(&key.0) {
                wrong.insert(key.clone(), (units, 0));
            }
        }
        for sku in &limited {
            let mut after: Option<Buyer> = None;
            loop {
                let page =
                    store::buyer_units::page(&self.stock.store, sku, after.as_ref(), PAGE).await?;
                let Some((last, _)) = page.last() else { break };
                after = Some(last.clone());
                for (buyer, units) in page {
                    wrong.entry((sku.clone(), buyer)).or_insert((0, 0)).1 = units;
                }
            }
        }
        wrong.retain(|_, (there, right)| there != right);
        let mut by_sku: BTreeMap<&Sku, Vec<BuyerUnits>> = BTreeMap::new();
        for (key, &(there, right)) in &wrong {
            if seen.buyers.get(key) == Some(&(there, right)) {
                let units = BuyerUnits {
                    buyer: key.1.clone(),
                    seen: there,
                    units: right,
                };
                by_sku.entry(&key.0).or_default().push(units);
            }
        }
        let mut count = 0;
        for (sku, units) in by_sku {
            count += units.len();
            self.stock.gate.correct_buyers(shard, sku, &units).await?;
        }
        if count > 0 {
            note(shard, "buyer", count);
        }
        seen.buyers = wrong;
        Ok(count)
    }
}

/// Holds that are at one place only, are others there, or are on no list of the sweep.
fn differing(live: &BTreeMap<HoldId, Hold>, snapshot: &GateSnapshot) -> BTreeMap<HoldId, Hold> {
    let mut differing = BTreeMap::new();
    for (id, hold) in live {
        if snapshot
            .holds
            .get(id)
            .is_none_or(|stored| stored.hold != *hold)
        {
            differing.insert(*id, hold.clone());
        }
    }
    for (id, stored) in &snapshot.holds {
        if !live.contains_key(id) || !snapshot.due.contains_key(id) {
            differing.entry(*id).or_insert_with(|| stored.hold.clone());
        }
    }
    differing
}

/// Whether a counter has differed from the sum of its holds by the same amount for long enough.
fn wrong_sums(snapshot: &GateSnapshot, sums: &mut BTreeMap<Sku, (i64, u32)>) -> bool {
    let mut held: BTreeMap<&Sku, i64> = BTreeMap::new();
    for stored in snapshot.holds.values() {
        for line in &stored.hold.lines {
            *held.entry(&line.sku).or_default() += i64::from(line.quantity.get());
        }
    }
    let mut now = BTreeMap::new();
    for (sku, gate) in &snapshot.gates {
        let by = gate.held - held.get(sku).copied().unwrap_or(0);
        if by != 0 {
            let times = sums
                .get(sku)
                .filter(|(before, _)| *before == by)
                .map_or(0, |(_, n)| *n);
            now.insert(sku.clone(), (by, times + 1));
        }
    }
    *sums = now;
    sums.values().any(|(_, times)| *times >= WRONG_SUMS)
}
