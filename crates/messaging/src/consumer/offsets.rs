//! How far each partition may be stored: up to the first record that is not done.

use std::collections::{BTreeSet, HashMap};

/// Which time a partition was given to us; a later time is another number.
pub(super) type Epoch = u64;

/// What a partition still has open.
#[derive(Debug)]
struct Open {
    epoch: Epoch,
    offsets: BTreeSet<i64>,
    /// One past the greatest offset seen.
    next: i64,
    /// What was given out last; at first the offset that reading began at.
    stored: i64,
}

/// An offset that may be stored: the next one to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Storable {
    pub(super) partition: i32,
    pub(super) epoch: Epoch,
    pub(super) offset: i64,
}

/// Counts the records of all partitions in and out.
#[derive(Debug, Default)]
pub(super) struct Offsets {
    partitions: HashMap<i32, Open>,
}

impl Offsets {
    /// A record came in. A partition that was given to us again begins anew.
    pub(super) fn seen(&mut self, partition: i32, epoch: Epoch, offset: i64) {
        let fresh = || Open {
            epoch,
            offsets: BTreeSet::new(),
            next: offset,
            stored: offset,
        };
        let open = self.partitions.entry(partition).or_insert_with(fresh);
        if open.epoch != epoch {
            *open = fresh();
        }
        open.offsets.insert(offset);
        open.next = open.next.max(offset + 1);
    }

    /// A record has had its effect, is a dead letter, or was skipped.
    pub(super) fn done(&mut self, partition: i32, epoch: Epoch, offset: i64) {
        if let Some(open) = self
            .partitions
            .get_mut(&partition)
            .filter(|open| open.epoch == epoch)
        {
            open.offsets.remove(&offset);
        }
    }

    /// What may be stored since the last call.
    pub(super) fn storable(&mut self) -> Vec<Storable> {
        let mut out = Vec::new();
        for (&partition, open) in &mut self.partitions {
            let offset = open.offsets.first().copied().unwrap_or(open.next);
            if offset > open.stored {
                open.stored = offset;
                out.push(Storable {
                    partition,
                    epoch: open.epoch,
                    offset,
                });
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(list: &[Storable]) -> Vec<(i32, i64)> {
        list.iter().map(|s| (s.partition, s.offset)).collect()
    }

    #[test]
    fn an_open_record_holds_back_all_that_follow_in_its_partition_alone() {
        let mut o = Offsets::default();
        for offset in 10..15 {
            o.seen(0, 1, offset);
            o.seen(1, 1, offset);
        }
        for offset in [10, 12, 13, 14] {
            o.done(0, 1, offset);
            o.done(1, 1, offset);
        }
        o.done(1, 1, 11);
        let mut stored = offsets(&o.storable());
        stored.sort_unstable();
        assert_eq!(stored, [(0, 11), (1, 15)]);
        o.done(0, 1, 11);
        assert_eq!(offsets(&o.storable()), [(0, 15)]);
        assert_eq!(offsets(&o.storable()), []);
    }

    #[test]
    fn a_partition_that_came_back_knows_nothing_of_its_earlier_time() {
        let mut o = Offsets::default();
        o.seen(0, 1, 100);
        o.seen(0, 1, 101);
        o.done(0, 1, 100);
        assert_eq!(offsets(&o.storable()), [(0, 101)]);
        o.seen(0, 2, 50);
        o.done(0, 1, 101);
        o.done(0, 1, 50);
        assert_eq!(
            offsets(&o.storable()),
            [],
            "work of the earlier time stores nothing"
        );
        o.done(0, 2, 50);
        assert_eq!(offsets(&o.storable()), [(0, 51)]);
    }
}
