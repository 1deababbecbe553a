//! The gate of one shard (P2, P10): what the scripts do, one order at a time.

use std::collections::BTreeMap;

use super::{BUYERS, Hold, Key, Rules, SKUS};
use crate::Mutation;

/// What the gate is told of a SKU; the higher version wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Register {
    /// `on_hand - sold`.
    pub limit: i32,
    /// `stock.version`.
    pub version: u32,
    /// The sale is closed before.
    pub opens: Option<i32>,
    /// The sale is closed from then on.
    pub closes: Option<i32>,
    /// The most units of one buyer.
    pub per_customer: Option<i32>,
}

/// The gate of a SKU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Row {
    /// What PostgreSQL said last.
    pub register: Register,
    /// Units of all holds.
    pub held: i32,
}

/// A hold as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stored {
    /// Who holds what.
    pub hold: Hold,
    /// Per SKU, whether the line was counted for its buyer.
    pub counted: [bool; SKUS],
}

/// The newest epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Epoch {
    /// Which.
    pub id: u32,
    /// Whether it answers `reserve`.
    pub open: bool,
}

/// All keys of the newest epoch of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Gate {
    /// None when Redis knows nothing.
    pub epoch: Option<Epoch>,
    /// Per SKU.
    pub rows: [Option<Row>; SKUS],
    /// Per SKU and buyer: units held and owned, of SKUs with a limit per customer.
    pub bought: [[i32; BUYERS]; SKUS],
    /// All holds.
    pub holds: BTreeMap<Key, Stored>,
}

/// A command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "fields are named after what they are")]
pub enum GateOp {
    /// Takes units, or says why not.
    Reserve { now: i32, key: Key, hold: Hold },
    /// Makes a hold be there.
    Keep { key: Key, hold: Hold },
    /// Ends a hold whose order is confirmed.
    Commit { key: Key, hold: Hold },
    /// Ends a hold whose order is no more.
    Release { key: Key, hold: Hold },
    /// Takes a register when it is newer.
    Put { sku: usize, register: Register },
    /// Sets a buyer's units while they are what was seen.
    CorrectBuyer {
        sku: usize,
        buyer: u8,
        seen: i32,
        units: i32,
    },
    /// Begins an epoch, closed and empty, while the newest is `replaces`.
    Begin { epoch: u32, replaces: Option<u32> },
    /// Opens an epoch while it is the newest.
    Open { epoch: u32 },
    /// All keys are lost.
    Wipe,
    /// The gate of one SKU is lost alone.
    LoseRow { sku: usize },
}

/// The word of an answer, as the scripts spell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(
    missing_docs,
    reason = "documented where the scripts' words are: reservations"
)]
pub enum Word {
    Ok,
    Known,
    Other,
    NotOpen,
    Over,
    Limit,
    SoldOut,
    NoGate,
    Kept,
    Added,
    Replaced,
    Done,
    Absent,
    Damaged,
    Set,
    Old,
    Changed,
    Begun,
    Opened,
    Superseded,
    Lost,
}

impl Word {
    /// As the scripts spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Known => "KNOWN",
            Self::Other => "OTHER",
            Self::NotOpen => "NOT_OPEN",
            Self::Over => "OVER",
            Self::Limit => "LIMIT",
            Self::SoldOut => "SOLD_OUT",
            Self::NoGate => "NO_GATE",
            Self::Kept => "KEPT",
            Self::Added => "ADDED",
            Self::Replaced => "REPLACED",
            Self::Done => "DONE",
            Self::Absent => "ABSENT",
            Self::Damaged => "DAMAGED",
            Self::Set => "SET",
            Self::Old => "OLD",
            Self::Changed => "CHANGED",
            Self::Begun => "BEGUN",
            Self::Opened => "OPENED",
            Self::Superseded => "SUPERSEDED",
            Self::Lost => "LOST",
        }
    }
}

/// Runs one command.
pub fn apply(gate: &mut Gate, op: &GateOp, rules: Rules) -> Word {
    match *op {
        GateOp::Reserve { now, key, hold } => gate.reserve(now, key, hold),
        GateOp::Keep { key, hold } => gate.keep(key, hold),
        GateOp::Commit { key, hold } => gate.settle(key, hold, false, rules),
        GateOp::Release { key, hold } => gate.settle(key, hold, true, rules),
        GateOp::Put { sku, register } => gate.put(sku, register, rules),
        GateOp::CorrectBuyer {
            sku,
            buyer,
            seen,
            units,
        } => gate.correct_buyer(sku, buyer, seen, units),
        GateOp::Begin { epoch, replaces } => gate.begin(epoch, replaces),
        GateOp::Open { epoch } => gate.open(epoch, rules),
        GateOp::Wipe => {
            *gate = Gate::default();
            Word::Lost
        }
        GateOp::LoseRow { sku } => {
            gate.rows[sku] = None;
            Word::Lost
        }
    }
}

impl Gate {
    /// Whether it answers `reserve`.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.epoch.is_some_and(|epoch| epoch.open)
    }

    /// Units that the gate would still let through.
    #[must_use]
    pub fn available(&self, sku: usize) -> Option<i32> {
        self.rows[sku].map(|row| row.register.limit - row.held)
    }

    /// Whether `held` of each SKU is the sum of its holds.
    #[must_use]
    pub fn held_is_the_sum_of_holds(&self) -> bool {
        (0..SKUS).all(|sku| {
            let held: i32 = self
                .holds
                .values()
                .map(|stored| i32::from(stored.hold.lines[sku]))
                .sum();
            self.rows[sku].map_or(held == 0, |row| row.held == held)
        })
    }

    fn reserve(&mut self, now: i32, key: Key, hold: Hold) -> Word {
        if !self.is_open() {
            return Word::NoGate;
        }
        if let Some(stored) = self.holds.get(&key) {
            return if stored.hold == hold {
                Word::Known
            } else {
                Word::Other
            };
        }
        if let Some(refusal) = self.refusal(now, &hold) {
            return refusal;
        }
        self.place(key, hold);
        Word::Ok
    }

    /// The first rule that is broken, each over all lines before the next.
    fn refusal(&self, now: i32, hold: &Hold) -> Option<Word> {
        let (mut early, mut over, mut limit, mut short) = (false, false, false, false);
        for (sku, units) in hold.lines() {
            let Some(row) = self.rows[sku] else {
                return Some(Word::NoGate);
            };
            let register = row.register;
            let bought = self.bought[sku][usize::from(hold.buyer)];
            early |= register.opens.is_some_and(|opens| now < opens);
            over |= register.closes.is_some_and(|closes| now >= closes);
            limit |= register
                .per_customer
                .is_some_and(|most| bought + units > most);
            short |= register.limit - row.held < units;
        }
        [
            (early, Word::NotOpen),
            (over, Word::Over),
            (limit, Word::Limit),
            (short, Word::SoldOut),
        ]
        .into_iter()
        .find_map(|(broken, word)| broken.then_some(word))
    }

    fn place(&mut self, key: Key, hold: Hold) {
        let mut counted = [false; SKUS];
        for (sku, units) in hold.lines() {
            let Some(row) = &mut self.rows[sku] else {
                continue;
            };
            row.held += units;
            counted[sku] = row.register.per_customer.is_some();
            if counted[sku] {
                self.add_bought(sku, hold.buyer, units);
            }
        }
        self.holds.insert(key, Stored { hold, counted });
    }

    fn add_bought(&mut self, sku: usize, buyer: u8, more: i32) {
        let units = &mut self.bought[sku][usize::from(buyer)];
        *units = (*units + more).max(0);
    }

    /// Whether its units are in `held`: not when a gate was lost alone.
    fn can_lift(&self, stored: &Stored) -> bool {
        stored
            .hold
            .lines()
            .all(|(sku, units)| self.rows[sku].is_some_and(|row| row.held >= units))
    }

    fn lift(&mut self, key: Key, stored: Stored, give_back: bool) {
        for (sku, units) in stored.hold.lines() {
            if let Some(row) = &mut self.rows[sku] {
                row.held -= units;
            }
            if give_back && stored.counted[sku] {
                self.add_bought(sku, stored.hold.buyer, -units);
            }
        }
        self.holds.remove(&key);
    }

    fn keep(&mut self, key: Key, hold: Hold) -> Word {
        if self.epoch.is_none() {
            return Word::NoGate;
        }
        let before = self.holds.get(&key).copied();
        if before.is_some_and(|stored| stored.hold == hold) {
            return Word::Kept;
        }
        if before.is_some_and(|stored| !self.can_lift(&stored)) {
            return Word::Damaged;
        }
        if hold.lines().any(|(sku, _)| self.rows[sku].is_none()) {
            return Word::NoGate;
        }
        if let Some(stored) = before {
            self.lift(key, stored, true);
        }
        self.place(key, hold);
        if before.is_some() {
            Word::Replaced
        } else {
            Word::Added
        }
    }

    fn settle(&mut self, key: Key, hold: Hold, give_back: bool, rules: Rules) -> Word {
        if self.epoch.is_none() {
            return Word::NoGate;
        }
        if rules.breaks(Mutation::IncrInsteadOfRegister) && !give_back {
            for (sku, units) in hold.lines() {
                if let Some(row) = &mut self.rows[sku] {
                    row.register.limit -= units;
                }
            }
        }
        let Some(stored) = self.holds.get(&key).copied() else {
            if rules.breaks(Mutation::ReleaseWithoutHold) {
                for (sku, units) in hold.lines() {
                    if let Some(row) = &mut self.rows[sku] {
                        row.held = (row.held - units).max(0);
                    }
                }
            }
            return Word::Absent;
        };
        if !self.can_lift(&stored) {
            return Word::Damaged;
        }
        self.lift(key, stored, give_back);
        Word::Done
    }

    fn put(&mut self, sku: usize, register: Register, rules: Rules) -> Word {
        if self.epoch.is_none() {
            return Word::NoGate;
        }
        let known = self.rows[sku];
        let newer = known.is_none_or(|row| register.version > row.register.version);
        let take = if rules.breaks(Mutation::RegisterWithoutVersion) {
            true
        } else if rules.breaks(Mutation::IncrInsteadOfRegister) {
            known.is_none()
        } else {
            newer
        };
        if !take {
            return Word::Old;
        }
        let held = known.map_or(0, |row| row.held);
        self.rows[sku] = Some(Row { register, held });
        Word::Set
    }

    fn correct_buyer(&mut self, sku: usize, buyer: u8, seen: i32, units: i32) -> Word {
        if self.epoch.is_none() {
            return Word::NoGate;
        }
        let now = &mut self.bought[sku][usize::from(buyer)];
        if *now != seen {
            return Word::Changed;
        }
        *now = units;
        Word::Set
    }

    fn begin(&mut self, epoch: u32, replaces: Option<u32>) -> Word {
        if self.epoch.map(|newest| newest.id) != replaces {
            return Word::Superseded;
        }
        *self = Self {
            epoch: Some(Epoch {
                id: epoch,
                open: false,
            }),
            ..Self::default()
        };
        Word::Begun
    }

    fn open(&mut self, epoch: u32, rules: Rules) -> Word {
        match &mut self.epoch {
            Some(newest) if newest.id == epoch || rules.breaks(Mutation::OpenAnyEpoch) => {
                newest.open = true;
                Word::Opened
            }
            _ => Word::Superseded,
        }
    }
}
