//! Units that a buyer holds and owns, of SKUs with a per-customer limit only (invariant I9). A SKU
//! without a limit has no rows.

use std::collections::BTreeSet;

use contracts::Sku;
use domain::{Buyer, BuyerView};

use crate::{
    Store, Tx,
    error::{Bounded, Result, StoreError, expect_rows},
    text::{self, BuyerColumns},
};

/// Locks the rows of these buyers, sorted, inserting those that are missing. Comes before the
/// lock of stock.
///
/// # Errors
/// 55P03 when another transaction holds one for too long. [`StoreError::CatalogueMoved`] when a row
/// went between the insert and the lock, because the limit was taken away: it may be back already,
/// with units that this transaction would not see.
pub async fn lock(tx: &mut Tx, keys: &[(Sku, Buyer)]) -> Result<BuyerView> {
    let keys: BTreeSet<(Sku, Buyer)> = keys.iter().cloned().collect();
    if keys.is_empty() {
        return Ok(BuyerView::new());
    }
    insert_missing(tx, &keys).await?;
    let locked = lock_existing(tx, &keys).await?;
    match keys.iter().find(|key| !locked.contains_key(*key)) {
        None => Ok(locked),
        Some((sku, _)) => Err(StoreError::CatalogueMoved {
            sku: sku.to_string(),
        }),
    }
}

async fn insert_missing(tx: &mut Tx, keys: &BTreeSet<(Sku, Buyer)>) -> Result<()> {
    let columns = BuyerColumns::of(keys.iter());
    // By ordinality: Rust has sorted, and the arrays' own collation would sort otherwise.
    sqlx::query!(
        "insert into buyer_units (sku, shop, customer_id, units)
         select k.sku, k.shop, k.customer_id, 0
         from unnest($1::text[], $2::text[], $3::text[])
                  with ordinality as k (sku, shop, customer_id, position)
         order by k.position
         on conflict do nothing",
        &columns.skus as &[&str],
        &columns.shops as &[&str],
        &columns.customers as &[&str],
    )
    .execute(&mut **tx)
    .answer("insert buyers")
    .await
    .map(|_| ())
}

/// Locks those rows that are there, sorted.
pub(crate) async fn lock_existing(tx: &mut Tx, keys: &BTreeSet<(Sku, Buyer)>) -> Result<BuyerView> {
    let columns = BuyerColumns::of(keys.iter());
    let rows = sqlx::query!(
        "select b.sku, b.shop, b.customer_id, b.units
         from buyer_units b
         where (b.sku, b.shop, b.customer_id) in
               (select k.sku, k.shop, k.customer_id
                from unnest($1::text[], $2::text[], $3::text[]) as k (sku, shop, customer_id))
         order by b.sku, b.shop, b.customer_id
         for no key update of b",
        &columns.skus as &[&str],
        &columns.shops as &[&str],
        &columns.customers as &[&str],
    )
    .fetch_all(&mut **tx)
    .answer("lock buyers")
    .await?;
    rows.into_iter()
        .map(|row| {
            let buyer = text::buyer(&row.shop, &row.customer_id)?;
            Ok(((text::sku(&row.sku)?, buyer), row.units))
        })
        .collect()
}

/// Writes the units of rows that this transaction has locked, with absolute values.
pub(crate) async fn write(tx: &mut Tx, units: &BuyerView) -> Result<()> {
    let columns = BuyerColumns::of(units.keys());
    let values: Vec<i64> = units.values().copied().collect();
    let done = sqlx::query!(
        "insert into buyer_units (sku, shop, customer_id, units)
         select k.sku, k.shop, k.customer_id, k.units
         from unnest($1::text[], $2::text[], $3::text[], $4::bigint[])
                  as k (sku, shop, customer_id, units)
         on conflict (sku, shop, customer_id) do update set units = excluded.units",
        &columns.skus as &[&str],
        &columns.shops as &[&str],
        &columns.customers as &[&str],
        &values,
    )
    .execute(&mut **tx)
    .answer("write buyers' units")
    .await?;
    expect_rows("write buyers' units", units.len(), done.rows_affected())
}

/// Adds units to rows that this transaction has locked: `bought` of the plan.
///
/// # Errors
/// No answer.
pub async fn add(tx: &mut Tx, bought: &BuyerView) -> Result<()> {
    if bought.is_empty() {
        return Ok(());
    }
    let columns = BuyerColumns::of(bought.keys());
    let values: Vec<i64> = bought.values().copied().collect();
    let done = sqlx::query!(
        "insert into buyer_units as b (sku, shop, customer_id, units)
         select k.sku, k.shop, k.customer_id, k.units
         from unnest($1::text[], $2::text[], $3::text[], $4::bigint[])
                  as k (sku, shop, customer_id, units)
         on conflict (sku, shop, customer_id) do update set units = b.units + excluded.units",
        &columns.skus as &[&str],
        &columns.shops as &[&str],
        &columns.customers as &[&str],
        &values,
    )
    .execute(&mut **tx)
    .answer("add buyers' units")
    .await?;
    expect_rows("add buyers' units", bought.len(), done.rows_affected())
}

/// Deletes those rows without units that [`lock`] has inserted for nothing: a refusal stores nothing
/// (P1). The rows are locked by this transaction; whoever waits for one finds it gone and is told that
/// the catalogue moved.
///
/// # Errors
/// No answer.
pub async fn forget_empty(tx: &mut Tx, keys: &BTreeSet<(Sku, Buyer)>) -> Result<()> {
    if keys.is_empty() {
        return Ok(());
    }
    let columns = BuyerColumns::of(keys.iter());
    sqlx::query!(
        "delete from buyer_units
         where units = 0
           and (sku, shop, customer_id) in
               (select k.sku, k.shop, k.customer_id
                from unnest($1::text[], $2::text[], $3::text[]) as k (sku, shop, customer_id))",
        &columns.skus as &[&str],
        &columns.shops as &[&str],
        &columns.customers as &[&str],
    )
    .execute(&mut **tx)
    .answer("forget buyers without units")
    .await
    .map(|_| ())
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
    let (shop, customer) = after.map_or(("", ""), |buyer| {
        (buyer.shop.as_str(), buyer.customer.as_str())
    });
    let mut conn = store.conn().await?;
    let rows = sqlx::query!(
        "select shop, customer_id, units
         from buyer_units
         where sku = $1 and (shop, customer_id) > ($2, $3) and units > 0
         order by shop, customer_id
         limit $4",
        sku.as_str(),
        shop,
        customer,
        limit,
    )
    .fetch_all(&mut *conn)
    .answer("page buyers")
    .await?;
    rows.into_iter()
        .map(|row| Ok((text::buyer(&row.shop, &row.customer_id)?, row.units)))
        .collect()
}

/// The units of some buyers; those without a row are absent.
///
/// # Errors
/// No answer.
pub async fn find(store: &Store, keys: &[(Sku, Buyer)]) -> Result<BuyerView> {
    let columns = BuyerColumns::of(keys.iter());
    let mut conn = store.conn().await?;
    let rows = sqlx::query!(
        "select b.sku, b.shop, b.customer_id, b.units
         from buyer_units b
         where (b.sku, b.shop, b.customer_id) in
               (select k.sku, k.shop, k.customer_id
                from unnest($1::text[], $2::text[], $3::text[]) as k (sku, shop, customer_id))",
        &columns.skus as &[&str],
        &columns.shops as &[&str],
        &columns.customers as &[&str],
    )
    .fetch_all(&mut *conn)
    .answer("find buyers")
    .await?;
    rows.into_iter()
        .map(|row| {
            let buyer = text::buyer(&row.shop, &row.customer_id)?;
            Ok(((text::sku(&row.sku)?, buyer), row.units))
        })
        .collect()
}
