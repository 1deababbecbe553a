//! Charges, voids and refunds through the payment gateway; receives its webhooks.
//!
//! - [`charge_payments`]: the consumer of `orders.v1`; guards, charges ([`pool`]).
//! - [`charge_missed`]: orders that lived through an outage of ours.
//! - [`record_results`]: one way for everything that the gateway says.
//! - [`sweep_payments`], [`execute_refunds`]: unknown outcomes are asked for, never guessed.
//! - [`compare_journal`]: what the gateway's own journal says otherwise.
//! - [`webhooks`], [`http`]: signed hints.
//! - [`gateway`] is the port to a provider, [`http_gateway`] the provider over HTTP.

pub mod charge_missed;
pub mod charge_payments;
pub mod compare_journal;
pub mod config;
pub mod desk;
pub mod execute_refunds;
pub mod gateway;
pub mod http;
pub mod http_gateway;
pub mod pool;
pub mod record_results;
mod service;
pub mod sweep_payments;
pub mod webhooks;
mod wire;

use std::time::Duration;

pub use config::Config;
pub use service::{RunError, run};

/// How long a row that is being worked on is left alone by the sweeps. Longer than a job's wait in
/// the pool and its call together; well within the grace that expiry gives.
pub const LEASE: Duration = Duration::from_secs(15);

/// Rows that one pass of a sweep takes.
const SWEEP_BATCH: i64 = 64;
/// Calls of one pass at a time.
const SWEEP_CONCURRENCY: usize = 16;
