//! Kafka: the only package that names rdkafka.
//!
//! - [`relay`] publishes the outbox: every committed event at least once, in order per key.
//! - [`consumer`] runs a [`Handler`]: every record has its effect once, or is a dead letter.
//! - [`admin`] makes, measures and reads topics for tools and tests.

pub mod admin;
mod backoff;
mod client;
pub mod consumer;
mod record;
pub mod relay;

pub use admin::AdminError;
pub use consumer::{
    Aside, Class, ConsumerConfig, ConsumerError, HandleError, Handler, Inbound, Position, Redriven,
    Rejection, Stall, Unclassified, redrive,
};
pub use relay::{Relay, RelayConfig, RelayError};
