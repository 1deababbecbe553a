//! The schema: brought up to date by `holdfast migrate` alone; a service refuses to start on any
//! other version than its own (P15).

use std::time::Duration;

use sqlx::Connection;

use crate::{
    error::{Bounded, Result, StoreError},
    outbox,
    pool::{Conn, Store, StoreOptions},
};

/// How many outbox ids are covered ahead of the sequence.
pub const PARTITIONS_AHEAD: i64 = 3_000_000;

static MIGRATOR: sqlx::migrate::Migrator = sqlx::migrate!("../../migrations");

/// What `migrate` did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Versions that were applied now.
    pub applied: Vec<i64>,
    /// The version of the schema now.
    pub version: i64,
    /// Outbox partitions that were made ahead.
    pub partitions: i32,
}

/// Applies what is missing and makes outbox partitions ahead. Safe to run twice and at once.
///
/// # Errors
/// [`StoreError::Migrate`], also when an applied file was changed since.
pub async fn migrate(url: &str) -> Result<Report> {
    let options = StoreOptions {
        statement_timeout: Duration::from_mins(30),
        lock_timeout: Duration::from_mins(1),
        ..StoreOptions::new(url, "holdfast migrate")
    };
    let mut conn = Conn::connect_with(&options.connect_options()?)
        .await
        .map_err(StoreError::Connect)?;
    let before = version(&mut conn).await?;
    // Not `run`: its future can't be sent between threads.
    MIGRATOR
        .run_direct(None, &mut conn, false)
        .await
        .map_err(StoreError::Migrate)?;
    let partitions = outbox::make_partitions(&mut conn, PARTITIONS_AHEAD).await?;
    let version = version(&mut conn).await?;
    conn.close().answer("close the connection").await?;
    let applied = MIGRATOR
        .iter()
        .map(|migration| migration.version)
        .filter(|v| *v > before)
        .collect();
    Ok(Report {
        applied,
        version,
        partitions,
    })
}

/// The version of the schema; 0 when there is none.
async fn version(conn: &mut Conn) -> Result<i64> {
    // sqlx makes this table at its first run, so that no checked query can name it.
    let there: bool = sqlx::query_scalar("select to_regclass('_sqlx_migrations') is not null")
        .fetch_one(&mut *conn)
        .answer("look for the schema version")
        .await?;
    if !there {
        return Ok(0);
    }
    sqlx::query_scalar("select coalesce(max(version), 0) from _sqlx_migrations where success")
        .fetch_one(conn)
        .answer("read the schema version")
        .await
}

/// The version that this program is made for.
#[must_use]
pub fn expected_version() -> i64 {
    MIGRATOR
        .iter()
        .map(|migration| migration.version)
        .max()
        .unwrap_or(0)
}

impl Store {
    /// What is unsafe about the server (P15), one sentence each: fsync or `synchronous_commit` off,
    /// another schema version.
    ///
    /// # Errors
    /// No answer.
    pub async fn check_safety(&self) -> Result<Vec<String>> {
        let mut conn = self.conn().await?;
        let settings = sqlx::query!(
            r#"select current_setting('fsync') as "fsync!",
                      current_setting('full_page_writes') as "full_page_writes!",
                      current_setting('synchronous_commit') as "synchronous_commit!""#
        )
        .fetch_one(&mut *conn)
        .answer("read the server's settings")
        .await?;
        let version = version(&mut conn).await?;
        let mut problems = Vec::new();
        for (name, value) in [
            ("fsync", settings.fsync),
            ("full_page_writes", settings.full_page_writes),
            ("synchronous_commit", settings.synchronous_commit),
        ] {
            if value == "off" {
                problems.push(format!(
                    "PostgreSQL runs with {name} = off: a crash loses orders"
                ));
            }
        }
        let expected = expected_version();
        if version != expected {
            problems.push(format!(
                "the schema has version {version}, this program needs {expected}: run `holdfast migrate`"
            ));
        }
        Ok(problems)
    }
}
