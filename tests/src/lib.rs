//! What the end-to-end tests share: a world of its own per test on real servers, a client, waiting
//! for conditions, and proxies that break connections.

pub mod api;
pub mod kafka;
pub mod proxy;
pub mod wait;
pub mod world;

pub use api::Api;
pub use wait::wait_for;
pub use world::{Options, World};
