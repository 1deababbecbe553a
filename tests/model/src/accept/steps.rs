//! What a step does to requests, orders and Redis; how the gate follows is in [`super::follow`].

use domain::OrderStatus;

use super::{Accept, Admission, Answer, Attempt, Broken, Phase, Rebuild, Sending, State, Step};
use crate::{
    Mutation,
    protocol::{
        Key,
        gate::{Gate, GateOp, Word, apply},
        pg::{Verdict, View},
    },
};

impl Attempt {
    pub(super) fn is_under_way(&self) -> bool {
        match self.phase {
            Phase::Received | Phase::Refused(_) | Phase::Admitted | Phase::Unknown => true,
            Phase::Idle | Phase::Done(_) | Phase::Dead => false,
        }
    }

    /// Nothing of it matters any more.
    fn end(&mut self, phase: Phase) {
        *self = Self {
            phase,
            admission: Admission::Direct,
            touched: false,
            late: false,
            overtaken: false,
        };
    }
}

impl Accept {
    /// Takes a step; `false` when it changes nothing.
    pub(super) fn take(&self, state: &mut State, step: Step) -> bool {
        match step {
            Step::Send(n) => state.attempts[usize::from(n)].phase = Phase::Received,
            Step::Reserve(n) => self.reserve(state, n, true),
            Step::ReserveUnheard(n) => self.reserve(state, n, false),
            Step::GoDirect(n) => state.attempts[usize::from(n)].phase = Phase::Admitted,
            Step::LookUp(n) => self.look_up(state, n),
            Step::Deadline(n) => state.attempts[usize::from(n)].late = true,
            Step::Accept(n) => self.accept(state, n),
            Step::AcceptUnheard(n) => {
                let late = state.attempts[usize::from(n)].late;
                self.run_accept(state, n, late);
                self.unknown(state, n);
            }
            Step::AcceptFails(n) => self.unknown(state, n),
            Step::AcceptHangs(n) => {
                let key = self.bounds.sendings[usize::from(n)].key;
                if state.pg.keys.contains_key(&key) {
                    return false;
                }
                state.zombie = Some(n);
                self.unknown(state, n);
            }
            Step::GiveUp(n) => self.give_up(state, n),
            Step::ZombieCommits => self.zombie_commits(state),
            Step::ZombieAborts => state.zombie = None,
            Step::Crash(process) => self.crash(state, process),
            Step::End(order, to) => {
                state.pg.end(&[(order, to)], self.rules);
                self.free(state, to);
                let key = state.pg.orders.get(&order).map_or(0, |order| order.key);
                queue(state, key);
            }
            Step::SyncReads(key) => {
                state.queued &= !(1 << key);
                let sync = self.read(state, key);
                return self.start_sync(state, sync);
            }
            Step::SweepReads(key) => {
                let mut sync = self.read(state, key);
                if self.rules.breaks(Mutation::SweepReleasesLive) {
                    sync.view = View::Released;
                }
                return self.start_sync(state, sync);
            }
            Step::SyncApplies(n) => {
                let sync = state.syncs.remove(usize::from(n));
                self.apply_sync(state, &sync);
            }
            Step::SyncRepeats(n) => {
                let (sync, before) = (state.syncs[usize::from(n)], state.gate.clone());
                self.apply_sync(state, &sync);
                self.tally.hit("a sync comes twice");
                return state.gate != before;
            }
            Step::SyncIsLost(n) => {
                state.syncs.remove(usize::from(n));
                state.clean = false;
            }
            Step::Save => state.image = Some(Box::new(state.gate.clone())),
            Step::Wipe => {
                self.forget(state);
                state.gate = Gate::default();
                state.losses += 1;
            }
            Step::RollBack => {
                if let Some(image) = state.image.take() {
                    state.gate = *image;
                }
                state.losses += 1;
                state.clean = false;
            }
            Step::HoldVanishes(key) => {
                state.gate.holds.remove(&key);
            }
            Step::RebuildLooks => {
                let replaces = state.gate.epoch.map(|epoch| epoch.id);
                state.rebuilds.push(Rebuild::Looked { replaces });
            }
            Step::RebuildSteps(n) => self.rebuild(state, usize::from(n)),
            Step::RebuildDies(n) => {
                state.rebuilds.remove(usize::from(n));
            }
        }
        true
    }

    /// Units that an end gives back may go to anyone: what was refused before it was refused rightly.
    fn free(&self, state: &mut State, to: OrderStatus) {
        match to {
            OrderStatus::Canceled | OrderStatus::Expired => {}
            OrderStatus::Reserved | OrderStatus::Confirmed => return,
        }
        for attempt in &mut state.attempts {
            if attempt.overtaken {
                self.tally
                    .hit("a unit becomes free between a refusal and its twin's accept");
            }
            attempt.overtaken = false;
        }
    }

    /// The gate forgets holds of attempts that will not have them synced.
    pub(super) fn forget(&self, state: &mut State) {
        if state.attempts.iter().any(|attempt| attempt.touched) {
            state.clean = false;
        }
    }

    fn reserve(&self, state: &mut State, n: u8, heard: bool) {
        let place = usize::from(n);
        let (sending, request) = (self.bounds.sendings[place], self.request(n, false));
        if self.rules.breaks(Mutation::FlagAnsweringAlone)
            && state.sold_out[usize::from(sending.process)]
        {
            self.refuse(state, n);
            return;
        }
        let op = GateOp::Reserve {
            now: 0,
            key: request.key,
            hold: request.hold,
        };
        let word = apply(&mut state.gate, &op, self.rules);
        let attempt = &mut state.attempts[place];
        attempt.touched = matches!(word, Word::Ok | Word::Known);
        attempt.phase = Phase::Admitted;
        if !heard {
            return;
        }
        match word {
            Word::Ok => attempt.admission = Admission::Held,
            Word::Known => attempt.admission = Admission::Known,
            Word::NoGate | Word::Damaged => {}
            other => {
                if other == Word::SoldOut && self.rules.breaks(Mutation::FlagAnsweringAlone) {
                    state.sold_out[usize::from(sending.process)] = true;
                }
                attempt.phase = Phase::Refused(other);
                // Now, and not when it is answered: a unit may become free while the key is looked up.
                self.overtake(state, n);
            }
        }
    }

    fn look_up(&self, state: &mut State, n: u8) {
        let request = self.request(n, false);
        let Phase::Refused(word) = state.attempts[usize::from(n)].phase else {
            return;
        };
        let known = if self.rules.breaks(Mutation::RefusalWithoutLookUp) {
            None
        } else {
            state.pg.look_up(request.key, request.body, self.rules)
        };
        match known {
            Some(Verdict::KeyReused) => self.answer(state, n, Answer::KeyReused),
            Some(_) => {
                self.tally.hit("a look-up turns a refusal into a replay");
                queue(state, request.key);
                self.answer(state, n, Answer::Replayed);
            }
            None if word == Word::Other => {
                self.tally.hit("another body meets a request in flight");
                self.answer(state, n, Answer::InFlight);
            }
            None => {
                self.tally
                    .hit("the gate refuses and nothing stands behind it");
                self.say_no(state, n);
            }
        }
    }

    /// 410 at once.
    fn refuse(&self, state: &mut State, n: u8) {
        self.overtake(state, n);
        self.say_no(state, n);
    }

    /// Twins that hold units at the gate while this attempt finds none: if the gate is right, they
    /// have theirs.
    fn overtake(&self, state: &mut State, n: u8) {
        let Sending { key, body, .. } = self.bounds.sendings[usize::from(n)];
        for (place, sending) in self.bounds.sendings.iter().enumerate() {
            let other = &mut state.attempts[place];
            let twin = sending.key == key && sending.body == body && place != usize::from(n);
            if twin && other.touched && other.admission != Admission::Direct {
                other.overtaken = true;
            }
        }
    }

    /// 410: nothing was taken, and nothing is there.
    fn say_no(&self, state: &mut State, n: u8) {
        let key = self.bounds.sendings[usize::from(n)].key;
        let body = self.bounds.sendings[usize::from(n)].body;
        if state.pg.keys.get(&key).is_some_and(|row| row.body == body)
            && state.pg.order_of(key).is_some()
        {
            state.broken = Some(Broken::RefusedAccepted);
        }
        self.answer(state, n, Answer::Refused);
    }

    fn answer(&self, state: &mut State, n: u8, answer: Answer) {
        let sending = self.bounds.sendings[usize::from(n)];
        let row = state.pg.keys.get(&sending.key);
        if answer == Answer::Replayed && row.is_some_and(|row| row.body != sending.body) {
            state.broken = Some(Broken::ReplayedOther);
        }
        if answer == Answer::KeyReused {
            self.tally.hit("another body is answered 422");
        }
        state.attempts[usize::from(n)].end(Phase::Done(answer));
    }

    /// One transaction of the accept.
    fn run_accept(&self, state: &mut State, n: u8, late: bool) -> Verdict {
        let request = self.request(n, late);
        let verdict = state.pg.accept(0, &[request], self.rules)[0];
        if let Verdict::Accepted(_) = verdict {
            self.tally.hit("an order is accepted");
            let attempt = state.attempts[usize::from(n)];
            if late {
                state.broken = Some(Broken::AcceptedLate);
            }
            if attempt.overtaken {
                self.tally
                    .hit("a key is refused and another attempt of it accepted, after a loss");
                if state.clean && state.losses == 0 {
                    state.broken = Some(Broken::RefusedThenAccepted);
                }
            }
        }
        verdict
    }

    /// A run has no known outcome.
    fn unknown(&self, state: &mut State, n: u8) {
        if self.rules.breaks(Mutation::CompensateOnAnyError) {
            let request = self.request(n, false);
            let (key, hold) = (request.key, request.hold);
            apply(&mut state.gate, &GateOp::Release { key, hold }, self.rules);
            self.refuse(state, n);
        } else {
            state.attempts[usize::from(n)].phase = Phase::Unknown;
        }
    }

    fn accept(&self, state: &mut State, n: u8) {
        let before = state.attempts[usize::from(n)];
        let unknown = before.phase == Phase::Unknown;
        let direct = before.admission == Admission::Direct;
        let verdict = self.run_accept(state, n, before.late);
        let key = self.bounds.sendings[usize::from(n)].key;
        let (answer, gate_is_right) = match verdict {
            Verdict::Accepted(_) => {
                if unknown {
                    self.tally.hit("a lost COMMIT is run again and accepts");
                }
                if direct {
                    self.tally.hit("an order is accepted without the gate");
                }
                (Answer::Created, !direct)
            }
            Verdict::Before(order) if order == u32::from(n) => {
                self.tally.hit("a lost COMMIT is found committed");
                (Answer::Created, !direct)
            }
            Verdict::Before(_) => {
                self.tally.hit("a twin is answered with the first order");
                (Answer::Replayed, false)
            }
            Verdict::KeyReused => (Answer::KeyReused, direct),
            Verdict::Refused(..) => {
                self.tally
                    .hit("PostgreSQL refuses what the gate let through");
                (Answer::Refused, direct)
            }
            Verdict::Late => {
                self.tally.hit("an attempt past its deadline takes nothing");
                let answer = if unknown {
                    Answer::Unknown
                } else {
                    Answer::Unavailable
                };
                (answer, true)
            }
        };
        if !gate_is_right {
            queue(state, key);
        }
        if answer == Answer::Refused {
            self.refuse(state, n);
        } else {
            self.answer(state, n, answer);
        }
    }

    /// The deadline has passed: nothing is known, or nothing was taken. What an order of a run that
    /// nobody heard of lacks at the gate, only the nets find.
    fn give_up(&self, state: &mut State, n: u8) {
        let unknown = state.attempts[usize::from(n)].phase == Phase::Unknown;
        let answer = if unknown {
            state.clean = false;
            Answer::Unknown
        } else {
            Answer::Unavailable
        };
        self.answer(state, n, answer);
    }

    fn zombie_commits(&self, state: &mut State) {
        let Some(n) = state.zombie.take() else {
            return;
        };
        let verdict = self.run_accept(state, n, false);
        if matches!(verdict, Verdict::Accepted(_)) {
            self.tally
                .hit("a transaction commits that nobody waits for");
            state.clean = false;
        }
    }

    fn crash(&self, state: &mut State, process: u8) {
        state.crashes += 1;
        state.clean = false;
        for (place, sending) in self.bounds.sendings.iter().enumerate() {
            let attempt = &mut state.attempts[place];
            if sending.process == process && attempt.is_under_way() {
                attempt.end(Phase::Dead);
            }
        }
        state.queued = 0;
    }
}

fn queue(state: &mut State, key: Key) {
    state.queued |= 1 << key;
}
