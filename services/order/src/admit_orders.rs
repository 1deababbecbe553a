//! The gate stage: one call of the gate at a time per shard, and whatever has gathered meanwhile
//! (at most 128 orders) in the next. Nothing is decided here: what the gate lets through is decided
//! by the accept, what it refuses is looked up by key first (P2).
//!
//! When the process dies after the gate has held units, the sweep gives them back within 7 s.

use contracts::Code;
use domain::{Hold, Shard};
use platform::clock;
use reservations::{Gate, ReserveOutcome};
use store::{PgClock, Store};
use tokio::sync::mpsc;

use crate::{
    deciding::Deciding,
    look_up::{LookUp, Verdict},
    place_orders::{Admission, Asked, BATCH_MAX, Placed},
};

/// Where orders go from the gate.
#[derive(Debug, Clone)]
pub(crate) struct Next {
    pub(crate) accept: mpsc::Sender<Asked>,
    pub(crate) look_up: mpsc::Sender<LookUp>,
    pub(crate) deciding: Deciding,
    /// Where the accept decides: while it is away nothing is held.
    pub(crate) store: Store,
}

impl Next {
    /// Hands an order to the accept; gives it back when its queue is full.
    pub(crate) fn accept(&self, mut asked: Asked) -> Result<(), Box<Asked>> {
        asked.attempt = Some(self.deciding.begin(asked.request.hold_id));
        self.accept
            .try_send(asked)
            .map_err(|error| Box::new(error.into_inner()))
    }
}

/// Asks the gate of one shard until the entrance is closed and the queue is empty.
pub(crate) async fn run(
    shard: Shard,
    mut queue: mpsc::Receiver<Asked>,
    gate: Gate,
    pg_clock: PgClock,
    next: Next,
) {
    let mut batch: Vec<Asked> = Vec::with_capacity(BATCH_MAX);
    while queue.recv_many(&mut batch, BATCH_MAX).await > 0 {
        metrics::gauge!("queue_depth_orders", "stage" => "admit")
            .set(f64::from(u32::try_from(queue.len()).unwrap_or(u32::MAX)));
        let asked = drop_late(&mut batch);
        if asked.is_empty() {
            continue;
        }
        if next.store.is_away() {
            // CLOSED: nothing can be accepted, and units held now would be missing when it is back:
            // the gate would refuse for them (P10: an outage is never a 410).
            for one in asked {
                one.answer(Placed::Unavailable);
            }
            continue;
        }
        // The windows are judged by PostgreSQL's clock; without a reading nothing could be accepted.
        let now_ms = pg_clock.now().map_or(0, |now| now.timestamp_millis());
        let holds: Vec<Hold> = asked.iter().map(hold).collect();
        let outcomes = reserve(&gate, shard, now_ms, &holds).await;
        for (asked, outcome) in asked.into_iter().zip(outcomes) {
            pass_on(asked, outcome, &next);
        }
    }
}

/// One outcome per hold; a call that fails is no answer.
async fn reserve(gate: &Gate, shard: Shard, now_ms: i64, holds: &[Hold]) -> Vec<ReserveOutcome> {
    platform::crash_point!("cp1", err => return vec![ReserveOutcome::NoGate; holds.len()]);
    let outcomes = gate.reserve(shard, now_ms, holds).await;
    platform::crash_point!("cp2", err => return vec![ReserveOutcome::NoGate; holds.len()]);
    outcomes
}

/// What can still be served; the late are answered that nothing was taken.
pub(crate) fn drop_late(batch: &mut Vec<Asked>) -> Vec<Asked> {
    let now = clock::monotonic();
    let (late, timely): (Vec<Asked>, Vec<Asked>) =
        batch.drain(..).partition(|asked| asked.is_late(now));
    for asked in late {
        asked.answer(Placed::Unavailable);
    }
    timely
}

fn hold(asked: &Asked) -> Hold {
    Hold {
        hold_id: asked.request.hold_id,
        buyer: asked.request.buyer.clone(),
        lines: asked.request.lines.clone(),
    }
}

fn pass_on(mut asked: Asked, outcome: ReserveOutcome, next: &Next) {
    let verdict = match outcome {
        ReserveOutcome::Ok => return to_accept(asked, Admission::Held, next),
        ReserveOutcome::Known => return to_accept(asked, Admission::Known, next),
        ReserveOutcome::NoGate | ReserveOutcome::Damaged => {
            return to_accept(asked, Admission::Direct, next);
        }
        ReserveOutcome::Other => Verdict::OtherHold,
        ReserveOutcome::NotOpen => Verdict::Refused(Code::SaleNotOpen),
        ReserveOutcome::Over => Verdict::Refused(Code::SaleOver),
        ReserveOutcome::Limit => Verdict::Refused(Code::PurchaseLimit),
        ReserveOutcome::SoldOut => Verdict::Refused(Code::SoldOut),
    };
    asked.admission = Admission::Known;
    if let Err(error) = next.look_up.try_send(LookUp { asked, verdict }) {
        error.into_inner().asked.answer(Placed::Unavailable);
    }
}

/// A full queue sheds: the hold goes by the sweep.
fn to_accept(mut asked: Asked, admission: Admission, next: &Next) {
    asked.admission = admission;
    if let Err(asked) = next.accept(asked) {
        asked.answer(Placed::Unavailable);
    }
}
