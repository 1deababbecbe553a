//! The hot rows. Locked late and sorted, written once per transaction with absolute values.

use std::collections::BTreeMap;

use contracts::{Sku, Timestamp};
use domain::SkuView;

use crate::{Tx, error::Result};

/// A row of stock, locked by this transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StockRow {
    /// Units received and not written off.
    pub on_hand: i64,
    /// Units of RESERVED orders.
    pub held: i64,
    /// Units of CONFIRMED orders.
    pub sold: i64,
    /// Rises with every change but the accept's.
    pub version: i64,
    /// Whether the SKU has a per-customer limit, so that `buyer_units` counts.
    pub limited: bool,
}

impl StockRow {
    /// What can still be reserved.
    #[must_use]
    pub fn available(&self) -> i64 {
        self.on_hand - self.held - self.sold
    }
}

/// What the accept decides on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptView {
    /// For [`domain::plan_batch`]; SKUs that do not exist are absent.
    pub skus: BTreeMap<Sku, SkuView>,
    /// The locked rows.
    pub rows: BTreeMap<Sku, StockRow>,
    /// PostgreSQL's clock under the locks.
    pub now: Timestamp,
}

/// Locks the rows of these SKUs, sorted, and reads catalogue and clock under the locks.
///
/// # Errors
/// 55P03; [`crate::StoreError::CatalogueMoved`] when a limit came or went while it waited.
pub async fn lock_for_accept(tx: &mut Tx, skus: &[Sku]) -> Result<AcceptView> {
    let _ = (tx, skus);
    todo!()
}

/// Locks the rows of these SKUs, sorted.
///
/// # Errors
/// 55P03.
pub async fn lock(tx: &mut Tx, skus: &[Sku]) -> Result<BTreeMap<Sku, StockRow>> {
    let _ = (tx, skus);
    todo!()
}

/// Writes rows that this transaction has locked, with absolute values.
///
/// # Errors
/// [`crate::StoreError::Mismatch`] when a row is not there; the constraint when stock would leave
/// its bounds.
pub async fn write(tx: &mut Tx, rows: &BTreeMap<Sku, StockRow>) -> Result<()> {
    let _ = (tx, rows);
    todo!()
}
