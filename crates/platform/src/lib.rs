//! What every service needs and none of which is about orders: configuration, telemetry,
//! shutdown, the clock, periodic tasks and the operations port. Imports nothing of ours.

pub mod clock;
pub mod config;
#[cfg(feature = "failpoints")]
pub mod failpoints;
pub mod ops;
pub mod patience;
pub mod periodic;
pub mod shutdown;
pub mod telemetry;
pub mod watchdog;

pub use config::{CommonConfig, Environment, HoldConfig, PaymentsMode};
pub use ops::{Ops, serve};
pub use patience::Patience;
pub use shutdown::Shutdown;

/// Marks a place between two stores where a process can be told to die; `err` names what it does
/// when it is told to fail instead.
///
/// In an async context: `crash_point!("cp1");` or `crash_point!("cp1", err => return Err(..));`, with
/// `if CONDITION,` before `err` where the place is one only then.
/// Without the feature `failpoints` it is nothing at all.
#[cfg(feature = "failpoints")]
#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {
        $crate::failpoints::reach($name).await;
    };
    ($name:literal, err => $error:expr) => {
        if $crate::failpoints::reach($name).await == $crate::failpoints::Bite::Err {
            $error;
        }
    };
    ($name:literal, if $there:expr, err => $error:expr) => {
        if $there {
            $crate::crash_point!($name, err => $error);
        }
    };
}

/// Nothing: the feature `failpoints` is off.
#[cfg(not(feature = "failpoints"))]
#[macro_export]
macro_rules! crash_point {
    ($($tokens:tt)*) => {};
}
