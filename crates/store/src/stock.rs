//! The hot rows. Locked late and sorted, written once per transaction with absolute values.

use std::collections::BTreeMap;

use contracts::{Sku, Timestamp};
use domain::{Shard, SkuView};

use crate::{
    Tx,
    error::{Doing, Result, StoreError, expect_rows},
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
    let names: Vec<&str> = skus.iter().map(Sku::as_str).collect();
    // The clock is read from the materialised rows, so after their locks; the outer row is there
    // even when no SKU is.
    let rows = sqlx::query_as!(
        AcceptRow,
        r#"with locked as materialized (
               select s.sku, s.on_hand, s.held, s.sold, s.version, s.limited,
                      k.shard, k.unit_price_minor, k.currency, k.per_customer_limit,
                      k.opens_at, k.closes_at, k.reservation_ttl_seconds
               from stock s
                        join skus k on k.sku = s.sku
               where s.sku = any($1)
               order by s.sku
               for no key update of s)
           select l.sku as "sku?", l.on_hand as "on_hand?", l.held as "held?", l.sold as "sold?",
                  l.version as "version?", l.limited as "limited?", l.shard as "shard?",
                  l.unit_price_minor as "unit_price_minor?", l.currency as "currency?",
                  l.per_customer_limit as "per_customer_limit?", l.opens_at as "opens_at?",
                  l.closes_at as "closes_at?",
                  l.reservation_ttl_seconds as "reservation_ttl_seconds?",
                  clock_timestamp() as "now!"
           from (values (1)) as one
                    left join locked l on true"#,
        &names as &[&str],
    )
    .fetch_all(&mut **tx)
    .await
    .doing("lock stock for the accept")?;
    let mut view = AcceptView {
        skus: BTreeMap::new(),
        rows: BTreeMap::new(),
        now: rows.iter().map(|row| row.now).max().unwrap_or_default(),
    };
    for row in rows {
        if let Some((sku, seen, stock)) = row.read()? {
            view.skus.insert(sku.clone(), seen);
            view.rows.insert(sku, stock);
        }
    }
    Ok(view)
}

/// A SKU as the accept locks it, or the clock alone.
struct AcceptRow {
    sku: Option<String>,
    on_hand: Option<i64>,
    held: Option<i64>,
    sold: Option<i64>,
    version: Option<i64>,
    limited: Option<bool>,
    shard: Option<i32>,
    unit_price_minor: Option<i64>,
    currency: Option<String>,
    per_customer_limit: Option<i32>,
    opens_at: Option<Timestamp>,
    closes_at: Option<Timestamp>,
    reservation_ttl_seconds: Option<i32>,
    now: Timestamp,
}

impl AcceptRow {
    fn read(self) -> Result<Option<(Sku, SkuView, StockRow)>> {
        let (Some(sku), Some(on_hand), Some(held), Some(sold), Some(version), Some(limited)) = (
            self.sku,
            self.on_hand,
            self.held,
            self.sold,
            self.version,
            self.limited,
        ) else {
            return Ok(None);
        };
        if limited != self.per_customer_limit.is_some() {
            return Err(StoreError::CatalogueMoved { sku });
        }
        let stock = StockRow {
            on_hand,
            held,
            sold,
            version,
            limited,
        };
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
        Ok(Some((text::sku(&sku)?, view, stock)))
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
    .await
    .doing("lock stock")?;
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
    .await
    .doing("write stock")?;
    expect_rows("write stock", rows.len(), done.rows_affected())
}
