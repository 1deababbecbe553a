//! The hot rows. Locked late and sorted, written once per transaction with absolute values.

use std::collections::BTreeMap;

use contracts::{Sku, Timestamp};
use domain::{Shard, SkuView};

use crate::{
    Tx,
    error::{Bounded, Result, StoreError, expect_rows},
    text,
};

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
    let rows = lock(tx, skus).await?;
    let names: Vec<&str> = skus.iter().map(Sku::as_str).collect();
    // A statement of its own: its snapshot is taken under the locks, and the catalogue changes only
    // under them. A join in the locking statement would see the catalogue as it was before the wait.
    let found = sqlx::query_as!(
        AcceptRow,
        r#"select one.now as "now!", k.sku as "sku?", k.shard as "shard?",
                  k.unit_price_minor as "unit_price_minor?", k.currency as "currency?",
                  k.per_customer_limit as "per_customer_limit?", k.opens_at as "opens_at?",
                  k.closes_at as "closes_at?",
                  k.reservation_ttl_seconds as "reservation_ttl_seconds?"
           from (select clock_timestamp() as now) as one
                    left join skus k on k.sku = any($1)"#,
        &names as &[&str],
    )
    .fetch_all(&mut **tx)
    .answer("read the catalogue for the accept")
    .await?;
    let mut view = AcceptView {
        skus: BTreeMap::new(),
        now: found.iter().map(|row| row.now).max().unwrap_or_default(),
        rows,
    };
    for row in found {
        if let Some((sku, seen)) = row.read(&view.rows)? {
            view.skus.insert(sku, seen);
        }
    }
    Ok(view)
}

/// A SKU as the accept reads it, or the clock alone.
struct AcceptRow {
    now: Timestamp,
    sku: Option<String>,
    shard: Option<i32>,
    unit_price_minor: Option<i64>,
    currency: Option<String>,
    per_customer_limit: Option<i32>,
    opens_at: Option<Timestamp>,
    closes_at: Option<Timestamp>,
    reservation_ttl_seconds: Option<i32>,
}

impl AcceptRow {
    fn read(self, locked: &BTreeMap<Sku, StockRow>) -> Result<Option<(Sku, SkuView)>> {
        let Some(sku) = self.sku.as_deref().map(text::sku).transpose()? else {
            return Ok(None);
        };
        // A SKU that was made after the locks were had does not exist yet.
        let Some(stock) = locked.get(&sku) else {
            return Ok(None);
        };
        if stock.limited != self.per_customer_limit.is_some() {
            return Err(StoreError::CatalogueMoved {
                sku: sku.to_string(),
            });
        }
        let view = SkuView {
            available: stock.available(),
            unit_price: text::money(
                self.unit_price_minor.unwrap_or_default(),
                &self.currency.unwrap_or_default(),
            )?,
            per_customer_limit: self.per_customer_limit.map(i64::from),
            opens_at: self.opens_at,
            closes_at: self.closes_at,
            ttl_seconds: self.reservation_ttl_seconds.unwrap_or_default(),
            shard: Shard(self.shard.unwrap_or_default()),
        };
        Ok(Some((sku, view)))
    }
}

/// Locks the rows of these SKUs, sorted.
///
/// # Errors
/// 55P03.
pub async fn lock(tx: &mut Tx, skus: &[Sku]) -> Result<BTreeMap<Sku, StockRow>> {
    let names: Vec<&str> = skus.iter().map(Sku::as_str).collect();
    let rows = sqlx::query!(
        "select sku, on_hand, held, sold, version, limited
         from stock where sku = any($1) order by sku for no key update",
        &names as &[&str],
    )
    .fetch_all(&mut **tx)
    .answer("lock stock")
    .await?;
    rows.into_iter()
        .map(|row| {
            let stock = StockRow {
                on_hand: row.on_hand,
                held: row.held,
                sold: row.sold,
                version: row.version,
                limited: row.limited,
            };
            Ok((text::sku(&row.sku)?, stock))
        })
        .collect()
}

/// Writes rows that this transaction has locked, with absolute values.
///
/// # Errors
/// [`crate::StoreError::Mismatch`] when a row is not there; the constraint when stock would leave
/// its bounds.
pub async fn write(tx: &mut Tx, rows: &BTreeMap<Sku, StockRow>) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = rows.keys().map(Sku::as_str).collect();
    let column = |of: fn(&StockRow) -> i64| rows.values().map(of).collect::<Vec<i64>>();
    let done = sqlx::query!(
        "update stock
         set on_hand = ($2::bigint[])[array_position($1::text[], sku)],
             held    = ($3::bigint[])[array_position($1::text[], sku)],
             sold    = ($4::bigint[])[array_position($1::text[], sku)],
             version = ($5::bigint[])[array_position($1::text[], sku)]
         where sku = any($1)",
        &names as &[&str],
        &column(|row| row.on_hand),
        &column(|row| row.held),
        &column(|row| row.sold),
        &column(|row| row.version),
    )
    .execute(&mut **tx)
    .answer("write stock")
    .await?;
    expect_rows("write stock", rows.len(), done.rows_affected())
}
