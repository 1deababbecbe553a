//! Units that a buyer holds and owns, of SKUs with a per-customer limit only (invariant I9). A SKU
//! without a limit has no rows.

use contracts::Sku;
use domain::{Buyer, BuyerView};

use crate::{Store, Tx, error::Result};

/// Locks the rows of these buyers, sorted, inserting those that are missing. Comes before the
/// lock of stock.
///
/// # Errors
/// 55P03 when another transaction holds one for too long.
pub async fn lock(tx: &mut Tx, keys: &[(Sku, Buyer)]) -> Result<BuyerView> {
    let _ = (tx, keys);
    todo!()
}

/// Adds units to rows that this transaction has locked: `bought` of the plan.
///
/// # Errors
/// No answer.
pub async fn add(tx: &mut Tx, bought: &BuyerView) -> Result<()> {
    let _ = (tx, bought);
    todo!()
}

/// Buyers of one SKU with their units (more than none), in order, after `after`, at most `limit`.
///
/// # Errors
/// No answer.
pub async fn page(
    store: &Store,
    sku: &Sku,
    after: Option<&Buyer>,
    limit: i64,
) -> Result<Vec<(Buyer, i64)>> {
    let _ = (store, sku, after, limit);
    todo!()
}

/// The units of some buyers; those without a row are absent.
///
/// # Errors
/// No answer.
pub async fn find(store: &Store, keys: &[(Sku, Buyer)]) -> Result<BuyerView> {
    let _ = (store, keys);
    todo!()
}
