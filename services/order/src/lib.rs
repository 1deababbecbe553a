//! Places, reads and cancels orders over HTTP and Kafka; administers stock.
//!
//! [`run`] starts everything; a request is four files deep: `http/orders.rs`, `place_orders.rs`, then
//! the gate (`admit_orders.rs`) or the transaction (`accept_batch.rs`).

pub mod accept_batch;
mod accept_orders;
mod adjust_stock;
mod admit_orders;
mod cancel_order;
mod catalogue;
mod config;
mod deciding;
mod health;
mod http;
mod key;
mod look_up;
mod mode;
mod parse;
mod place_orders;
mod put_sku;
pub mod redrive_requests;
mod request_orders;
mod rerun;
mod service;
mod sync_gate;
mod watch_orders;

pub use catalogue::Catalogue;
pub use config::Config;
pub use service::{RunError, run};
