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

    /// Accounts for one read: `ids` as found, rising; `complete` unless the limit cut it; `xmin` of
    /// its snapshot. Returns how many of the rows, from the first, are to be sent now.
    pub(super) fn take(&mut self, ids: &[i64], complete: bool, xmin: u64) -> usize {
        let covered = if complete {
            i64::MAX
        } else {
            ids.last().copied().unwrap_or(i64::MAX)
        };
        self.gaps.retain(|gap, fence| {
            let appeared = ids.binary_search(gap).is_ok();
            let never = *gap <= covered && fence.is_some_and(|fence| xmin > fence);
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
        assert_eq!(cursor.take(&[11, 13], true, 100), 2);
        assert_eq!((cursor.floor(), cursor.gaps()), (11, vec![12]));
        assert_eq!(cursor.take(&[12, 14], true, 100), 2);
        assert_eq!((cursor.floor(), cursor.gaps()), (14, vec![]));
    }

    #[test]
    fn a_gap_closes_only_when_xmin_has_passed_its_fence() {
        let mut cursor = Cursor::new(0);
        cursor.take(&[3], true, 100);
        assert!(cursor.needs_fence());
        cursor.take(&[], true, 1000);
        assert_eq!(
            cursor.gaps(),
            [1, 2],
            "no fence, no proof, however late the snapshot"
        );
        cursor.fence(50);
        cursor.take(&[], true, 50);
        assert_eq!(
            cursor.gaps(),
            [1, 2],
            "a transaction as old as the fence may still run"
        );
        cursor.take(&[2], true, 51);
        assert_eq!((cursor.floor(), cursor.gaps()), (3, vec![]));
    }

    #[test]
    fn a_later_fence_does_not_replace_an_earlier_one() {
        let mut cursor = Cursor::new(0);
        cursor.take(&[2], true, 1);
        cursor.fence(5);
        cursor.take(&[4], true, 5);
        cursor.fence(9);
        cursor.take(&[], true, 6);
        assert_eq!(cursor.gaps(), [3], "the first gap closed by its own fence");
    }

    #[test]
    fn a_read_that_was_cut_says_nothing_of_gaps_beyond_its_last_row() {
        let mut cursor = Cursor::new(0);
        cursor.take(&[2, 4], true, 1);
        cursor.fence(5);
        cursor.take(&[1], false, 6);
        assert_eq!(cursor.gaps(), [3], "id 3 may lie behind the cut");
    }

    #[test]
    fn a_long_run_of_missing_ids_is_passed_only_with_proof() {
        let mut cursor = Cursor::new(0);
        let far = 1_000_000;
        assert_eq!(cursor.take(&[1, far], true, 1), 1);
        assert_eq!(cursor.floor(), 1);
        cursor.fence(5);
        assert_eq!(cursor.take(&[far], true, 5), 0, "not proved yet");
        assert!(
            !cursor.needs_fence(),
            "the fence stays: a new one each time would never be passed"
        );
        assert_eq!(
            cursor.take(&[far - 500_000, far], true, 6),
            1,
            "the proof holds for the first"
        );
        assert_eq!(cursor.high(), far - 500_000);
    }

    #[test]
    fn random_commit_orders_lose_nothing_and_floor_never_passes_an_open_row() {
        use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
        for seed in 0..300 {
            let mut rng = StdRng::seed_from_u64(seed);
            // ids 1..=60, one transaction each with xid = id; some roll back
            let fate: Vec<bool> = (0..=60).map(|_| rng.random_bool(0.8)).collect();
            let mut open: Vec<u64> = Vec::new();
            let (mut started, mut visible) = (0_u64, Vec::<i64>::new());
            let (mut cursor, mut sent) = (Cursor::new(0), Vec::<i64>::new());
            let mut own = 1000_u64; // xids of the relay are mapped above those that began before
            let mut floor_of_xid: std::collections::BTreeMap<u64, u64> = Default::default();
            while cursor.floor() < 59 || !open.is_empty() || started < 60 {
                if started < 60 && rng.random_bool(0.6) {
                    started += 1;
                    open.push(started);
                }
                if !open.is_empty() && rng.random_bool(0.5) {
                    let xid = open.swap_remove(rng.random_range(0..open.len()));
                    if fate[xid as usize] {
                        visible.push(xid as i64);
                    }
                }
                // xmin, in the numbers of the fences: all fences taken before the oldest open xid
                let oldest = open.iter().min().copied().unwrap_or(u64::MAX);
                let xmin = floor_of_xid
                    .iter()
                    .find(|(_, began)| oldest <= **began)
                    .map_or(own + 1, |(fence, _)| *fence);
                let gaps = cursor.gaps();
                let mut rows: Vec<i64> = visible
                    .iter()
                    .copied()
                    .filter(|id| *id > cursor.high() || gaps.contains(id))
                    .collect();
                rows.sort_unstable();
                let limit = rng.random_range(1..5);
                let complete = rows.len() < limit;
                rows.truncate(limit);
                let taken = cursor.take(&rows, complete, xmin);
                sent.extend(&rows[..taken]);
                if cursor.needs_fence() {
                    own += 1;
                    floor_of_xid.insert(own, started);
                    cursor.fence(own);
                }
                for id in 1..=cursor.floor() {
                    let lost = visible.contains(&id) && !sent.contains(&id)
                        || open.contains(&(id as u64)) && fate[id as usize];
                    assert!(
                        !lost,
                        "seed {seed}: floor {} passed row {id}",
                        cursor.floor()
                    );
                }
                if started == 60 && open.is_empty() && sent.len() == visible.len() {
                    break;
                }
            }
            sent.sort_unstable();
            visible.sort_unstable();
            assert_eq!(sent, visible, "seed {seed}");
        }
    }
}
