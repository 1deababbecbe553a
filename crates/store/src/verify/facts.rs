//! The PostgreSQL side of the rules that compare it with Redis and Kafka.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::{Connection, Row};
use uuid::Uuid;

use crate::{
    Result, Store,
    error::{Bounded, Doing},
};

/// What the gate must say of a SKU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateSku {
    /// Where its gate lives.
    pub shard: i32,
    /// `on_hand - sold`.
    pub limit: i64,
    /// `held`.
    pub held: i64,
    /// Whether buyers are counted.
    pub limited: bool,
}

/// What the gate must say, as of one snapshot.
#[derive(Debug, Clone, Default)]
pub struct GateFacts {
    /// By SKU.
    pub skus: BTreeMap<String, GateSku>,
    /// Units per SKU of each RESERVED order's hold.
    pub holds: BTreeMap<Uuid, BTreeMap<String, i64>>,
    /// (SKU, `shop/customer`) -> units, of limited SKUs, without zeros.
    pub buyers: BTreeMap<(String, String), i64>,
}

/// Reads what the gate must say.
///
/// # Errors
/// PostgreSQL can't be reached.
pub async fn gate(store: &Store) -> Result<GateFacts> {
    let doing = "read what the gate must say";
    let mut conn = store.conn().await?;
    let mut tx = conn
        .begin_with("begin isolation level repeatable read, read only")
        .slowly(doing)
        .await?;
    let mut facts = GateFacts::default();
    let skus = sqlx::query(
        "select s.sku, k.shard, s.on_hand - s.sold, s.held, k.per_customer_limit is not null
         from stock s join skus k using (sku)",
    );
    for row in skus.fetch_all(&mut *tx).slowly(doing).await? {
        let sku = GateSku {
            shard: row.try_get(1).doing(doing)?,
            limit: row.try_get(2).doing(doing)?,
            held: row.try_get(3).doing(doing)?,
            limited: row.try_get(4).doing(doing)?,
        };
        facts.skus.insert(row.try_get(0).doing(doing)?, sku);
    }
    let holds = sqlx::query(
        "select o.hold_id, l.sku, l.quantity::bigint
         from orders o join order_lines l on l.order_id = o.id where o.status = 'RESERVED'",
    );
    for row in holds.fetch_all(&mut *tx).slowly(doing).await? {
        let hold: Uuid = row.try_get(0).doing(doing)?;
        let sku: String = row.try_get(1).doing(doing)?;
        facts
            .holds
            .entry(hold)
            .or_default()
            .insert(sku, row.try_get(2).doing(doing)?);
    }
    let buyers = sqlx::query(
        "select b.sku, b.shop || '/' || b.customer_id, b.units
         from buyer_units b join skus k using (sku)
         where b.units > 0 and k.per_customer_limit is not null",
    );
    for row in buyers.fetch_all(&mut *tx).slowly(doing).await? {
        let key = (row.try_get(0).doing(doing)?, row.try_get(1).doing(doing)?);
        facts.buyers.insert(key, row.try_get(2).doing(doing)?);
    }
    tx.rollback().slowly(doing).await?;
    Ok(facts)
}

/// Which of these events, published under our name, the outbox does not know: what PostgreSQL lost
/// after it was published (I23). Events older than the oldest partition are not judged.
///
/// # Errors
/// PostgreSQL can't be reached.
pub async fn unknown_events(store: &Store, ids: &[Uuid]) -> Result<BTreeSet<Uuid>> {
    let doing = "look events up in the outbox";
    let mut unknown = BTreeSet::new();
    for chunk in ids.chunks(10_000) {
        let rows = sqlx::query(
            "select k.id from unnest($1::uuid[]) as k (id)
             where not exists (select from outbox o where o.event_id = k.id)",
        )
        .bind(chunk)
        .fetch_all(&mut *store.conn().await?)
        .slowly(doing)
        .await?;
        for row in rows {
            unknown.insert(row.try_get(0).doing(doing)?);
        }
    }
    Ok(unknown)
}

/// One row of stock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Units {
    /// Received and not written off.
    pub on_hand: i64,
    /// Held by live orders.
    pub held: i64,
    /// Of confirmed orders.
    pub sold: i64,
}

/// All rows of stock, by SKU.
///
/// # Errors
/// PostgreSQL can't be reached.
pub async fn stock(store: &Store) -> Result<BTreeMap<String, Units>> {
    let doing = "read stock";
    let rows = sqlx::query("select sku, on_hand, held, sold from stock")
        .fetch_all(&mut *store.conn().await?)
        .slowly(doing)
        .await?;
    let mut stock = BTreeMap::new();
    for row in rows {
        let units = Units {
            on_hand: row.try_get(1).doing(doing)?,
            held: row.try_get(2).doing(doing)?,
            sold: row.try_get(3).doing(doing)?,
        };
        stock.insert(row.try_get(0).doing(doing)?, units);
    }
    Ok(stock)
}

/// Money of one gateway key as our tables know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Captured {
    /// In minor units.
    pub captured: i64,
    /// In minor units.
    pub refunded: i64,
}

/// Captures and refunds per gateway key.
///
/// # Errors
/// PostgreSQL can't be reached.
pub async fn captures(store: &Store) -> Result<BTreeMap<String, Captured>> {
    let doing = "read captures";
    let rows = sqlx::query(
        "select gateway_key, captured_minor, refunded_minor from payments
         where gateway_key is not null",
    )
    .fetch_all(&mut *store.conn().await?)
    .slowly(doing)
    .await?;
    let mut captures = BTreeMap::new();
    for row in rows {
        let captured = Captured {
            captured: row.try_get(1).doing(doing)?,
            refunded: row.try_get(2).doing(doing)?,
        };
        captures.insert(row.try_get(0).doing(doing)?, captured);
    }
    Ok(captures)
}
