//! Payment on a real PostgreSQL, with a provider in memory that fails as it is told. The provider
//! over HTTP has its tests where the services meet (`tests/`).
#![expect(
    clippy::unwrap_used,
    reason = "a test that can't go on should say where"
)]

mod charges;
mod gateway;
mod http_gateway;
mod journal;
mod outages;
mod refunds;
mod start;
mod webhooks;
mod world;
