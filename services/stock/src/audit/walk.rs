//! The walk along all orders, keys and buyers, in slices: orders of the last minutes first, then the
//! rest, round and round. A slice that is not clean is looked at again before it counts, and after
//! that until it is.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use contracts::Timestamp;
use store::audit::{Auditor, BuyerKey, Finding};
use uuid::Uuid;

use crate::StockError;

/// Orders of one slice.
const ORDERS: i64 = 2_000;

/// Keys or buyers of one slice.
const ROWS: i64 = 1_000;

/// Orders younger than this have not settled yet; the walk comes to them afterwards.
const YOUNG: Duration = Duration::from_secs(30);

/// How far back a new auditor begins with the young orders.
const FRESH: Duration = Duration::from_secs(600);

/// A slice that is not clean is looked at again this much later.
const AGAIN: Duration = Duration::from_secs(2);

/// Slices that are looked at again in one step.
const AGAIN_AT_ONCE: usize = 4;

/// No id is greater.
const LAST: Uuid = Uuid::max();

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Orders,
    Keys,
    Buyers,
}

#[derive(Debug)]
struct Unclean {
    last: Uuid,
    again: Instant,
    /// What it held at the second look and every one since.
    found: Vec<Finding>,
}

/// Where the walk is.
#[derive(Debug)]
pub(crate) struct Walk {
    next: Next,
    fresh: Option<Uuid>,
    old: Uuid,
    keys: Uuid,
    buyers: BuyerKey,
    unclean: BTreeMap<Uuid, Unclean>,
    /// Complaints of the walks along keys and buyers, by where the slice began.
    keys_found: BTreeMap<Uuid, Vec<Finding>>,
    buyers_found: BTreeMap<BuyerKey, Vec<Finding>>,
    rounds: u64,
}

impl Default for Walk {
    fn default() -> Self {
        Self {
            next: Next::Orders,
            fresh: None,
            old: Uuid::nil(),
            keys: Uuid::nil(),
            buyers: BuyerKey::default(),
            unclean: BTreeMap::new(),
            keys_found: BTreeMap::new(),
            buyers_found: BTreeMap::new(),
            rounds: 0,
        }
    }
}

impl Walk {
    /// One slice; then what all slices hold by now.
    pub(crate) async fn step(
        &mut self,
        auditor: &Auditor,
        now: Timestamp,
    ) -> Result<BTreeMap<&'static str, Vec<String>>, StockError> {
        self.look_again(auditor).await?;
        if !self.step_fresh(auditor, now).await? {
            match self.next {
                Next::Orders => self.step_orders(auditor).await?,
                Next::Keys => self.step_keys(auditor).await?,
                Next::Buyers => self.step_buyers(auditor).await?,
            }
        }
        Ok(self.found())
    }

    /// How often everything has been walked.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds
    }

    async fn look_again(&mut self, auditor: &Auditor) -> Result<(), StockError> {
        let now = platform::clock::monotonic();
        let due: Vec<(Uuid, Uuid)> = self
            .unclean
            .iter()
            .filter(|(_, slice)| slice.again <= now)
            .take(AGAIN_AT_ONCE)
            .map(|(after, slice)| (*after, slice.last))
            .collect();
        for (after, last) in due {
            let found = auditor.orders_between(after, last).await?;
            if is_clean(&found) {
                self.unclean.remove(&after);
            } else {
                let again = platform::clock::monotonic() + AGAIN;
                self.unclean.insert(after, Unclean { last, again, found });
            }
        }
        Ok(())
    }

    /// Orders that have become old enough since the last step; whether there were any.
    async fn step_fresh(&mut self, auditor: &Auditor, now: Timestamp) -> Result<bool, StockError> {
        let until = id_at(now - YOUNG);
        let after = *self.fresh.get_or_insert_with(|| id_at(now - FRESH));
        if until <= after {
            return Ok(false);
        }
        let slice = auditor.orders_after(after, until, ORDERS).await?;
        let last = slice.last.unwrap_or(until);
        self.note(after, last, &slice.findings);
        self.fresh = Some(last);
        Ok(slice.last.is_some())
    }

    async fn step_orders(&mut self, auditor: &Auditor) -> Result<(), StockError> {
        let after = self.old;
        let slice = auditor.orders_after(after, LAST, ORDERS).await?;
        self.note(after, slice.last.unwrap_or(LAST), &slice.findings);
        self.old = slice.last.unwrap_or_else(|| {
            self.next = Next::Keys;
            Uuid::nil()
        });
        Ok(())
    }

    async fn step_keys(&mut self, auditor: &Auditor) -> Result<(), StockError> {
        let slice = auditor.keys_after(self.keys, ROWS).await?;
        self.keys_found.remove(&self.keys);
        if !is_clean(&slice.findings) {
            self.keys_found.insert(self.keys, slice.findings);
        }
        self.keys = slice.last.unwrap_or_else(|| {
            self.next = Next::Buyers;
            Uuid::nil()
        });
        Ok(())
    }

    async fn step_buyers(&mut self, auditor: &Auditor) -> Result<(), StockError> {
        let slice = auditor.buyers_after(&self.buyers, ROWS).await?;
        self.buyers_found.remove(&self.buyers);
        if !is_clean(&slice.findings) {
            self.buyers_found
                .insert(self.buyers.clone(), slice.findings);
        }
        self.buyers = slice.last.unwrap_or_else(|| {
            self.next = Next::Orders;
            self.rounds += 1;
            BuyerKey::default()
        });
        Ok(())
    }

    fn note(&mut self, after: Uuid, last: Uuid, found: &[Finding]) {
        if is_clean(found) || self.unclean.contains_key(&after) {
            return;
        }
        let again = platform::clock::monotonic() + AGAIN;
        let found = Vec::new();
        self.unclean.insert(after, Unclean { last, again, found });
    }

    /// Offenders by invariant; clean ones too, so that their gauges are there.
    fn found(&self) -> BTreeMap<&'static str, Vec<String>> {
        let mut all: BTreeMap<&'static str, Vec<String>> =
            ["I2", "I4", "I5", "I6", "I7", "I8", "I9", "I15", "I26"]
                .into_iter()
                .map(|id| (id, Vec::new()))
                .collect();
        let slices = self.unclean.values().map(|slice| &slice.found);
        for finding in slices
            .chain(self.keys_found.values())
            .chain(self.buyers_found.values())
            .flatten()
        {
            let offenders = all.entry(finding.id).or_default();
            // Slices of two walks may overlap.
            for one in &finding.offenders {
                if !offenders.contains(one) {
                    offenders.push(one.clone());
                }
            }
        }
        all
    }
}

fn is_clean(found: &[Finding]) -> bool {
    found.iter().all(|finding| finding.count == 0)
}

/// The smallest id of version 7 of a moment.
pub(crate) fn id_at(at: Timestamp) -> Uuid {
    let millis = u128::try_from(at.timestamp_millis().max(0)).unwrap_or(0);
    Uuid::from_u128(millis << 80)
}
