//! Pure rules: order and payment state machines, settlement table, batch planning.
