//! Every change of `on_hand`, each with its reason and the stock after it (invariant I3).

use contracts::{HoldId, Sku, Timestamp};
use uuid::Uuid;

use crate::{Store, Tx, error::Result, stock::StockRow};

/// A change that somebody asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewAdjustment {
    /// The hash of who asks, where and with which key.
    pub request_id: HoldId,
    /// SHA-256 of the canonical body.
    pub fingerprint: [u8; 32],
    /// Which SKU.
    pub sku: Sku,
    /// Signed: received units are positive.
    pub delta: i64,
    /// For people; 1 to 200 characters.
    pub reason: String,
}

/// A change that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adjustment {
    /// Its id.
    pub id: Uuid,
    /// Who asked, where and with which key.
    pub request_id: HoldId,
    /// SHA-256 of the canonical body.
    pub fingerprint: [u8; 32],
    /// Which SKU.
    pub sku: Sku,
    /// Signed.
    pub delta: i64,
    /// For people.
    pub reason: String,
    /// After the change.
    pub on_hand: i64,
    /// After the change.
    pub held: i64,
    /// After the change.
    pub sold: i64,
    /// After the change.
    pub version: i64,
    /// When.
    pub at: Timestamp,
}

/// What became of a [`NewAdjustment`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Adjusted {
    /// It was made now; `STOCK_ADJUSTED` goes out with this transaction.
    Done(Adjustment),
    /// The same key was used before; compare the fingerprints.
    Repeat(Adjustment),
    /// Fewer units would remain than are held and sold.
    BelowCommitted(StockRow),
    /// More units than a SKU can have.
    TooMany,
    /// No such SKU.
    UnknownSku,
}

/// The change that a request has made.
///
/// # Errors
/// No answer.
pub async fn find(store: &Store, request_id: HoldId) -> Result<Option<Adjustment>> {
    let _ = (store, request_id);
    todo!()
}

/// Locks the stock row, makes the change, writes its row and `STOCK_ADJUSTED`.
///
/// # Errors
/// Constraint `stock_adjustments_request_once` when the same key is used at this moment for
/// another SKU.
pub async fn insert(tx: &mut Tx, new: &NewAdjustment) -> Result<Adjusted> {
    let _ = (tx, new);
    todo!()
}
