//! What may happen in a state, and what it does.

use stateright::{Model, Property};

use super::{Gap, Leader, Relay, State, Step, Writer, properties};
use crate::Mutation;

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
        properties::all()
    }
}

impl Relay {
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
