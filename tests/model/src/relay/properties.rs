//! What must hold in every state.

use stateright::Property;

use super::{Relay, State, Writer};
use crate::Mutation;

pub(super) fn all() -> Vec<Property<Relay>> {
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
        Property::always(
            "the relay skips no event",
            |model: &Relay, state: &State| {
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
            },
        ),
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
                    writers
                        .any(|writer| matches!(writer, Writer::Committed { id, .. } if id == one))
                })
            },
        ),
    ]
}
