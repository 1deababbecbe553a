//! The gate is compared with PostgreSQL and repaired with the same calls as always: there is no
//! separate repair path (P10). Drift of a SKU is gone within 8 s.
//!
//! Every second, per shard:
//! 1. Registers and `held` of all SKUs against the gate's. What two sightings in a row show is
//!    cured ([`crate::drift`]): the register is put again, or holds are compared.
//! 2. Holds one by one against live orders, and buyers against `buyer_units` (`compare.rs`): when
//!    step 1 asks for it, when the sweep met damage, when the server turns out to be another one (it
//!    may have lost writes), after a rebuild, once a minute, and every 15 s while a SKU sells so fast
//!    that step 1 sees another difference each time. Suspects are followed up at the next looks; what
//!    two or three comparisons in a row show is cured: holds by `sync`, buyers by `correct_buyers`. A
//!    hold without an order is left to the due sweep for 6 s: its accept may be under way.
//! 3. What no call can cure (damaged keys, a counter that is not the sum of its holds) gets a new
//!    epoch.
//!
//! *Dies anywhere:* the sightings are forgotten and made again; each cure may be repeated.

mod compare;
mod sums;

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use contracts::{HoldId, Sku};
use domain::{Buyer, Shard};
use store::skus::SkuRow;

use self::compare::Suspect;
use crate::{
    Stock, StockError,
    drift::{Cure, Sighting, judge},
    rebuild_gate::rebuild,
    sync_gate::sync_skus,
};

/// Holds are compared at least this often: it reads all that are open.
const COMPARE_EVERY: Duration = Duration::from_secs(60);

/// The same while step 1 can't tell: drift of a hot SKU hides behind what is on its way.
const COMPARE_MOVING_EVERY: Duration = Duration::from_secs(15);

/// Offenders that an alarm names.
const NAMED: usize = 5;

const PAGE: i64 = 1_000;

/// What was repaired in one look at a shard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Registers that were put again.
    pub registers: usize,
    /// Holds that were kept, committed or released.
    pub holds: usize,
    /// Buyers whose units were corrected.
    pub buyers: usize,
    /// Whether the shard got a new epoch.
    pub rebuilt: bool,
}

/// What the last looks at the gate saw that was there at the look before as well, for the audit;
/// each as `ID: both sides`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GateReport {
    /// Gates that hold more than their limit (I10).
    pub bounds: Vec<String>,
    /// Gates whose limit or held units are not the stock's (I19).
    pub units: Vec<String>,
    /// Gates that are not the sum of their holds, and holds that are not those of live orders (I20).
    pub holds: Vec<String>,
}

/// Remembers the last sightings.
#[derive(Debug)]
pub struct RepairDrift {
    stock: Stock,
    seen: Mutex<BTreeMap<Shard, Seen>>,
    reports: Mutex<BTreeMap<Shard, GateReport>>,
    doubted: AtomicBool,
    looks: AtomicU64,
}

#[derive(Debug, Default)]
struct Seen {
    gates: BTreeMap<Sku, Sighting>,
    server_changes: u64,
    epoch: Option<String>,
    compared: Option<Instant>,
    suspects: BTreeMap<HoldId, Suspect>,
    buyers: BTreeMap<(Sku, Buyer), (i64, i64)>,
    sums: BTreeMap<Sku, (i64, u32)>,
    closed: bool,
    report: GateReport,
}

impl Seen {
    fn is_suspicious(&self) -> bool {
        !(self.suspects.is_empty() && self.buyers.is_empty() && self.sums.is_empty())
    }
}

/// Why holds and buyers are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compare {
    /// There is a cause: whatever differs is suspected.
    Anew,
    /// There were suspects.
    FollowUp,
}

impl RepairDrift {
    /// A check that has seen nothing yet.
    #[must_use]
    pub fn new(stock: Stock) -> Self {
        Self {
            stock,
            seen: Mutex::default(),
            reports: Mutex::default(),
            doubted: AtomicBool::new(false),
            looks: AtomicU64::new(0),
        }
    }

    /// Somebody met what none of the scripts writes: the next look compares everything.
    pub fn doubt(&self) {
        self.doubted.store(true, Ordering::Relaxed);
    }

    /// What is wrong with the gate by the last look, and how often all shards were looked at.
    #[must_use]
    pub fn report(&self) -> (u64, GateReport) {
        let looks = self.looks.load(Ordering::Relaxed);
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = GateReport::default();
        for report in reports.values() {
            all.bounds.extend(report.bounds.iter().cloned());
            all.units.extend(report.units.iter().cloned());
            all.holds.extend(report.holds.iter().cloned());
        }
        (looks, all)
    }

    /// Looks at all shards. What was seen at the last look and still is, is repaired: call it every
    /// 2 s.
    ///
    /// # Errors
    /// A store is away; sightings of the shard are forgotten.
    pub async fn look(&self) -> Result<Repaired, StockError> {
        let mut total = Repaired::default();
        let doubted = self.doubted.swap(false, Ordering::Relaxed);
        for shard in store::sweep::shards(&self.stock.store).await? {
            let mut seen = self.lock().remove(&shard).unwrap_or_default();
            if doubted {
                seen.compared = None;
            }
            let repaired = self.look_at(shard, &mut seen).await?;
            let report = std::mem::take(&mut seen.report);
            self.lock().insert(shard, seen);
            self.reports
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(shard, report);
            total.registers += repaired.registers;
            total.holds += repaired.holds;
            total.buyers += repaired.buyers;
            total.rebuilt |= repaired.rebuilt;
        }
        self.looks.fetch_add(1, Ordering::Relaxed);
        Ok(total)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Shard, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn look_at(&self, shard: Shard, seen: &mut Seen) -> Result<Repaired, StockError> {
        let mut repaired = Repaired::default();
        let Some(epoch) = self
            .stock
            .gate
            .current_epoch(shard)
            .await?
            .filter(|state| state.open)
        else {
            let closed = seen.closed;
            *seen = Seen::default();
            seen.closed = true;
            if closed {
                let nothing = format!("shard {}: no open gate", shard.0);
                seen.report.units.push(nothing);
            }
            return Ok(repaired);
        };
        seen.closed = false;
        let changes = self.stock.gate.server().borrow().changes;
        let moved =
            seen.epoch.as_deref() != Some(epoch.epoch.as_str()) || seen.server_changes != changes;
        seen.epoch = Some(epoch.epoch.clone());
        seen.server_changes = changes;

        let (cures, moving) = self.see_gates(shard, seen).await?;
        let every = if moving {
            COMPARE_MOVING_EVERY
        } else {
            COMPARE_EVERY
        };
        let due = seen.compared.is_none_or(|at| at.elapsed() >= every);
        let mut why = if moved || due {
            Some(Compare::Anew)
        } else {
            seen.is_suspicious().then_some(Compare::FollowUp)
        };
        let mut lost = None;
        let mut late = Vec::new();
        for (sku, cure) in cures {
            match cure {
                Cure::PutRegister => late.push(sku),
                Cure::CompareHolds => why = Some(Compare::Anew),
                Cure::Rebuild(why) => lost = Some(why),
            }
        }
        if !late.is_empty() {
            sync_skus(&self.stock, &late).await?;
            repaired.registers = late.len();
            note(shard, "register", late.len());
        }
        if let (Some(why), None) = (why, lost) {
            lost = self.compare(shard, seen, why, &mut repaired).await?;
        }
        if let Some(why) = lost {
            alarm(shard, why, &seen.report);
            rebuild(&self.stock, shard, Some(&epoch.epoch)).await?;
            note(shard, "epoch", 1);
            repaired.rebuilt = true;
            // The new epoch is judged by the next looks.
            *seen = Seen::default();
        }
        Ok(repaired)
    }

    /// Step 1: sees all SKUs of a shard and judges them against the last sighting; and whether one
    /// differs by other units than then, so that this step can't tell what is wrong with it.
    async fn see_gates(
        &self,
        shard: Shard,
        seen: &mut Seen,
    ) -> Result<(Vec<(Sku, Cure)>, bool), StockError> {
        let mut now = BTreeMap::new();
        let mut after: Option<Sku> = None;
        loop {
            let page =
                store::skus::page(&self.stock.store, Some(shard), after.as_ref(), PAGE).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.sku.clone());
            let skus: Vec<Sku> = page.iter().map(|row| row.sku.clone()).collect();
            let gates = self.stock.gate.read_gates(shard, &skus).await?;
            now.extend(page.iter().zip(gates).map(|(row, gate)| {
                let sighting = Sighting {
                    register: SkuRow::register(row),
                    held: row.held,
                    gate,
                };
                (row.sku.clone(), sighting)
            }));
        }
        let mut cures = Vec::new();
        let mut moving = false;
        for (sku, sighting) in &now {
            let Some(before) = seen.gates.get(sku) else {
                continue;
            };
            moving |= before.is_moving(sighting);
            if let Some(bounds) = sighting
                .beyond_limit()
                .filter(|_| before.beyond_limit().is_some())
            {
                seen.report.bounds.push(format!("{sku}: {bounds}"));
            }
            if let Some(cure) = judge(before, sighting) {
                // Of a SKU that sells, the difference may be the same by chance.
                if cure != Cure::CompareHolds || before.held == sighting.held {
                    seen.report
                        .units
                        .push(format!("{sku}: {}", sighting.both_sides()));
                }
                cures.push((sku.clone(), cure));
            }
        }
        seen.gates = now;
        Ok((cures, moving))
    }
}

fn alarm(shard: Shard, why: &'static str, report: &GateReport) {
    let offenders: Vec<&str> = report
        .units
        .iter()
        .chain(&report.holds)
        .map(String::as_str)
        .take(NAMED)
        .collect();
    metrics::counter!("alarms_total", "kind" => "gate-damaged").increment(1);
    tracing::error!(
        shard = shard.0,
        why,
        offenders = offenders.join("; "),
        "the gate of a shard can't be repaired and is rebuilt"
    );
}

fn note(shard: Shard, what: &'static str, count: usize) {
    metrics::counter!("drift_repairs_total", "what" => what)
        .increment(u64::try_from(count).unwrap_or(u64::MAX));
    tracing::warn!(
        shard = shard.0,
        what,
        count,
        "drift of the gate was repaired"
    );
}
