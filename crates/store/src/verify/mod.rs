//! The invariants that PostgreSQL alone can answer, as read-only checks (invariants.md, part A).
//!
//! Guarantee: one call sees one snapshot (`repeatable read, read only`), so rules that compare
//! tables never see half of a transaction. The rules that need Redis, Kafka or the gateway get
//! their PostgreSQL side from [`facts`].

pub mod facts;
mod rules;
pub mod sale;

use std::time::Duration;

use serde::Serialize;
use sqlx::{Connection, PgConnection, Row};

use crate::{
    Result, Store,
    error::{Bounded, Doing},
};

/// Offenders that a report lists at most; `left` counts all of them.
pub const OFFENDERS_MAX: usize = 20;

/// How long one check may take before the server ends it.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(60);

/// What one rule found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The invariant, for example `I2`; several rules may belong to one.
    pub id: String,
    /// The rule in words.
    pub rule: String,
    /// Whether nothing breaks it.
    pub ok: bool,
    /// What was found, for people.
    pub left: String,
    /// What it must equal or respect, for people.
    pub right: String,
    /// Ids of what breaks it, each with both of its sides: all of them, until a report is made.
    pub offenders: Vec<String>,
}

impl Check {
    /// A check whose offenders are known: it holds when there are none.
    #[must_use]
    pub fn of(id: &str, rule: &str, right: &str, offenders: Vec<String>) -> Self {
        let count = offenders.len();
        Self {
            id: id.to_owned(),
            rule: rule.to_owned(),
            ok: count == 0,
            left: if count == 0 {
                right.to_owned()
            } else {
                format!("{count} offenders")
            },
            right: right.to_owned(),
            offenders,
        }
    }
}

/// Whose word ends a refund: ours, or an upstream system's, whose delay is not our fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payments {
    /// Our payment service.
    Internal,
    /// An upstream payment system.
    Upstream,
}

/// Runs every rule on one snapshot.
///
/// # Errors
/// PostgreSQL can't be reached, or a rule took longer than a minute.
pub async fn run(store: &Store, payments: Payments) -> Result<Vec<Check>> {
    let mut conn = store.conn().await?;
    let mut checks = Vec::with_capacity(rules::ALL.len());
    // The timeouts of the pool are those of short statements; this connection is closed afterwards.
    sqlx::query("select set_config('statement_timeout', $1, false)")
        .bind(format!("{}ms", STATEMENT_TIMEOUT.as_millis()))
        .execute(&mut *conn)
        .slowly("set statement_timeout")
        .await?;
    let result = run_on(&mut conn, payments, &mut checks).await;
    if let Err(error) = conn.close().await {
        tracing::debug!(%error, "the connection of the checks did not close in order");
    }
    result.map(|()| checks)
}

async fn run_on(
    conn: &mut PgConnection,
    payments: Payments,
    checks: &mut Vec<Check>,
) -> Result<()> {
    let mut tx = conn
        .begin_with("begin isolation level repeatable read, read only")
        .slowly("begin")
        .await?;
    for rule in rules::ALL {
        let sql = match payments {
            Payments::Internal => rule.sql,
            Payments::Upstream => rule.sql_upstream.unwrap_or(rule.sql),
        };
        let rows = sqlx::query(sql)
            .fetch_all(&mut *tx)
            .slowly("run a rule")
            .await?;
        let mut offenders = Vec::with_capacity(rows.len());
        for row in rows {
            let offender: String = row.try_get(0).doing("read a row")?;
            offenders.push(offender);
        }
        checks.push(Check::of(rule.id, rule.rule, rule.right, offenders));
    }
    tx.rollback().slowly("end").await
}
