//! The stock service on a real PostgreSQL and a real Redis. Each test has its own database and key
//! prefix; the handler is called as the consumer runner calls it. Fails when a server is missing.
#![expect(
    clippy::unwrap_used,
    reason = "a test that can't go on should say where"
)]

mod audit;
mod dead_money;
mod expiry;
mod gate;
mod gate_sales;
mod measure;
mod outage_chunks;
mod races;
mod reconcile;
mod refunds;
mod resend;
mod service;
mod settlement;
mod support;
