//! What every service needs and none of which is about orders: configuration, telemetry,
//! shutdown, the clock, periodic tasks and the operations port. Imports nothing of ours.

pub mod clock;
pub mod config;
pub mod ops;
pub mod periodic;
pub mod shutdown;
pub mod telemetry;

pub use config::{CommonConfig, Environment, PaymentsMode};
pub use ops::{Ops, serve};
pub use shutdown::Shutdown;
