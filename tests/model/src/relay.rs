//! The outbox and its relay (P8): ids are taken at the insert and rows appear at the commit, so a
//! row may appear below one that was read already. Writers that commit late or roll back, a relay
//! that dies, loses its lock, a record or its acknowledgement, and a second one that takes over.
//!
//! One order has two events: its second writer begins after the first has committed, as a later
//! change saw the earlier one. Writers of other orders come between.

mod properties;
mod steps;

use crate::{
    Rules,
    check::{Tallied, Tally},
};

/// How many writers there are, each of one event; and how often a relay may die or be stopped.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Writers. The first two write events of one order.
    pub writers: usize,
    /// How often a relay may die.
    pub deaths: u8,
    /// How often a relay may lose its lock without knowing.
    pub stops: u8,
    /// Records that the log may have at most.
    pub log: usize,
}

/// The configuration as stateright wants it.
#[derive(Debug)]
pub struct Relay {
    bounds: Bounds,
    rules: Rules,
    tally: Tally,
}

/// A transaction that writes one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Writer {
    /// Not begun.
    Idle,
    /// It has its xid, from an earlier statement.
    Begun {
        /// Its transaction id.
        xid: u8,
    },
    /// It has inserted its row.
    Inserted {
        /// Its transaction id.
        xid: u8,
        /// The row's id.
        id: u8,
    },
    /// Its row is there.
    Committed {
        /// Its transaction id.
        xid: u8,
        /// The row's id.
        id: u8,
    },
    /// Its row will never be.
    RolledBack,
}

/// A missing id below the greatest that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gap {
    id: u8,
    /// The xid that its closing waits for.
    fence: Option<u8>,
}

/// A relay that leads, or thinks so.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leader {
    high: u8,
    gaps: Vec<Gap>,
    /// Rows that were read and are not acknowledged, in sending order, and how many were sent.
    sending: Vec<u8>,
    sent: usize,
    /// The last record that was sent never arrives, nor does any after it.
    lost: bool,
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    writers: Vec<Writer>,
    next_xid: u8,
    next_id: u8,
    /// `relay_watermark.low`.
    low: u8,
    /// Whether it was moved back: what lies below it may be dropped.
    went_back: bool,
    leader: Option<Leader>,
    /// One that was stopped, lost its lock, and goes on.
    stale: Option<Leader>,
    /// The topic: ids of rows in the order of their records.
    log: Vec<u8>,
    deaths: u8,
    stops: u8,
}

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// A transaction begins.
    Begin(u8),
    /// It inserts its row.
    Insert(u8),
    /// It commits.
    Commit(u8),
    /// It is rolled back.
    RollBack(u8),
    /// A relay takes the lock and starts from the watermark.
    Lead,
    /// It reads: one statement, one snapshot. The stale one too.
    Read(bool),
    /// A transaction of its own, begun and ended: its xid is the fence of gaps without one.
    Fence(bool),
    /// It sends the next record.
    Send(bool),
    /// It sends the next record, which never arrives: its broker or its connection dies, and all that
    /// is left to it is to die as well.
    SendIsLost(bool),
    /// The first record that was sent is acknowledged.
    Acknowledge(bool),
    /// It moves the watermark.
    Move(bool),
    /// It dies.
    Die(bool),
    /// It is stopped and loses its lock.
    Stop,
}

const REACHED: &[&str] = &[
    "a row appears below one that was read",
    "a gap is closed by its fence",
    "a gap is fenced and not closed yet",
    "a new leader sends a record again",
    "a stale leader can't move the watermark",
    "two events are in one read",
    "a record is lost on its way",
];

impl Relay {
    /// A configuration with these bounds.
    #[must_use]
    pub fn new(bounds: Bounds, rules: Rules) -> Self {
        Self {
            bounds,
            rules,
            tally: Tally::new(REACHED),
        }
    }
}

impl Tallied for Relay {
    fn reached(&self) -> Vec<(&'static str, u64)> {
        self.tally.read()
    }
}
