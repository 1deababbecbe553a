//! The part of librdkafka's statistics that is read (its `STATISTICS.md`). They are a client's word
//! about itself: one that is ill may go on with what it knew, or say nothing at all.

use std::collections::HashMap;

use serde::Deserialize;

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Statistics {
    brokers: HashMap<String, BrokerStatistics>,
    pub(super) topics: HashMap<String, TopicStatistics>,
    cgrp: GroupStatistics,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct GroupStatistics {
    join_state: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct BrokerStatistics {
    state: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct TopicStatistics {
    pub(super) partitions: HashMap<String, PartitionStatistics>,
}

/// Offsets are negative while they are not known.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct PartitionStatistics {
    app_offset: i64,
    stored_offset: i64,
    committed_offset: i64,
    hi_offset: i64,
}

impl Statistics {
    /// Whether a broker is connected.
    pub(super) fn is_up(&self) -> bool {
        self.brokers.values().any(|broker| broker.state == "UP")
    }

    /// Whether the group has settled.
    pub(super) fn is_settled(&self) -> bool {
        self.cgrp.join_state == "steady"
    }
}

impl PartitionStatistics {
    /// Records on the broker that were not read; `None` before it has said how many it has.
    pub(super) fn unread(&self) -> Option<i64> {
        let read = [self.app_offset, self.stored_offset, self.committed_offset];
        let read = read.into_iter().max().unwrap_or_default().max(0);
        (self.hi_offset >= 0).then(|| (self.hi_offset - read).max(0))
    }

    /// Records on the broker that are not handled.
    pub(super) fn unhandled(&self) -> i64 {
        let handled = self.stored_offset.max(self.committed_offset);
        (self.hi_offset - handled.max(0)).max(0)
    }
}
