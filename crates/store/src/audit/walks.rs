//! Everything that was ever written, in slices by key. Guarantee: a slice begins where the one
//! before it ended, so a walk to its end has seen each key once.

use sqlx::{AssertSqlSafe, Connection, Row};
use uuid::Uuid;

use super::{
    Auditor, Finding,
    findings::{Collected, findings},
    rules,
};
use crate::{Result, error::Doing};

/// A slice of a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice<K> {
    /// The last key of the slice; `None` when the walk has come to the end.
    pub last: Option<K>,
    /// What was found in it.
    pub findings: Vec<Finding>,
}

/// The key of a buyer's row: SKU, shop, customer.
pub type BuyerKey = (String, String, String);

impl Auditor {
    /// The next `count` orders after `after`, at most up to `until`: I2 (totals), I4 to I9, I15, I26
    /// of each.
    ///
    /// # Errors
    /// PostgreSQL is away.
    pub async fn orders_after(&self, after: Uuid, until: Uuid, count: i64) -> Result<Slice<Uuid>> {
        let doing = "walk along orders";
        let mut conn = self.store.conn().await?;
        let mut tx = conn.begin().await.doing(doing)?;
        let last: Option<Uuid> = sqlx::query_scalar(
            "select id from orders where id > $1 and id <= $2 order by id offset $3 limit 1",
        )
        .bind(after)
        .bind(until)
        .bind(count - 1)
        .fetch_optional(&mut *tx)
        .await
        .doing(doing)?;
        let rows = sqlx::query(AssertSqlSafe(self.orders.as_str()))
            .bind(after)
            .bind(last.unwrap_or(until))
            .fetch_all(&mut *tx)
            .await
            .doing(doing)?;
        tx.rollback().await.doing(doing)?;
        Ok(Slice {
            last,
            findings: findings(rules::ORDERS, rows)?,
        })
    }

    /// The rules of the walk once more for one slice.
    ///
    /// # Errors
    /// PostgreSQL is away.
    pub async fn orders_between(&self, after: Uuid, last: Uuid) -> Result<Vec<Finding>> {
        let mut conn = self.store.conn().await?;
        let rows = sqlx::query(AssertSqlSafe(self.orders.as_str()))
            .bind(after)
            .bind(last)
            .fetch_all(&mut *conn)
            .await
            .doing("walk along orders")?;
        findings(rules::ORDERS, rows)
    }

    /// The next `count` keys after `after`: I8 of each.
    ///
    /// # Errors
    /// PostgreSQL is away.
    pub async fn keys_after(&self, after: Uuid, count: i64) -> Result<Slice<Uuid>> {
        let doing = "walk along keys";
        let mut conn = self.store.conn().await?;
        let rows = sqlx::query(rules::KEYS)
            .bind(after)
            .bind(count)
            .fetch_all(&mut *conn)
            .await
            .doing(doing)?;
        let mut slice = Slice {
            last: None,
            findings: Vec::new(),
        };
        let mut found = Collected::new("I8");
        for row in &rows {
            slice.last = Some(row.try_get(0).doing(doing)?);
            found.take(row.try_get(1).doing(doing)?);
        }
        slice.findings.push(found.finding());
        if i64::try_from(rows.len()).is_ok_and(|rows| rows < count) {
            slice.last = None;
        }
        Ok(slice)
    }

    /// The next `count` buyers after `after`: I9 of each.
    ///
    /// # Errors
    /// PostgreSQL is away.
    pub async fn buyers_after(&self, after: &BuyerKey, count: i64) -> Result<Slice<BuyerKey>> {
        let doing = "walk along buyers";
        let mut conn = self.store.conn().await?;
        let rows = sqlx::query(rules::BUYERS)
            .bind(&after.0)
            .bind(&after.1)
            .bind(&after.2)
            .bind(count)
            .fetch_all(&mut *conn)
            .await
            .doing(doing)?;
        let mut slice = Slice {
            last: None,
            findings: Vec::new(),
        };
        let mut found = Collected::new("I9");
        for row in &rows {
            slice.last = Some((
                row.try_get(0).doing(doing)?,
                row.try_get(1).doing(doing)?,
                row.try_get(2).doing(doing)?,
            ));
            found.take(row.try_get(3).doing(doing)?);
        }
        slice.findings.push(found.finding());
        if i64::try_from(rows.len()).is_ok_and(|rows| rows < count) {
            slice.last = None;
        }
        Ok(slice)
    }
}
