//! PostgreSQL: the only package that names sqlx. It decides; everything else follows (P1).
//!
//! - Functions take `&mut Tx` (or `&mut Conn`, or `&Store` for a read of its own) and never begin
//!   or end a transaction. [`Store::begin`] and [`Tx::commit`] are called by use cases alone.
//! - **P14**: work between `begin` and `commit` runs in a spawned task whose handle is awaited; a
//!   client that hangs up then drops the handle, not a half-done transaction.
//! - **Lock order** everywhere: idempotency (by hold id), inbox, orders (by id), payments,
//!   buyer units, stock (by SKU), then append-only tables. Each class is locked sorted; text keys
//!   are `collate "C"`, so that Rust's order is SQL's.
//! - Inserts come as arrays through `unnest`; updates find rows by `= any($1)` and their values by
//!   `array_position`, because `update .. from unnest` grows with the table.

pub mod adjustments;
pub mod audit;
pub mod buyer_units;
pub mod clock;
pub mod dead_letters;
pub mod error;
pub mod expiry;
pub mod heartbeats;
pub mod holds;
pub mod idempotency;
pub mod inbox;
pub mod lease;
pub mod migrate;
pub mod orders;
pub mod outages;
pub mod outbox;
pub mod payments;
mod pool;
pub mod probe;
pub mod refund_executions;
pub mod refunds;
pub mod settlement;
pub mod skus;
pub mod stock;
pub mod sweep;
mod text;
pub mod timeline;
pub mod verify;

pub use clock::PgClock;
pub use error::{Result, StoreError};
pub use lease::Lease;
pub use migrate::migrate;
pub use orders::Order;
pub use pool::{Conn, PooledConn, SILENT_IN_TRANSACTION, Store, StoreOptions, Tx};
pub use probe::Probe;
