//! The outbox and its relay (P8): ids are taken at the insert and rows appear at the commit, so a
//! row may appear below one that was read already. Writers that commit late or roll back, a relay
//! that dies, loses its lock, a record or its acknowledgement, and a second one that takes over.
//!
//! One order has two events: its second writer begins after the first has committed, as a later
//! change saw the earlier one. Writers of other orders come between.

use stateright::{Model, Property};

use crate::{
    Mutation, Rules,
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

    fn may_begin(&self, state: &State, writer: usize) -> bool {
        let first_is_there = matches!(state.writers[0], Writer::Committed { .. });
        state.writers[writer] == Writer::Idle && (writer != 1 || first_is_there)
    }

    /// Every transaction with a smaller xid has ended.
    fn xmin(state: &State) -> u8 {
        let open = state.writers.iter().filter_map(|writer| match writer {
            Writer::Begun { xid } | Writer::Inserted { xid, .. } => Some(*xid),
            Writer::Idle | Writer::Committed { .. } | Writer::RolledBack => None,
        });
        open.min().unwrap_or(state.next_xid)
    }

    fn read(&self, state: &mut State, stale: bool) {
        let xmin = if self.rules.breaks(Mutation::GapClosedByXmax) {
            state.next_xid
        } else {
            Self::xmin(state)
        };
        let by_xid = self.rules.breaks(Mutation::CursorByXid);
        let rows: Vec<(u8, u8)> = state
            .writers
            .iter()
            .filter_map(|writer| match *writer {
                Writer::Committed { xid, id } => Some(if by_xid { (xid, id) } else { (id, id) }),
                _ => None,
            })
            .collect();
        let Some(leader) = leader(state, stale) else {
            return;
        };
        let listed: Vec<u8> = leader.gaps.iter().map(|gap| gap.id).collect();
        let mut found: Vec<(u8, u8)> = rows
            .into_iter()
            .filter(|(at, _)| *at > leader.high || listed.contains(at))
            .collect();
        found.sort_unstable();
        leader.gaps.retain(|gap| {
            let appeared = found.iter().any(|(at, _)| *at == gap.id);
            let fence = if self.rules.breaks(Mutation::GapClosedWithoutFence) {
                Some(0)
            } else {
                gap.fence
            };
            let never = fence.is_some_and(|fence| xmin > fence);
            if appeared {
                self.tally.hit("a row appears below one that was read");
            } else if never {
                self.tally.hit("a gap is closed by its fence");
            } else if gap.fence.is_some() {
                self.tally.hit("a gap is fenced and not closed yet");
            }
            !appeared && !never
        });
        if found.len() > 1 {
            self.tally.hit("two events are in one read");
        }
        for (at, id) in found {
            if at > leader.high {
                if !self.rules.breaks(Mutation::CursorById) && !by_xid {
                    let missing = leader.high + 1..at;
                    leader
                        .gaps
                        .extend(missing.map(|id| Gap { id, fence: None }));
                }
                leader.high = at;
            }
            leader.sending.push(id);
        }
    }

    /// Everything up to it is acknowledged, or will never be.
    fn floor(&self, leader: &Leader) -> u8 {
        let gap = leader.gaps.iter().map(|gap| gap.id - 1).min();
        let waiting = if self.rules.breaks(Mutation::WatermarkPastUnacked) {
            &leader.sending[leader.sent..]
        } else {
            &leader.sending[..]
        };
        let waiting = waiting.iter().map(|id| id - 1).min();
        let high = if self.rules.breaks(Mutation::CursorByXid) {
            leader.sending.iter().copied().max().unwrap_or(leader.high)
        } else {
            leader.high
        };
        [gap, waiting, Some(high)]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(leader.high)
    }

    fn leader_steps(&self, state: &State, stale: bool, steps: &mut Vec<Step>) {
        let found = if stale { &state.stale } else { &state.leader };
        let Some(leader) = found else {
            return;
        };
        steps.push(Step::Read(stale));
        if leader.gaps.iter().any(|gap| gap.fence.is_none()) {
            steps.push(Step::Fence(stale));
        }
        if leader.sent < leader.sending.len() && !leader.lost {
            if state.log.len() < self.bounds.log {
                steps.push(Step::Send(stale));
            }
            if state.deaths < self.bounds.deaths {
                steps.push(Step::SendIsLost(stale));
            }
        }
        if leader.sent > usize::from(leader.lost) {
            steps.push(Step::Acknowledge(stale));
        }
        if self.floor(leader) != state.low {
            steps.push(Step::Move(stale));
        }
        if state.deaths < self.bounds.deaths {
            steps.push(Step::Die(stale));
        }
    }
}

fn leader(state: &mut State, stale: bool) -> Option<&mut Leader> {
    if stale {
        state.stale.as_mut()
    } else {
        state.leader.as_mut()
    }
}

impl Model for Relay {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            writers: vec![Writer::Idle; self.bounds.writers],
            next_xid: 1,
            next_id: 1,
            low: 0,
            went_back: false,
            leader: None,
            stale: None,
            log: Vec::new(),
            deaths: 0,
            stops: 0,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for (n, writer) in (0_u8..).zip(&state.writers) {
            match writer {
                Writer::Idle if self.may_begin(state, usize::from(n)) => steps.push(Step::Begin(n)),
                Writer::Begun { .. } => steps.extend([Step::Insert(n), Step::RollBack(n)]),
                Writer::Inserted { .. } => steps.extend([Step::Commit(n), Step::RollBack(n)]),
                Writer::Idle | Writer::Committed { .. } | Writer::RolledBack => {}
            }
        }
        if state.leader.is_none() {
            steps.push(Step::Lead);
        } else if state.stops < self.bounds.stops && state.stale.is_none() {
            steps.push(Step::Stop);
        }
        self.leader_steps(state, false, steps);
        self.leader_steps(state, true, steps);
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Begin(n) => {
                state.writers[usize::from(n)] = Writer::Begun {
                    xid: state.next_xid,
                };
                state.next_xid += 1;
            }
            Step::Insert(n) => {
                let Writer::Begun { xid } = state.writers[usize::from(n)] else {
                    return None;
                };
                let id = state.next_id;
                state.next_id += 1;
                state.writers[usize::from(n)] = Writer::Inserted { xid, id };
            }
            Step::Commit(n) => {
                let Writer::Inserted { xid, id } = state.writers[usize::from(n)] else {
                    return None;
                };
                state.writers[usize::from(n)] = Writer::Committed { xid, id };
            }
            Step::RollBack(n) => state.writers[usize::from(n)] = Writer::RolledBack,
            Step::Lead => {
                state.leader = Some(Leader {
                    high: if self.rules.breaks(Mutation::CursorByXid) {
                        0
                    } else {
                        state.low
                    },
                    gaps: Vec::new(),
                    sending: Vec::new(),
                    sent: 0,
                    lost: false,
                });
            }
            Step::Read(stale) => self.read(&mut state, stale),
            Step::Fence(stale) => {
                let xid = state.next_xid;
                state.next_xid += 1;
                for gap in &mut leader(&mut state, stale)?.gaps {
                    gap.fence.get_or_insert(xid);
                }
            }
            Step::Send(stale) => {
                let leader = leader(&mut state, stale)?;
                let id = leader.sending[leader.sent];
                leader.sent += 1;
                if state.log.contains(&id) {
                    self.tally.hit("a new leader sends a record again");
                }
                state.log.push(id);
            }
            Step::SendIsLost(stale) => {
                let leader = leader(&mut state, stale)?;
                leader.sent += 1;
                leader.lost = true;
                self.tally.hit("a record is lost on its way");
            }
            Step::Acknowledge(stale) => {
                let leader = leader(&mut state, stale)?;
                leader.sending.remove(0);
                leader.sent -= 1;
            }
            Step::Move(stale) => {
                let floor = self.floor(leader(&mut state, stale)?);
                if stale && !self.rules.breaks(Mutation::StaleLeaderMoves) {
                    self.tally.hit("a stale leader can't move the watermark");
                    state.stale = None;
                } else {
                    state.went_back |= floor < state.low;
                    state.low = floor;
                }
            }
            Step::Die(stale) => {
                state.deaths += 1;
                if stale {
                    state.stale = None;
                } else {
                    state.leader = None;
                }
            }
            Step::Stop => {
                state.stops += 1;
                state.stale = state.leader.take();
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the watermark passes no event", |_, state: &State| {
                state.writers.iter().all(|writer| match writer {
                    Writer::Committed { id, .. } => *id > state.low || state.log.contains(id),
                    Writer::Inserted { id, .. } => *id > state.low,
                    Writer::Idle | Writer::Begun { .. } | Writer::RolledBack => true,
                })
            }),
            Property::always("the watermark never goes back", |_, state: &State| {
                !state.went_back
            }),
            Property::always("the relay skips no event", |model: &Self, state: &State| {
                let Some(leader) = &state.leader else {
                    return true;
                };
                // What lies below its place and is no gap was sent, is being sent, or is below the
                // watermark that it began from.
                state.writers.iter().all(|writer| match *writer {
                    Writer::Committed { id, xid } => {
                        let by_xid =
                            model.rules.breaks(Mutation::CursorByXid) && xid <= leader.high;
                        let passed = id <= leader.high || by_xid;
                        !passed
                            || leader.gaps.iter().any(|gap| gap.id == id)
                            || leader.sending.contains(&id)
                            || state.log.contains(&id)
                    }
                    _ => true,
                })
            }),
            Property::always(
                "an order's events come in their order",
                |_, state: &State| {
                    let id = |n: usize| match state.writers[n] {
                        Writer::Committed { id, .. } => Some(id),
                        _ => None,
                    };
                    let place = |id: u8| state.log.iter().position(|one| *one == id);
                    match (id(0), id(1)) {
                        (Some(first), Some(second)) => match (place(first), place(second)) {
                            (Some(first), Some(second)) => first < second,
                            (None, Some(_)) => false,
                            (_, None) => true,
                        },
                        _ => true,
                    }
                },
            ),
            Property::always(
                "only what was committed is published",
                |_, state: &State| {
                    state.log.iter().all(|one| {
                        let mut writers = state.writers.iter();
                        writers.any(
                            |writer| matches!(writer, Writer::Committed { id, .. } if id == one),
                        )
                    })
                },
            ),
        ]
    }
}

impl Tallied for Relay {
    fn reached(&self) -> Vec<(&'static str, u64)> {
        self.tally.read()
    }
}
