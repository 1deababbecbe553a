//! What became of the orders of one sale, for the load tool's verdict.

use std::collections::BTreeMap;

use contracts::{OrderId, Timestamp};
use sqlx::Row;
use uuid::Uuid;

use crate::{
    Result, Store,
    error::{Bounded, Doing},
};

/// How an order stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The word in the database.
    pub status: String,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
}

/// How these orders stand; one that is not there does not exist.
///
/// # Errors
/// PostgreSQL can't be reached.
pub async fn standings(store: &Store, orders: &[OrderId]) -> Result<BTreeMap<OrderId, Standing>> {
    let doing = "read how orders stand";
    let mut standings = BTreeMap::new();
    for chunk in orders.chunks(5_000) {
        let ids: Vec<Uuid> = chunk.iter().map(|order| order.0).collect();
        let rows =
            sqlx::query("select id, status, created_at, ended_at from orders where id = any($1)")
                .bind(ids)
                .fetch_all(&mut *store.conn().await?)
                .slowly(doing)
                .await?;
        for row in rows {
            let standing = Standing {
                status: row.try_get(1).doing(doing)?,
                created_at: row.try_get(2).doing(doing)?,
                ended_at: row.try_get(3).doing(doing)?,
            };
            standings.insert(OrderId(row.try_get(0).doing(doing)?), standing);
        }
    }
    Ok(standings)
}

/// Counts of a sale in progress.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Units that can still be taken.
    pub available: i64,
    /// Orders of these SKUs that are confirmed since the sale began.
    pub confirmed: i64,
    /// Orders since the sale began that have not ended.
    pub open: i64,
}

/// How a sale goes: `since` is an order id made when it began.
///
/// # Errors
/// PostgreSQL can't be reached.
pub async fn progress(store: &Store, skus: &[String], since: OrderId) -> Result<Progress> {
    let doing = "read how a sale goes";
    let row = sqlx::query(
        "select (select coalesce(sum(on_hand - held - sold), 0)::bigint from stock
                 where sku = any($1)),
                count(*) filter (where status = 'CONFIRMED'),
                count(*) filter (where status = 'RESERVED')
         from orders where id >= $2",
    )
    .bind(skus)
    .bind(since.0)
    .fetch_one(&mut *store.conn().await?)
    .slowly(doing)
    .await?;
    Ok(Progress {
        available: row.try_get(0).doing(doing)?,
        confirmed: row.try_get(1).doing(doing)?,
        open: row.try_get(2).doing(doing)?,
    })
}

/// Money captured for these orders that belongs to none and has not gone back, in minor units.
///
/// # Errors
/// PostgreSQL can't be reached.
pub async fn unrefunded(store: &Store, since: OrderId) -> Result<i64> {
    let doing = "read unrefunded money";
    let row = sqlx::query(
        "select coalesce(sum(p.captured_minor - p.refunded_minor), 0)::bigint
         from payments p left join orders o on o.id = p.order_id
         where p.order_id >= $1 and not (p.applied and o.status = 'CONFIRMED')",
    )
    .bind(since.0)
    .fetch_one(&mut *store.conn().await?)
    .slowly(doing)
    .await?;
    row.try_get(0).doing(doing)
}

/// Orders since `since` that had more than one end, or that share a hold.
///
/// # Errors
/// PostgreSQL can't be reached.
pub async fn double_effects(store: &Store, since: OrderId) -> Result<i64> {
    let doing = "read double effects";
    let row = sqlx::query(
        "select (select count(*) from (select order_id from order_history
                 where order_id >= $1 and to_status <> 'RESERVED'
                 group by order_id having count(*) > 1) e)
              + (select count(*) from (select hold_id from orders
                 where id >= $1 group by hold_id having count(*) > 1) h)",
    )
    .bind(since.0)
    .fetch_one(&mut *store.conn().await?)
    .slowly(doing)
    .await?;
    row.try_get(0).doing(doing)
}
