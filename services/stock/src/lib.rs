//! The stock service: settles reservations, expires orders, asks for refunds, and keeps the gate in
//! line with PostgreSQL.
//!
//! One use case per file, named by its verb; the header of each lists its steps and what happens
//! when the process dies after each. Every use case is a function that can be called without
//! timers; [`run`] calls them.

pub mod audit;
mod clock_check;
mod config;
mod drift;
pub mod expire_orders;
mod health;
mod leader;
mod ledger;
mod pause;
pub mod prune_rows;
pub mod rebuild_gate;
pub mod reconcile;
pub mod refund_dead_money;
pub mod repair_drift;
pub mod request_refunds;
pub mod resend_events;
mod service;
pub mod settle_orders;
pub mod sweep_holds;
pub mod sync_gate;

pub use audit::Audit;
pub use config::Config;
pub use expire_orders::{ExpireOrders, Expired};
pub use repair_drift::{GateReport, RepairDrift, Repaired};
pub use resend_events::ResendEvents;
pub use service::{StartError, run};
pub use settle_orders::SettleOrders;

/// The stores that the use cases work on. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Stock {
    /// PostgreSQL.
    pub store: store::Store,
    /// Redis.
    pub gate: reservations::Gate,
}

/// A store that a use case needs is away, or says what it should not.
#[derive(Debug, thiserror::Error)]
pub enum StockError {
    /// PostgreSQL.
    #[error("the database failed")]
    Store(#[from] store::StoreError),
    /// Redis.
    #[error("the gate failed")]
    Gate(#[from] reservations::GateError),
}

impl StockError {
    /// Whether the same call may succeed later without anyone's help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.is_transient(),
            Self::Gate(error) => error.is_transient(),
        }
    }
    /// Whether it may be the fault of one row, so that the same work without it may succeed.
    #[must_use]
    pub fn may_be_of_a_row(&self) -> bool {
        match self {
            Self::Store(error) => error.may_be_of_a_row(),
            Self::Gate(_) => false,
        }
    }
}
