//! What PostgreSQL counts: the work behind a number.

use std::str::FromStr;

use anyhow::Context;
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, PgConnection, Row, postgres::PgConnectOptions,
};

/// What a server and a database have done since their start. Backends report at most once a
/// second, so a difference is right to within a second of work.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    /// Bytes of WAL, exact.
    pub wal_bytes: i64,
    /// Transactions of the database, those that only read included.
    pub commits: i64,
    /// Flushes of the WAL; `None` where this version does not count them.
    pub wal_syncs: Option<i64>,
}

impl Work {
    /// Reads the counters.
    ///
    /// # Errors
    /// PostgreSQL does not answer.
    pub async fn read(database_url: &str) -> anyhow::Result<Self> {
        let mut conn = connect(database_url).await?;
        let row = sqlx::query(
            "select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint,
                    (select xact_commit from pg_stat_database where datname = current_database()),
                    (select (to_jsonb(w) ->> 'wal_sync')::bigint from pg_stat_wal w)",
        )
        .fetch_one(&mut conn)
        .await
        .context("reading the counters of PostgreSQL")?;
        conn.close().await?;
        Ok(Self {
            wal_bytes: row.try_get(0)?,
            commits: row.try_get(1)?,
            wal_syncs: row.try_get(2)?,
        })
    }
}

/// Rows of an accept, and what they say.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rows {
    pub(crate) orders: i64,
    /// Keys, lines, history, events: one of each per order of one line.
    pub(crate) others: [i64; 4],
    pub(crate) held: i64,
    /// Of one event.
    pub(crate) event_bytes: f64,
}

/// A database for one run, on a server that may hold others.
#[derive(Debug)]
pub(crate) struct Database {
    server: PgConnectOptions,
    name: &'static str,
    pub(crate) url: String,
}

impl Database {
    /// Makes it anew, with the current schema.
    pub(crate) async fn create(server_url: &str, name: &'static str) -> anyhow::Result<Self> {
        let server = PgConnectOptions::from_str(server_url)?;
        let url = server.clone().database(name).to_url_lossy().to_string();
        let database = Self { server, name, url };
        database.drop().await?;
        database.tell("create database").await?;
        store::migrate(&database.url).await?;
        Ok(database)
    }

    pub(crate) async fn drop(&self) -> anyhow::Result<()> {
        self.tell("drop database if exists").await
    }

    async fn tell(&self, what: &str) -> anyhow::Result<()> {
        let forced = if what.starts_with("drop") {
            " with (force)"
        } else {
            ""
        };
        let statement = format!("{what} {}{forced}", self.name);
        let mut conn = self.server.connect().await?;
        // The name is one of our constants.
        sqlx::query(AssertSqlSafe(statement.clone()))
            .execute(&mut conn)
            .await
            .with_context(|| statement)?;
        Ok(conn.close().await?)
    }

    pub(crate) async fn orders(&self) -> anyhow::Result<i64> {
        let mut conn = connect(&self.url).await?;
        let count = sqlx::query_scalar("select count(*) from orders")
            .fetch_one(&mut conn)
            .await?;
        conn.close().await?;
        Ok(count)
    }

    pub(crate) async fn rows(&self) -> anyhow::Result<Rows> {
        let mut conn = connect(&self.url).await?;
        let row = sqlx::query(
            "select (select count(*) from orders), (select count(*) from idempotency),
                    (select count(*) from order_lines), (select count(*) from order_history),
                    (select count(*) from outbox where type = 'ORDER_RESERVED'),
                    (select sum(held)::bigint from stock),
                    (select avg(length(data))::float8 from outbox where type = 'ORDER_RESERVED')",
        )
        .fetch_one(&mut conn)
        .await
        .context("counting rows")?;
        conn.close().await?;
        Ok(Rows {
            orders: row.try_get(0)?,
            others: [
                row.try_get(1)?,
                row.try_get(2)?,
                row.try_get(3)?,
                row.try_get(4)?,
            ],
            held: row.try_get(5)?,
            event_bytes: row.try_get(6)?,
        })
    }
}

async fn connect(url: &str) -> anyhow::Result<PgConnection> {
    PgConnection::connect(url)
        .await
        .context("PostgreSQL can't be reached")
}
