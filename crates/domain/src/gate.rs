//! What the gate is told, in the words of the protocol (P2). Shared by the crate that reads it from
//! PostgreSQL and the crate that writes it to Redis; neither knows the other.

use std::fmt;

use contracts::{CustomerId, HoldId, Line, Shop, Sku};

/// The SKUs whose gate keys share a hash tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Shard(pub i32);

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who holds units: a customer of a shop. Written `shop/customer`; a shop's name has no slash.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Buyer {
    /// The upstream service.
    pub shop: Shop,
    /// Its customer.
    pub customer: CustomerId,
}

impl fmt::Display for Buyer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.shop, self.customer)
    }
}

/// Units held for one request: its lines are canonical (sorted by SKU, one line per SKU).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// The hash of who asks, where and with which key.
    pub hold_id: HoldId,
    /// Who holds.
    pub buyer: Buyer,
    /// What.
    pub lines: Vec<Line>,
}

/// What the gate knows of a SKU. The higher version wins, so it may be written late or twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Register {
    /// What.
    pub sku: Sku,
    /// `on_hand - sold` in PostgreSQL.
    pub limit: i64,
    /// `stock.version`.
    pub version: i64,
    /// Milliseconds since the epoch; the sale is closed before.
    pub opens_at_ms: Option<i64>,
    /// Milliseconds since the epoch; the sale is closed from then on.
    pub closes_at_ms: Option<i64>,
    /// The most units that one buyer may hold and own.
    pub per_customer_limit: Option<i64>,
}

/// What PostgreSQL says of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HoldState {
    /// Its order is RESERVED: the gate keeps it.
    Live,
    /// Its order is CONFIRMED: the gate commits it.
    Committed,
    /// Its order was canceled or expired, or there is none: the gate releases it.
    Released,
}

/// A hold and what is to become of it at the gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldView {
    /// The hold as PostgreSQL knows it.
    pub hold: Hold,
    /// What is to become of it.
    pub state: HoldState,
}
