//! Every change of `on_hand`, each with its reason and the stock after it (invariant I3).

use contracts::{
    HoldId, Sku, Timestamp,
    envelope::source,
    events::{NewEvent, StockAdjusted, StockEvent},
};
use uuid::Uuid;

use crate::{
    Conn, Store, Tx,
    error::{Bounded, Result},
    outbox,
    stock::{self, StockRow},
    text,
};

/// The most units that a SKU can have: constraint `stock_on_hand_valid`.
pub const ON_HAND_MAX: i64 = 1_000_000_000_000;

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
    let mut conn = store.conn().await?;
    find_on(&mut conn, request_id).await
}

async fn find_on(conn: &mut Conn, request_id: HoldId) -> Result<Option<Adjustment>> {
    let row = sqlx::query!(
        "select id, request_id, fingerprint, sku, delta, reason, on_hand, held, sold, version, at
         from stock_adjustments where request_id = $1",
        request_id.0,
    )
    .fetch_optional(conn)
    .answer("find an adjustment")
    .await?;
    row.map(|row| {
        Ok(Adjustment {
            id: row.id,
            request_id: HoldId(row.request_id),
            fingerprint: text::fingerprint(&row.fingerprint)?,
            sku: text::sku(&row.sku)?,
            delta: row.delta,
            reason: row.reason,
            on_hand: row.on_hand,
            held: row.held,
            sold: row.sold,
            version: row.version,
            at: row.at,
        })
    })
    .transpose()
}

/// Locks the stock row, makes the change, writes its row and `STOCK_ADJUSTED`.
///
/// # Errors
/// Constraint `stock_adjustments_request_once` when the same key is used at this moment for
/// another SKU.
pub async fn insert(tx: &mut Tx, new: &NewAdjustment) -> Result<Adjusted> {
    let mut rows = stock::lock(tx, std::slice::from_ref(&new.sku)).await?;
    if let Some(before) = find_on(tx, new.request_id).await? {
        return Ok(Adjusted::Repeat(before));
    }
    let Some(row) = rows.get_mut(&new.sku) else {
        return Ok(Adjusted::UnknownSku);
    };
    match row.on_hand.checked_add(new.delta) {
        None => return Ok(Adjusted::TooMany),
        Some(on_hand) if on_hand > ON_HAND_MAX => return Ok(Adjusted::TooMany),
        Some(on_hand) if on_hand < row.held + row.sold => {
            return Ok(Adjusted::BelowCommitted(*row));
        }
        Some(on_hand) => row.on_hand = on_hand,
    }
    row.version += 1;
    let after = *row;
    stock::write(tx, &rows).await?;
    record(tx, new, after).await.map(Adjusted::Done)
}

/// Writes the row and the event of a change that was made to a locked stock row.
pub(crate) async fn record(
    tx: &mut Tx,
    new: &NewAdjustment,
    after: StockRow,
) -> Result<Adjustment> {
    let id = contracts::ids::generate();
    let at = sqlx::query_scalar!(
        "insert into stock_adjustments
             (id, request_id, fingerprint, sku, delta, reason, on_hand, held, sold, version)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
         returning at",
        id,
        new.request_id.0,
        &new.fingerprint[..],
        new.sku.as_str(),
        new.delta,
        new.reason,
        after.on_hand,
        after.held,
        after.sold,
        after.version,
    )
    .fetch_one(&mut **tx)
    .answer("insert an adjustment")
    .await?;
    let event = StockEvent::Adjusted(StockAdjusted {
        sku: new.sku.clone(),
        quantity: new.delta,
        adjustment_id: id,
        on_hand: after.on_hand,
        held: after.held,
        sold: after.sold,
        version: after.version,
    });
    outbox::insert(
        tx,
        &[NewEvent::stock(
            source::ORDER,
            &new.sku,
            after.version,
            &event,
        )],
    )
    .await?;
    Ok(Adjustment {
        id,
        request_id: new.request_id,
        fingerprint: new.fingerprint,
        sku: new.sku.clone(),
        delta: new.delta,
        reason: new.reason.clone(),
        on_hand: after.on_hand,
        held: after.held,
        sold: after.sold,
        version: after.version,
        at,
    })
}
