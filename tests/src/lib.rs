//! What the end-to-end tests share: a world of its own per test on real servers, a client, waiting
//! for conditions, and proxies that break connections.

pub mod api;
pub mod client;
pub mod kafka;
pub mod processes;
pub mod proxy;
pub mod sale;
pub mod wait;
pub mod world;

pub use api::Api;
pub use client::{Client, Told};
pub use sale::Sale;
pub use wait::wait_for;
pub use world::{Options, World};
