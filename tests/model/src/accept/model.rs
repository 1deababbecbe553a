//! What may happen in a state.

use stateright::{Model, Property};

use super::{Accept, Phase, Rebuild, State, Step, properties};
use crate::{Mutation, protocol::Key};

impl Model for Accept {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.first()]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.broken.is_some() {
            return;
        }
        for number in 0..u8::try_from(state.attempts.len()).unwrap_or(0) {
            self.attempt_steps(state, number, steps);
        }
        if state.zombie.is_some() {
            steps.extend([Step::ZombieCommits, Step::ZombieAborts]);
        }
        if state.crashes < self.bounds.crashes {
            steps.extend((0..2).filter(|p| self.is_busy(state, *p)).map(Step::Crash));
        }
        // The lock of the stock row.
        if state.zombie.is_none() {
            for (number, order) in &state.pg.orders {
                if !order.status.is_end() {
                    let ends = self.bounds.ends.iter();
                    steps.extend(ends.map(|to| Step::End(*number, *to)));
                }
            }
        }
        self.sync_steps(state, steps);
        self.redis_steps(state, steps);
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        self.take(&mut state, step).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}

impl Accept {
    fn attempt_steps(&self, state: &State, n: u8, steps: &mut Vec<Step>) {
        let attempt = &state.attempts[usize::from(n)];
        match attempt.phase {
            Phase::Idle => steps.push(Step::Send(n)),
            Phase::Received => {
                steps.extend([Step::Reserve(n), Step::GoDirect(n)]);
                if state.gate.is_open() {
                    steps.push(Step::ReserveUnheard(n));
                }
            }
            Phase::Refused(_) => steps.push(Step::LookUp(n)),
            Phase::Admitted | Phase::Unknown => {
                if attempt.late {
                    steps.push(Step::GiveUp(n));
                } else {
                    steps.push(Step::Deadline(n));
                }
                if state.zombie.is_none() {
                    steps.extend([Step::Accept(n), Step::AcceptUnheard(n)]);
                    if self.bounds.zombies && !attempt.late {
                        steps.push(Step::AcceptHangs(n));
                    }
                }
                if attempt.phase == Phase::Admitted {
                    steps.push(Step::AcceptFails(n));
                }
            }
            Phase::Done(_) | Phase::Dead => {}
        }
    }

    fn is_busy(&self, state: &State, process: u8) -> bool {
        let sendings = self.bounds.sendings.iter().zip(&state.attempts);
        let mut mine = sendings.filter(|(sending, _)| sending.process == process);
        mine.any(|(_, attempt)| attempt.is_under_way())
    }

    fn sync_steps(&self, state: &State, steps: &mut Vec<Step>) {
        if state.syncs.len() < self.bounds.syncs {
            let queued = (0..16_u16).filter(|bit| state.queued & (1 << bit) != 0);
            steps.extend(queued.map(|bit| Step::SyncReads(Key::from(bit))));
            for key in state.gate.holds.keys() {
                if self.is_due(state, *key) && !state.syncs.iter().any(|sync| sync.key == *key) {
                    steps.push(Step::SweepReads(*key));
                }
            }
        }
        for n in 0..u8::try_from(state.syncs.len()).unwrap_or(0) {
            steps.extend([
                Step::SyncApplies(n),
                Step::SyncRepeats(n),
                Step::SyncIsLost(n),
            ]);
        }
        if self.rules.breaks(Mutation::TtlAsTruth) {
            steps.extend(state.gate.holds.keys().map(|key| Step::HoldVanishes(*key)));
        }
    }

    fn redis_steps(&self, state: &State, steps: &mut Vec<Step>) {
        let bounds = &self.bounds;
        if state.losses < bounds.losses {
            if state.gate.epoch.is_some() {
                steps.push(Step::Wipe);
            }
            if bounds.roll_back && state.image.is_none() {
                steps.push(Step::Save);
            }
            if state
                .image
                .as_deref()
                .is_some_and(|image| *image != state.gate)
            {
                steps.push(Step::RollBack);
            }
        }
        if state.rebuilds.len() < bounds.rebuilds && !state.gate.is_open() {
            steps.push(Step::RebuildLooks);
        }
        for n in 0..u8::try_from(state.rebuilds.len()).unwrap_or(0) {
            let begins = matches!(state.rebuilds[usize::from(n)], Rebuild::Looked { .. });
            // Begun as often as Redis may be lost, and once more by each that looks at once.
            if !begins || state.epochs < 1 + u32::from(bounds.losses) + 2 {
                steps.push(Step::RebuildSteps(n));
            }
            steps.push(Step::RebuildDies(n));
        }
    }
}
