//! Step 2 of the repair: holds one by one against live orders, and buyers against `buyer_units`.
//! Guarantee: only what differs in the same way in several comparisons in a row is cured; a hold
//! without an order is left to the due sweep first; and what no cure can mend is named.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use contracts::{HoldId, Sku};
use domain::{Buyer, Hold, HoldState, HoldView, Shard};
use reservations::{BuyerUnits, GateSnapshot};

use super::{Compare, PAGE, RepairDrift, Repaired, Seen, note, sums::wrong_sums};
use crate::{StockError, rebuild_gate::drop_old_epochs, sweep_holds::ask, sync_gate::sync_views};

/// How long a hold without an order may be there before the due sweep must have seen it.
const ORPHAN_AFTER: Duration = Duration::from_secs(6);

/// In what a hold differs. PostgreSQL is read before the gate, and neither stands still: a hold may
/// be too new for the first reading of one look, and have ended before the second of the next. So
/// only the same difference counts as seen again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Difference {
    /// Its order lives, and the gate has it not, or otherwise.
    Missing,
    /// The gate has it, and no order lives that it could be of.
    Surplus,
    /// Both have it, and no list of the sweep.
    Undue,
}

impl Difference {
    /// For people.
    fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "not at the gate as in its order",
            Self::Surplus => "at the gate, and no order lives that it is of",
            Self::Undue => "at the gate, and nobody will ask about it",
        }
    }

    /// How many looks in a row must show it before it is none of the moment.
    fn looks(self) -> u32 {
        match self {
            Self::Missing | Self::Undue => 2,
            // At the first its order is not there yet, at the second it has ended and the gate is
            // being told.
            Self::Surplus => 3,
        }
    }
}

/// A hold that differs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Suspect {
    how: Difference,
    since: Instant,
    looks: u32,
}

impl RepairDrift {
    /// Step 2: compares holds and buyers; why the shard needs a new epoch, if it does. Without a
    /// cause of its own it follows up what was suspected before, and suspects nothing new: in a sale
    /// there is always something on its way, and it would never end.
    pub(super) async fn compare(
        &self,
        shard: Shard,
        seen: &mut Seen,
        why: Compare,
        repaired: &mut Repaired,
    ) -> Result<Option<&'static str>, StockError> {
        let live = self.live_holds(shard).await?;
        let before = self.counters(shard, seen).await?;
        let snapshot = self.stock.gate.snapshot(shard).await?;
        if why == Compare::Anew {
            seen.compared = Some(platform::clock::monotonic());
        }
        if !snapshot.damaged.is_empty() {
            let damaged = snapshot.damaged.iter().map(|key| format!("{key}: damaged"));
            seen.report.holds.extend(damaged);
            return Ok(Some("damaged"));
        }
        if !snapshot.stray.is_empty() {
            drop_old_epochs(&self.stock, shard).await?;
        }
        let wrong = wrong_sums(&before, &snapshot, &mut seen.sums, why);
        for (sku, (by, _)) in seen.sums.iter().filter(|(_, (_, times))| *times > 1) {
            let sums = format!("{sku}: held is {by} more than its holds");
            seen.report.holds.push(sums);
        }
        if wrong {
            return Ok(Some("held is not the sum of its holds"));
        }
        let differing = differing(&live, &snapshot);
        repaired.holds = self.repair_holds(shard, differing, seen, why).await?;
        repaired.buyers = self.repair_buyers(shard, &snapshot, seen, why).await?;
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
        differing: BTreeMap<HoldId, (Difference, Hold)>,
        seen: &mut Seen,
        why: Compare,
    ) -> Result<usize, StockError> {
        let now = platform::clock::monotonic();
        seen.suspects = suspects(&seen.suspects, &differing, why, now);
        let wrong: BTreeMap<HoldId, Hold> = differing
            .into_iter()
            .filter(|(id, _)| {
                seen.suspects
                    .get(id)
                    .is_some_and(|s| s.looks >= s.how.looks())
            })
            .map(|(id, (_, hold))| (id, hold))
            .collect();
        if wrong.is_empty() {
            return Ok(0);
        }
        let (views, _) = ask(&self.stock, shard, wrong).await?;
        let views: Vec<HoldView> = views
            .into_iter()
            .filter(|view| {
                let orphan = view.state == HoldState::Released
                    && seen
                        .suspects
                        .get(&view.hold.hold_id)
                        .is_some_and(|suspect| {
                            suspect.how == Difference::Surplus
                                && now.saturating_duration_since(suspect.since) < ORPHAN_AFTER
                        });
                !orphan
            })
            .collect();
        let count = views.len();
        if count > 0 {
            seen.report.holds.extend(views.iter().map(|view| {
                let id = view.hold.hold_id;
                let how = seen.suspects.get(&id).map_or("", |it| it.how.as_str());
                format!("hold {id}: {how}")
            }));
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
        why: Compare,
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
        wrong.retain(|key, units| {
            units.0 != units.1 && (why == Compare::Anew || seen.buyers.get(key) == Some(units))
        });
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
fn differing(
    live: &BTreeMap<HoldId, Hold>,
    snapshot: &GateSnapshot,
) -> BTreeMap<HoldId, (Difference, Hold)> {
    let mut differing = BTreeMap::new();
    for (id, hold) in live {
        let stored = snapshot.holds.get(id);
        if stored.is_none_or(|stored| stored.hold != *hold) {
            differing.insert(*id, (Difference::Missing, hold.clone()));
        }
    }
    for (id, stored) in &snapshot.holds {
        let how = match (live.contains_key(id), snapshot.due.contains_key(id)) {
            (true, true) => continue,
            (true, false) => Difference::Undue,
            (false, _) => Difference::Surplus,
        };
        differing
            .entry(*id)
            .or_insert_with(|| (how, stored.hold.clone()));
    }
    differing
}

/// Who is suspected after a look.
fn suspects(
    before: &BTreeMap<HoldId, Suspect>,
    differing: &BTreeMap<HoldId, (Difference, Hold)>,
    why: Compare,
    now: Instant,
) -> BTreeMap<HoldId, Suspect> {
    let of = |(id, (how, _)): (&HoldId, &(Difference, Hold))| {
        let again = before.get(id).filter(|suspect| suspect.how == *how);
        let suspect = match (again, why) {
            (Some(suspect), _) => Suspect {
                looks: suspect.looks + 1,
                ..*suspect
            },
            (None, Compare::Anew) => Suspect {
                how: *how,
                since: now,
                looks: 1,
            },
            (None, Compare::FollowUp) => return None,
        };
        Some((*id, suspect))
    };
    differing.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use contracts::{CustomerId, Line, Quantity};

    use super::*;

    fn differing(how: Difference) -> BTreeMap<HoldId, (Difference, Hold)> {
        let hold = Hold {
            hold_id: HoldId::derive("s", "r", "k"),
            buyer: Buyer {
                shop: contracts::Shop::parse("s").unwrap(),
                customer: CustomerId::parse("c").unwrap(),
            },
            lines: vec![Line {
                sku: Sku::parse("A").unwrap(),
                quantity: Quantity::new(1).unwrap(),
            }],
        };
        BTreeMap::from([(hold.hold_id, (how, hold))])
    }

    /// How many looks in a row the last of these differences was seen in.
    fn looks(seen: &[(Difference, Compare)]) -> u32 {
        let now = platform::clock::monotonic();
        let mut before = BTreeMap::new();
        for (how, why) in seen {
            before = suspects(&before, &differing(*how), *why, now);
        }
        before.values().map(|suspect| suspect.looks).sum()
    }

    #[test]
    fn another_difference_is_not_the_same_one_again() {
        use Compare::Anew;
        use Difference::{Missing, Surplus, Undue};
        // Too new for PostgreSQL's reading at the first look, ended before the gate's at the second.
        assert_eq!(looks(&[(Surplus, Anew), (Missing, Anew)]), 1);
        assert_eq!(looks(&[(Undue, Anew), (Surplus, Anew)]), 1);
        assert_eq!(looks(&[(Missing, Anew), (Missing, Anew)]), Missing.looks());
        let thrice = [(Surplus, Anew), (Surplus, Anew), (Surplus, Anew)];
        assert_eq!(looks(&thrice), Surplus.looks());
    }

    #[test]
    fn a_follow_up_suspects_nobody_new() {
        use Compare::{Anew, FollowUp};
        use Difference::{Missing, Surplus};
        assert_eq!(looks(&[(Missing, FollowUp)]), 0);
        assert_eq!(looks(&[(Surplus, Anew), (Missing, FollowUp)]), 0);
        assert_eq!(looks(&[(Missing, Anew), (Missing, FollowUp)]), 2);
    }
}
