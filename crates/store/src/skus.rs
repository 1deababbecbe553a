//! The catalogue. A change of it raises `stock.version`, so that the gate takes the new window and
//! limit; opening stock is an adjustment like any other (invariant I3).

use std::collections::BTreeMap;

use contracts::{HoldId, Money, Sku, Timestamp};
use domain::{Register, Shard};

use crate::{Store, Tx, error::Result};

/// Whether a SKU has a waiting room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum WaitingRoom {
    /// Never.
    #[default]
    Off,
    /// Always.
    On,
    /// While the queue is long.
    Auto,
}

impl WaitingRoom {
    /// The word in the database and in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Auto => "auto",
        }
    }

    /// The value of a word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Off, Self::On, Self::Auto]
            .into_iter()
            .find(|room| room.as_str() == word)
    }
}

/// A SKU as it is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkuPut {
    /// Which.
    pub sku: Sku,
    /// Opening stock; counts only when the SKU is new.
    pub on_hand: i64,
    /// Of one unit.
    pub unit_price: Money,
    /// The most units that one buyer may hold and own.
    pub per_customer_limit: Option<i32>,
    /// The sale is closed before.
    pub opens_at: Option<Timestamp>,
    /// The sale is closed from then on.
    pub closes_at: Option<Timestamp>,
    /// How long a reservation lasts.
    pub reservation_ttl_seconds: i32,
    /// Whether it has a waiting room.
    pub waiting_room: WaitingRoom,
    /// Where its gate lives; counts only when the SKU is new.
    pub shard: Shard,
}

/// A SKU as it is: catalogue and stock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkuRow {
    /// Which.
    pub sku: Sku,
    /// Where its gate lives.
    pub shard: Shard,
    /// Of one unit.
    pub unit_price: Money,
    /// The most units that one buyer may hold and own.
    pub per_customer_limit: Option<i32>,
    /// The sale is closed before.
    pub opens_at: Option<Timestamp>,
    /// The sale is closed from then on.
    pub closes_at: Option<Timestamp>,
    /// How long a reservation lasts.
    pub reservation_ttl_seconds: i32,
    /// Whether it has a waiting room.
    pub waiting_room: WaitingRoom,
    /// Units received and not written off.
    pub on_hand: i64,
    /// Units of RESERVED orders.
    pub held: i64,
    /// Units of CONFIRMED orders.
    pub sold: i64,
    /// Rises with every change but the accept's.
    pub version: i64,
}

impl SkuRow {
    /// What can still be reserved.
    #[must_use]
    pub fn available(&self) -> i64 {
        self.on_hand - self.held - self.sold
    }

    /// What the gate is told.
    #[must_use]
    pub fn register(&self) -> Register {
        Register {
            sku: self.sku.clone(),
            limit: self.on_hand - self.sold,
            version: self.version,
            opens_at_ms: self.opens_at.map(|at| at.timestamp_millis()),
            closes_at_ms: self.closes_at.map(|at| at.timestamp_millis()),
            per_customer_limit: self.per_customer_limit.map(i64::from),
        }
    }
}

/// What [`put`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// The SKU is new: its opening stock is an adjustment, and `STOCK_ADJUSTED` goes out.
    Created,
    /// The catalogue was changed, the stock not.
    Updated,
}

/// Creates or changes a SKU. `request_id` names the opening adjustment. Gaining a per-customer
/// limit counts the units of all live and confirmed orders; losing it forgets them.
///
/// # Errors
/// [`crate::StoreError::constraint`] names the rule that a value breaks.
pub async fn put(tx: &mut Tx, put: &SkuPut, request_id: HoldId) -> Result<Put> {
    let _ = (tx, put, request_id);
    todo!()
}

/// One SKU.
///
/// # Errors
/// No answer.
pub async fn get(store: &Store, sku: &Sku) -> Result<Option<SkuRow>> {
    let _ = (store, sku);
    todo!()
}

/// Several SKUs; those that do not exist are left out.
///
/// # Errors
/// No answer.
pub async fn find_many(store: &Store, skus: &[Sku]) -> Result<BTreeMap<Sku, SkuRow>> {
    let _ = (store, skus);
    todo!()
}

/// Where the gate of every SKU lives.
///
/// # Errors
/// No answer.
pub async fn shards(store: &Store) -> Result<BTreeMap<Sku, Shard>> {
    let _ = store;
    todo!()
}

/// What the gate is told of some SKUs.
///
/// # Errors
/// No answer.
pub async fn registers(store: &Store, skus: &[Sku]) -> Result<Vec<(Shard, Register)>> {
    let _ = (store, skus);
    todo!()
}

/// SKUs in order, after `after`, at most `limit`; of one shard, or of all.
///
/// # Errors
/// No answer.
pub async fn page(
    store: &Store,
    shard: Option<Shard>,
    after: Option<&Sku>,
    limit: i64,
) -> Result<Vec<SkuRow>> {
    let _ = (store, shard, after, limit);
    todo!()
}
