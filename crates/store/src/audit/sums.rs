//! I2 and I3 of all stock without reading all history each time: what ended orders did to stock is
//! added up once, in slices by id, and a comparison reads the open orders and those that are newer.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::{AssertSqlSafe, Connection, Row, postgres::PgRow};
use uuid::Uuid;

use super::{
    Auditor, Finding,
    findings::findings,
    rules::{self, OFFENDERS_COUNTED},
};
use crate::{Conn, Result, error::Doing};

const DOING: &str = "add up what orders did to stock";

/// What the orders up to a place did to stock.
#[derive(Debug, Clone, Default)]
pub struct Sums {
    /// The place.
    upto: Uuid,
    /// Orders up to it that were RESERVED when they were last looked at: they are not in the sums.
    open: Vec<Uuid>,
    skus: BTreeMap<String, Units>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Units {
    /// Of lines of CONFIRMED orders.
    sold: i64,
    /// By movements.
    moved_held: i64,
    /// By movements.
    moved_sold: i64,
}

impl Sums {
    fn add(&mut self, rows: &[PgRow]) -> Result<()> {
        for row in rows {
            let of_sku = self.skus.entry(row.try_get(0).doing(DOING)?).or_default();
            of_sku.sold += row.try_get::<i64, _>(1).doing(DOING)?;
            of_sku.moved_held += row.try_get::<i64, _>(2).doing(DOING)?;
            of_sku.moved_sold += row.try_get::<i64, _>(3).doing(DOING)?;
        }
        Ok(())
    }
}

impl Auditor {
    /// Adds the next `count` lines, of orders up to `until` at most. No order with an id up to it may
    /// appear any more. Returns whether there are more.
    ///
    /// # Errors
    /// PostgreSQL is away; the sums are as they were.
    pub async fn extend(&self, sums: &mut Sums, until: Uuid, count: i64) -> Result<bool> {
        if until <= sums.upto {
            return Ok(false);
        }
        let mut conn = self.store.conn().await?;
        let mut tx = conn.begin().await.doing(DOING)?;
        let last: Option<Uuid> = sqlx::query_scalar(
            "select order_id from order_lines where order_id > $1 and order_id <= $2
             order by order_id offset $3 limit 1",
        )
        .bind(sums.upto)
        .bind(until)
        .bind(count - 1)
        .fetch_optional(&mut *tx)
        .await
        .doing(DOING)?;
        let upto = last.unwrap_or(until);
        let ended = sqlx::query(AssertSqlSafe(ended(OF_A_RANGE)))
            .bind(sums.upto)
            .bind(upto)
            .fetch_all(&mut *tx)
            .await
            .doing(DOING)?;
        let open: Vec<Uuid> = sqlx::query_scalar(
            "select id from orders where id > $1 and id <= $2 and status = 'RESERVED'",
        )
        .bind(sums.upto)
        .bind(upto)
        .fetch_all(&mut *tx)
        .await
        .doing(DOING)?;
        tx.rollback().await.doing(DOING)?;
        sums.add(&ended)?;
        sums.open.extend(open);
        sums.upto = upto;
        Ok(last.is_some())
    }

    /// Adds the orders that were open and have ended since.
    ///
    /// # Errors
    /// PostgreSQL is away; the sums are as they were.
    pub async fn settle(&self, sums: &mut Sums) -> Result<()> {
        if sums.open.is_empty() {
            return Ok(());
        }
        let mut conn = self.store.conn().await?;
        let mut tx = conn.begin().await.doing(DOING)?;
        let open = still_open(&mut tx, &sums.open).await?;
        let known: BTreeSet<Uuid> = open.iter().copied().collect();
        let gone: Vec<Uuid> = sums
            .open
            .iter()
            .copied()
            .filter(|id| !known.contains(id))
            .collect();
        let ended = sqlx::query(AssertSqlSafe(ended(&of_orders("$1"))))
            .bind(gone)
            .fetch_all(&mut *tx)
            .await
            .doing(DOING)?;
        tx.rollback().await.doing(DOING)?;
        sums.add(&ended)?;
        sums.open = open;
        Ok(())
    }

    /// I2 and I3 of all SKUs: the sums, and what has come since, against stock.
    ///
    /// # Errors
    /// PostgreSQL is away.
    pub async fn compare(&self, sums: &Sums) -> Result<Vec<Finding>> {
        let names: Vec<&str> = sums.skus.keys().map(String::as_str).collect();
        let column = |of: fn(&Units) -> i64| sums.skus.values().map(of).collect::<Vec<i64>>();
        let mut conn = self.store.conn().await?;
        let rows = sqlx::query(AssertSqlSafe(since_sums()))
            .bind(names)
            .bind(column(|units| units.sold))
            .bind(column(|units| units.moved_held))
            .bind(column(|units| units.moved_sold))
            .bind(sums.upto)
            .bind(&sums.open)
            .fetch_all(&mut *conn)
            .await
            .doing("compare stock with what orders did to it")?;
        findings(rules::SUMS, rows)
    }
}

async fn still_open(conn: &mut Conn, orders: &[Uuid]) -> Result<Vec<Uuid>> {
    sqlx::query_scalar(
        "select k.id from unnest($1::uuid[]) as k (id)
         where (select status from orders where id = k.id) = 'RESERVED'",
    )
    .bind(orders)
    .fetch_all(conn)
    .await
    .doing(DOING)
}

/// Lines of orders after $1, up to $2.
const OF_A_RANGE: &str = "select order_id, sku, quantity from order_lines
                          where order_id > $1 and order_id <= $2";

/// Lines of the orders in the array `ids`, asked for one by one: for many of them the planner would
/// read the whole table, which is most of it history.
fn of_orders(ids: &str) -> String {
    format!(
        "select x.* from unnest({ids}::uuid[]) as k (id)
         cross join lateral (select order_id, sku, quantity from order_lines
                             where order_id = k.id offset 0) x"
    )
}

/// Lines, each with its order's status, `null` without an order, and with what history says of it.
/// Asked per line: see [`rules::ORDERS`]; and `offset` keeps it so.
fn told(lines: &str) -> String {
    format!(
        "select l.sku, l.quantity, o.status, h.held, h.sold
         from ({lines}) l
         left join lateral (select status from orders where id = l.order_id offset 0) o on true
         cross join lateral (
             select coalesce(sum(case to_status when 'RESERVED' then 1 else -1 end), 0) as held,
                    count(*) filter (where to_status = 'CONFIRMED') as sold
             from order_history where order_id = l.order_id) h"
    )
}

/// Per SKU what ended orders did: sold by lines, held and sold by movements.
fn ended(lines: &str) -> String {
    format!(
        "select sku, coalesce(sum(quantity) filter (where status = 'CONFIRMED'), 0)::bigint,
                coalesce(sum(quantity * held), 0)::bigint,
                coalesce(sum(quantity * sold), 0)::bigint
         from ({}) x
         where status is distinct from 'RESERVED'
         group by sku",
        told(lines)
    )
}

/// The rules of [`rules::SUMS`], in their order, from what is known of SKUs (names $1, sold $2, held
/// and sold by movements $3 and $4), and the lines of orders above $5 and of those in $6.
fn since_sums() -> String {
    let newer = told("select order_id, sku, quantity from order_lines where order_id > $5");
    let open = told(&of_orders("$6"));
    format!(
        "with recent as materialized (
             select sku, sum(quantity) filter (where status = 'RESERVED') as held,
                    sum(quantity) filter (where status = 'CONFIRMED') as sold,
                    sum(quantity * held) as moved_held, sum(quantity * sold) as moved_sold
             from ({newer} union all {open}) x
             group by sku),
         known as materialized (
             select * from unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[])
                               as k (sku, sold, moved_held, moved_sold)),
         told as materialized (
             select s.sku, s.on_hand, s.held, s.sold, coalesce(r.held, 0) as of_held,
                    coalesce(k.sold, 0) + coalesce(r.sold, 0) as of_sold,
                    coalesce(k.moved_held, 0) + coalesce(r.moved_held, 0) as moved_held,
                    coalesce(k.moved_sold, 0) + coalesce(r.moved_sold, 0) as moved_sold
             from stock s left join known k on k.sku = s.sku left join recent r on r.sku = s.sku)
         (select 0, format('%s: held %s, sold %s in stock; held %s, sold %s in orders', sku, held,
                           sold, of_held, of_sold)
          from told where held <> of_held or sold <> of_sold limit {OFFENDERS_COUNTED})
         union all
         (select 1, format('%s: on_hand %s in stock; %s by adjustments', t.sku, t.on_hand,
                           coalesce(a.sum, 0))
          from told t
          left join (select sku, sum(delta) as sum from stock_adjustments group by sku) a using (sku)
          where t.on_hand <> coalesce(a.sum, 0) limit {OFFENDERS_COUNTED})
         union all
         (select 2, format('%s: held %s, sold %s in stock; held %s, sold %s by movements', sku, held,
                           sold, moved_held, moved_sold)
          from told where held <> moved_held or sold <> moved_sold limit {OFFENDERS_COUNTED})"
    )
}
