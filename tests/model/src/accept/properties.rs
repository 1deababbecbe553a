//! What must hold in every state.

use std::collections::BTreeSet;

use domain::OrderStatus;
use stateright::Property;

use super::{Accept, Broken, Phase, Rebuild, State};
use crate::protocol::{Key, pg::View};

pub(super) fn all() -> Vec<Property<Accept>> {
    vec![
        Property::always("never oversold", |_, state: &State| !state.pg.oversold()),
        Property::always(
            "stock and buyers' units are what the orders say",
            |_, state: &State| state.pg.counts_are_right(),
        ),
        Property::always("one order per key", |_, state: &State| {
            let mut keys = BTreeSet::new();
            state.pg.orders.values().all(|order| keys.insert(order.key))
        }),
        Property::always("a key that is taken has its order", |_, state: &State| {
            let mut keys = state.pg.keys.values();
            keys.all(|row| state.pg.orders.contains_key(&row.order))
        }),
        Property::always("an accepted key is never refused", |_, state: &State| {
            state.broken != Some(Broken::RefusedAccepted)
        }),
        Property::always(
            "nothing is accepted past its deadline",
            |_, state: &State| state.broken != Some(Broken::AcceptedLate),
        ),
        Property::always(
            "a refusal is overtaken only when the gate erred",
            |_, state: &State| state.broken != Some(Broken::RefusedThenAccepted),
        ),
        Property::always(
            "another body is never answered with the order",
            |_, state: &State| state.broken != Some(Broken::ReplayedOther),
        ),
        Property::always("held is the sum of its holds", |_, state: &State| {
            state.gate.held_is_the_sum_of_holds()
        }),
        Property::always(
            "the gate promises no more than there is",
            |_, state: &State| promises_no_more(state),
        ),
        Property::always("at rest the gate is exact", at_rest_exact),
    ]
}

/// While nothing was lost: what an open gate would let through is there, but for live orders that
/// are about to be kept.
fn promises_no_more(state: &State) -> bool {
    let (Some(there), Some(row)) = (state.gate.available(0), state.pg.skus[0]) else {
        return true;
    };
    if !state.clean || !state.gate.is_open() {
        return true;
    }
    let behind = state.gate.rows[0].is_none_or(|gate| gate.register.version < row.version);
    let missing: i32 = state
        .pg
        .orders
        .iter()
        // Sold units leave the limit when the register comes.
        .filter(|(_, order)| match order.status {
            OrderStatus::Reserved => true,
            OrderStatus::Confirmed => behind,
            OrderStatus::Canceled | OrderStatus::Expired => false,
        })
        // Missing, or there with the lines of another body: a keep replaces them.
        .filter(|(_, order)| at_the_gate(state, order.key) < order.hold.units())
        .filter(|(number, order)| {
            let key = order.key;
            let about = state.queued & (1 << key) != 0
                || state
                    .syncs
                    .iter()
                    .any(|sync| sync.key == key && sync.view != View::Released)
                || state
                    .rebuilds
                    .iter()
                    .any(|one| matches!(one, Rebuild::Read { live, .. } if live.contains(&key)));
            let asked = usize::try_from(**number)
                .ok()
                .and_then(|place| state.attempts.get(place))
                .is_some_and(|attempt| attempt.phase == Phase::Unknown);
            about || asked
        })
        .map(|(_, order)| order.hold.units() - at_the_gate(state, order.key))
        .sum();
    there <= row.on_hand - row.held - row.sold + missing
}

/// Units of the hold of a key.
fn at_the_gate(state: &State, key: Key) -> i32 {
    let stored = state.gate.holds.get(&key);
    stored.map_or(0, |stored| stored.hold.units())
}

/// When nothing is under way, the nets leave the gate as PostgreSQL says.
fn at_rest_exact(model: &Accept, state: &State) -> bool {
    let busy = state.attempts.iter().any(super::Attempt::is_under_way)
        || state.zombie.is_some()
        || state.queued != 0
        || !state.syncs.is_empty()
        || !state.rebuilds.is_empty();
    if busy || state.broken.is_some() {
        return true;
    }
    let mut mended = state.clone();
    model.mend(&mut mended);
    if mended.gate != state.gate {
        model.tally.hit("the nets have to mend the gate");
    }
    is_exact(&mended)
}

fn is_exact(state: &State) -> bool {
    let Some(sku) = state.pg.skus[0] else {
        return true;
    };
    let row = state.gate.rows[0].unwrap_or_default();
    let live = state
        .pg
        .orders
        .values()
        .filter(|order| !order.status.is_end());
    let live: BTreeSet<_> = live.map(|order| order.key).collect();
    let there: BTreeSet<_> = state.gate.holds.keys().copied().collect();
    row.register == sku.register()
        && row.held == sku.held
        && live == there
        && state.gate.bought[0] == state.pg.bought[0]
}
