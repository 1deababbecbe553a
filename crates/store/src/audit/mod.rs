//! The invariants while the system runs, asked so that asking is cheap (invariants.md, A.1 and A.2).
//!
//! [`crate::verify`] reads everything and takes its time; this reads what an index finds, sums when
//! it is told to, and walks the rest in slices by key. Guarantee: every call sees one snapshot, on a
//! connection that can't write; its offenders are true of that snapshot.

mod rules;
mod sums;

use std::fmt::Write as _;

use sqlx::{AssertSqlSafe, Connection, Row};
use uuid::Uuid;

use crate::{
    Result, Store, StoreOptions,
    error::Doing,
    verify::{OFFENDERS_MAX, Payments},
};

pub use sums::Sums;

use rules::{LiveRule, OFFENDERS_COUNTED};

/// What one rule found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The invariant, for example `I2`.
    pub id: &'static str,
    /// How many offenders there are; counted up to 1,000.
    pub count: usize,
    /// The first of them, each as `ID: both sides`.
    pub offenders: Vec<String>,
}

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

/// An event that was published and that its consumer has not handled (I18).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undelivered {
    /// The row of the outbox.
    pub id: i64,
    /// `ce_id`.
    pub event_id: Uuid,
    /// Who should have handled it, as in the inbox.
    pub consumer: String,
    /// `TYPE KEY`, for people.
    pub about: String,
}

/// A page of the outbox, compared with the inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deliveries {
    /// The last row that was looked at; `None` when there was none old enough.
    pub last: Option<i64>,
    /// What was not handled.
    pub lost: Vec<Undelivered>,
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

    /// Looks at the next `count` rows of the outbox after `after`: those that were published 15 s
    /// ago and that one of `consumers` must handle and has not.
    ///
    /// # Errors
    /// PostgreSQL is away.
    pub async fn deliveries(
        &self,
        after: i64,
        count: i64,
        consumers: &[&str],
    ) -> Result<Deliveries> {
        let doing = "compare outbox and inbox";
        let mut conn = self.store.conn().await?;
        let rows = sqlx::query(rules::DELIVERIES)
            .bind(after)
            .bind(count)
            .bind(consumers)
            .fetch_all(&mut *conn)
            .await
            .doing(doing)?;
        let mut seen = Deliveries {
            last: None,
            lost: Vec::new(),
        };
        for row in rows {
            seen.last = row.try_get(0).doing(doing)?;
            let Some(id) = row.try_get(1).doing(doing)? else {
                continue;
            };
            let (kind, key): (String, String) =
                (row.try_get(4).doing(doing)?, row.try_get(5).doing(doing)?);
            seen.lost.push(Undelivered {
                id,
                event_id: row.try_get(2).doing(doing)?,
                consumer: row.try_get(3).doing(doing)?,
                about: format!("{kind} {key}"),
            });
        }
        Ok(seen)
    }

    /// Which of these rows of the outbox are still not handled.
    ///
    /// # Errors
    /// PostgreSQL is away.
    pub async fn still_lost(&self, lost: &[Undelivered]) -> Result<Vec<i64>> {
        let doing = "compare outbox and inbox again";
        let ids: Vec<i64> = lost.iter().map(|one| one.id).collect();
        let consumers: Vec<&str> = lost.iter().map(|one| one.consumer.as_str()).collect();
        let mut conn = self.store.conn().await?;
        sqlx::query_scalar(rules::STILL_LOST)
            .bind(ids)
            .bind(consumers)
            .fetch_all(&mut *conn)
            .await
            .doing(doing)
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

/// One statement of all rules of a lane: `(position of the rule, offender)`.
fn union(rules: &[LiveRule], payments: Payments) -> String {
    let mut sql = String::new();
    for (position, rule) in rules.iter().enumerate() {
        let of_rule = match payments {
            Payments::Internal => rule.sql,
            Payments::Upstream => rule.sql_upstream.unwrap_or(rule.sql),
        };
        let joint = if position == 0 { "" } else { " union all " };
        // Writing to a string can't fail.
        let _ = write!(
            sql,
            "{joint}(select {position}::integer, x.* from ({of_rule}) x limit {OFFENDERS_COUNTED})"
        );
    }
    sql
}

struct Collected(Finding);

impl Collected {
    fn new(id: &'static str) -> Self {
        Self(Finding {
            id,
            count: 0,
            offenders: Vec::new(),
        })
    }

    fn take(&mut self, offender: Option<String>) {
        if let Some(offender) = offender {
            self.0.count += 1;
            if self.0.offenders.len() < OFFENDERS_MAX {
                self.0.offenders.push(offender);
            }
        }
    }

    fn finding(self) -> Finding {
        self.0
    }
}

/// One finding per invariant of the lane, in the order of its rules, clean ones too.
fn findings(rules: &[LiveRule], rows: Vec<sqlx::postgres::PgRow>) -> Result<Vec<Finding>> {
    let doing = "read what a rule found";
    let mut found: Vec<Collected> = Vec::new();
    let mut places = Vec::with_capacity(rules.len());
    for rule in rules {
        let known = found.iter().position(|one| one.0.id == rule.id);
        places.push(known.unwrap_or_else(|| {
            found.push(Collected::new(rule.id));
            found.len() - 1
        }));
    }
    for row in rows {
        let position: i32 = row.try_get(0).doing(doing)?;
        let place = usize::try_from(position)
            .ok()
            .and_then(|position| places.get(position));
        if let Some(one) = place.and_then(|place| found.get_mut(*place)) {
            one.take(row.try_get(1).doing(doing)?);
        }
    }
    Ok(found.into_iter().map(Collected::finding).collect())
}
