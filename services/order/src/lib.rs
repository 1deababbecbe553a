//! Places, reads and cancels orders over HTTP and Kafka; administers stock.
mod config; mod http; mod key; mod parse;
pub use config::Config;
