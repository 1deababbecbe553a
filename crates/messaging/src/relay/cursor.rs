//! Where the relay is in the outbox: what it has read, and which ids below that are missing.
//!
//! Ids are taken at the insert and rows appear at the commit, so a row may appear below one that
//! was read already. Each id that is skipped is a *gap*. A gap closes when its row appears, or when
//! a snapshot proves that it never will: its transaction had an xid before it took the id, so it is
//! older than any xid X taken after the gap was seen; once a snapshot's xmin has passed X that
//! transaction has ended, and a row that this snapshot does not see was rolled back (P8).

use std::collections::BTreeMap;

/// More missing ids than this are not listed one by one: reading stops in front of them until they
/// are proved missing.
const GAPS_MAX: usize = 10_000;

/// The position of a relay. Ids are those of the outbox.
#[derive(Debug)]
pub(super) struct Cursor {
    high: i64,
    /// Missing ids below `high`, each with the xid that its closing waits for.
    gaps: BTreeMap<i64, Option<u64>>,
    /// A run of missing ids above `high` that is too long to list.
    wide: Option<Wide>,
}

#[derive(Debug)]
struct Wide {
    /// A row with this id was seen.
    seen: i64,
    fence: Option<u64>,
}

impl Cursor {
    /// Everything up to `low` is done.
    pub(super) fn new(low: i64) -> Self {
        Self {
            high: low,
            gaps: BTreeMap::new(),
            wide: None,
        }
    }

    /// The greatest id that was read.
    pub(super) fn high(&self) -> i64 {
        self.high
    }

    /// The ids to ask for again.
    pub(super) fn gaps(&self) -> Vec<i64> {
        self.gaps.keys().copied().collect()
    }

    /// Everything up to it was read or will never be.
    pub(super) fn floor(&self) -> i64 {
        self.gaps
            .first_key_value()
            .map_or(self.high, |(gap, _)| gap - 1)
    }

    /// Accounts for one read of one snapshot: `ids` as found, rising, with all of [`Cursor::gaps`]
    /// that are there; `xmin` of the snapshot. Returns how many of the rows, from the first, are to
    /// be sent now.
    pub(super) fn take(&mut self, ids: &[i64], xmin: u64) -> usize {
        self.gaps.retain(|gap, fence| {
            let appeared = ids.binary_search(gap).is_ok();
            let never = fence.is_some_and(|fence| xmin > fence);
            !appeared && !never
        });
        for (index, &id) in ids.iter().enumerate() {
            if id > self.high && !self.advance(id, xmin) {
                return index;
            }
        }
        ids.len()
    }

    /// Moves to `id`; `false` when too many ids are missing before it.
    fn advance(&mut self, id: i64, xmin: u64) -> bool {
        let missing = usize::try_from(id - self.high - 1).unwrap_or(usize::MAX);
        if self.gaps.len().saturating_add(missing) <= GAPS_MAX {
            self.gaps.extend((self.high + 1..id).map(|gap| (gap, None)));
        } else {
            match &self.wide {
                Some(wide) if id <= wide.seen => {
                    if wide.fence.is_none_or(|fence| xmin <= fence) {
                        return false;
                    }
                }
                _ => {
                    self.wide = Some(Wide {
                        seen: id,
                        fence: None,
                    });
                    return false;
                }
            }
        }
        self.wide = None;
        self.high = id;
        true
    }

    /// Whether some gap waits for no xid yet.
    pub(super) fn needs_fence(&self) -> bool {
        self.gaps.values().any(Option::is_none)
            || self.wide.as_ref().is_some_and(|wide| wide.fence.is_none())
    }

    /// Gives all gaps without one the xid of a transaction that began after they were seen, and has
    /// ended.
    pub(super) fn fence(&mut self, xid: u64) {
        for fence in self.gaps.values_mut() {
            fence.get_or_insert(xid);
        }
        if let Some(wide) = &mut self.wide {
            wide.fence.get_or_insert(xid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_appears_late_is_taken_and_its_gap_closed() {
        let mut cursor = Cursor::new(10);
        assert_eq!(cursor.take(&[11, 13], 100), 2);
        assert_eq!((cursor.floor(), cursor.gaps()), (11, vec![12]));
        assert_eq!(cursor.take(&[12, 14], 100), 2);
        assert_eq!((cursor.floor(), cursor.gaps()), (14, vec![]));
    }

    #[test]
    fn a_gap_closes_only_when_xmin_has_passed_its_fence() {
        let mut cursor = Cursor::new(0);
        cursor.take(&[3], 100);
        assert!(cursor.needs_fence());
        cursor.take(&[], 1000);
        assert_eq!(
            cursor.gaps(),
            [1, 2],
            "no fence, no proof, however late the snapshot"
        );
        cursor.fence(50);
        cursor.take(&[], 50);
        assert_eq!(
            cursor.gaps(),
            [1, 2],
            "a transaction as old as the fence may still run"
        );
        cursor.take(&[2], 51);
        assert_eq!((cursor.floor(), cursor.gaps()), (3, vec![]));
    }

    #[test]
    fn a_later_fence_does_not_replace_an_earlier_one() {
        let mut cursor = Cursor::new(0);
        cursor.take(&[2], 1);
        cursor.fence(5);
        cursor.take(&[4], 5);
        cursor.fence(9);
        cursor.take(&[], 6);
        assert_eq!(cursor.gaps(), [3], "the first gap closed by its own fence");
    }

    #[test]
    fn a_long_run_of_missing_ids_is_passed_only_with_proof() {
        let mut cursor = Cursor::new(0);
        let far = 1_000_000;
        assert_eq!(cursor.take(&[1, far], 1), 1);
        assert_eq!(cursor.floor(), 1);
        cursor.fence(5);
        assert_eq!(cursor.take(&[far], 5), 0, "not proved yet");
        assert!(
            !cursor.needs_fence(),
            "the fence stays: a new one each time would never be passed"
        );
        assert_eq!(
            cursor.take(&[far - 500_000, far], 6),
            1,
            "the proof holds for the first"
        );
        assert_eq!(cursor.high(), far - 500_000);
    }

    /// A table whose rows take their ids at the insert and appear at the commit. Id and xid of a
    /// row are the same number; the relay's own xids lie between them.
    struct Table {
        begun: u64,
        open: Vec<u64>,
        visible: Vec<i64>,
        rolls_back: Vec<bool>,
        /// For each fence, the transactions that had begun before it.
        fences: Vec<u64>,
    }

    impl Table {
        const ROWS: u64 = 60;

        /// In the numbers of the fences: those that no open transaction is older than.
        fn xmin(&self) -> u64 {
            let oldest = self.open.iter().min().copied().unwrap_or(u64::MAX);
            let passed = self
                .fences
                .iter()
                .take_while(|began| oldest > **began)
                .count();
            u64::try_from(passed).unwrap()
        }

        fn step(&mut self, rng: &mut impl rand::Rng) {
            use rand::RngExt as _;
            if self.begun < Self::ROWS && rng.random_bool(0.6) {
                self.begun += 1;
                self.open.push(self.begun);
            }
            if !self.open.is_empty() && rng.random_bool(0.5) {
                let ended = self.open.swap_remove(rng.random_range(0..self.open.len()));
                if !self.rolls_back[usize::try_from(ended).unwrap()] {
                    self.visible.push(i64::try_from(ended).unwrap());
                }
            }
        }

        fn read(&self, cursor: &Cursor, limit: usize) -> Vec<i64> {
            let gaps = cursor.gaps();
            let above = |id: &&i64| **id > cursor.high();
            let mut rows: Vec<i64> = self.visible.iter().filter(above).copied().collect();
            rows.sort_unstable();
            rows.truncate(limit);
            rows.extend(self.visible.iter().filter(|id| gaps.contains(id)));
            rows.sort_unstable();
            rows
        }
    }

    #[test]
    fn whatever_the_order_of_commits_no_row_is_passed_and_none_is_sent_twice() {
        use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
        for seed in 0..500 {
            let mut rng = StdRng::seed_from_u64(seed);
            let rolls_back = (0..=Table::ROWS).map(|_| rng.random_bool(0.2)).collect();
            let (open, visible, fences) = (Vec::new(), Vec::new(), Vec::new());
            let mut table = Table {
                begun: 0,
                open,
                visible,
                rolls_back,
                fences,
            };
            let (mut cursor, mut sent) = (Cursor::new(0), Vec::new());
            while table.begun < Table::ROWS
                || !table.open.is_empty()
                || cursor.high() < table.visible.iter().copied().max().unwrap_or(0)
                || !cursor.gaps().is_empty()
            {
                table.step(&mut rng);
                let rows = table.read(&cursor, rng.random_range(1..5));
                // a fence is passed when xmin is greater: the first fence has number 0
                let taken = cursor.take(&rows, table.xmin());
                sent.extend_from_slice(&rows[..taken]);
                if cursor.needs_fence() {
                    let fence = u64::try_from(table.fences.len()).unwrap();
                    table.fences.push(table.begun);
                    cursor.fence(fence);
                }
                for id in 1..=cursor.floor() {
                    let xid = u64::try_from(id).unwrap();
                    assert!(
                        !table.open.contains(&xid),
                        "seed {seed}: row {id} may still appear"
                    );
                    let lost = table.visible.contains(&id) && !sent.contains(&id);
                    assert!(!lost, "seed {seed}: row {id} was passed");
                }
            }
            sent.sort_unstable();
            table.visible.sort_unstable();
            assert_eq!(sent, table.visible, "seed {seed}");
        }
    }
}
