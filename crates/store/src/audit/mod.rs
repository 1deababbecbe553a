//! The invariants while the system runs, asked so that asking is cheap (invariants.md, A.1 and A.2).
//!
//! [`crate::verify`] reads everything and takes its time; this reads what an index finds, sums when
//! it is told to, and walks the rest in slices by key. Guarantee: every call sees one snapshot, on a
//! connection that can't write; its offenders are true of that snapshot.

mod deliveries;
mod findings;
mod rules;
mod sums;
mod walks;

use sqlx::{AssertSqlSafe, Row};

use crate::{Result, Store, StoreOptions, error::Doing, verify::Payments};

pub use deliveries::{Deliveries, Undelivered};
pub use findings::Finding;
pub use sums::Sums;
pub use walks::{BuyerKey, Slice};

use findings::{findings, union};
use rules::LiveRule;

/// A row of stock that may have changed, with what the newest event about it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StockMove {
    /// Which.
    pub sku: String,
    /// Of the row.
    pub on_hand: i64,
    /// Of the row.
    pub sold: i64,
    /// `(on_hand, sold)` of the newest event above the id that was asked for.
    pub told: Option<(i64, i64)>,
}

/// Rows of stock that may have changed since an earlier look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StockMoves {
    /// From where the next look is to go on.
    pub mark: StockMark,
    /// The rows.
    pub moves: Vec<StockMove>,
}

/// Where a look at stock ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StockMark {
    /// Rows of transactions below it were seen.
    pub xmin: i64,
    /// The newest event.
    pub outbox: i64,
}

/// The audit's eyes: a connection of its own.
#[derive(Debug, Clone)]
pub struct Auditor {
    store: Store,
    payments: Payments,
    now: String,
    orders: String,
}

impl Auditor {
    /// No I/O.
    ///
    /// # Errors
    /// The URL can't be read.
    pub fn new(options: &StoreOptions, payments: Payments) -> Result<Self> {
        let options = StoreOptions {
            application_name: format!("{} audit", options.application_name),
            ..options.clone()
        };
        Ok(Self {
            store: Store::connect_read_only(&options)?,
            payments,
            now: union(rules::NOW, payments),
            orders: union(rules::ORDERS, payments),
        })
    }

    /// What indexes answer: I1, I13, I15, I17, I21, I24, I25.
    ///
    /// # Errors
    /// PostgreSQL is away.
    pub async fn now(&self) -> Result<Vec<Finding>> {
        let mut conn = self.store.conn().await?;
        let rows = sqlx::query(AssertSqlSafe(self.now.as_str()))
            .fetch_all(&mut *conn)
            .await
            .doing("ask for the invariants of the moment")?;
        findings(rules::NOW, rows)
    }

    /// I2 of `held`, by the live orders alone.
    ///
    /// # Errors
    /// PostgreSQL is away.
    pub async fn held(&self) -> Result<Vec<Finding>> {
        self.plain(rules::HELD, None).await
    }

    /// I2 and I3 of these SKUs in full: reads every line of every order. [`Auditor::compare`] does not.
    ///
    /// # Errors
    /// PostgreSQL is away, or does not read all of that within its time-out.
    pub async fn sums(&self, skus: &[String]) -> Result<Vec<Finding>> {
        self.plain(rules::SUMS, Some(skus)).await
    }

    /// Which rows of stock were written since a look that saw up to `xmin` (all, without one), and
    /// what events above `events_after` say of them.
    ///
    /// # Errors
    /// PostgreSQL is away.
    pub async fn stock(&self, xmin: Option<i64>, events_after: i64) -> Result<StockMoves> {
        let doing = "see which stock has moved";
        let mut conn = self.store.conn().await?;
        let rows = sqlx::query(rules::STOCK_MOVES)
            .bind(events_after)
            .bind(xmin)
            .fetch_all(&mut *conn)
            .await
            .doing(doing)?;
        let mut seen = StockMoves {
            mark: StockMark { xmin: 0, outbox: 0 },
            moves: Vec::with_capacity(rows.len()),
        };
        for row in rows {
            seen.mark = StockMark {
                xmin: row.try_get(0).doing(doing)?,
                outbox: row.try_get(1).doing(doing)?,
            };
            let Some(sku) = row.try_get(2).doing(doing)? else {
                continue;
            };
            let told: (Option<i64>, Option<i64>) =
                (row.try_get(5).doing(doing)?, row.try_get(6).doing(doing)?);
            seen.moves.push(StockMove {
                sku,
                on_hand: row.try_get(3).doing(doing)?,
                sold: row.try_get(4).doing(doing)?,
                told: told.0.zip(told.1),
            });
        }
        Ok(seen)
    }

    async fn plain(
        &self,
        rules: &'static [LiveRule],
        skus: Option<&[String]>,
    ) -> Result<Vec<Finding>> {
        let sql = union(rules, self.payments);
        let mut conn = self.store.conn().await?;
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(skus)
            .fetch_all(&mut *conn)
            .await
            .doing("sum up orders and movements")?;
        findings(rules, rows)
    }
}
