//! The gate: Redis and its scripts, as the fast and fallible refuser (protocol P2, P3, P7, P10).
//!
//! Guarantee: what the gate says never decides. A call that fails, times out or meets a shard that
//! is being rebuilt answers `NoGate`, and PostgreSQL decides without it; what the gate refuses is
//! looked up by key before it is believed. Every verb may be repeated: holds are counted by id and
//! limits by version.
//!
//! This is the only package that names redis, and it owns `lua/`.
#![warn(missing_docs)]

mod breaker;
mod buyers;
mod config;
mod connection;
mod due;
mod epoch;
mod error;
mod gate;
mod keys;
pub mod model;
mod outcome;
mod read;
mod script;
mod settle;
mod stored;
mod sync;
mod wire;

pub use buyers::BuyerUnits;
pub use config::GateConfig;
pub use connection::{Safety, ServerSeen};
pub use due::{DueHold, DueState};
pub use epoch::EpochState;
pub use error::GateError;
pub use gate::Gate;
pub use outcome::{
    BuyersOutcome, EpochOutcome, KeepOutcome, RegisterOutcome, ReserveOutcome, SettleOutcome,
};
pub use read::{GateRead, GateRow, GateSnapshot};
pub use script::{SCRIPTS, Script};
pub use stored::StoredHold;
pub use sync::SyncReport;
