//! Who is alive (P5): one row per name, renewed by whichever process runs it.

use std::time::Duration;

use crate::{
    Conn,
    error::{Bounded, Result},
};

/// A name and how long ago it was heard of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// Which consumer.
    pub name: String,
    /// By PostgreSQL's clock.
    pub age: Duration,
}

/// Renews a heartbeat.
///
/// # Errors
/// No answer.
pub async fn beat(conn: &mut Conn, name: &str) -> Result<()> {
    sqlx::query!(
        "insert into heartbeats (name) values ($1)
         on conflict (name) do update set at = clock_timestamp()",
        name,
    )
    .execute(conn)
    .answer("renew a heartbeat")
    .await
    .map(|_| ())
}

/// All heartbeats, by name.
///
/// # Errors
/// No answer.
pub async fn all(conn: &mut Conn) -> Result<Vec<Heartbeat>> {
    let rows = sqlx::query!(
        r#"select name, extract(epoch from clock_timestamp() - at)::double precision as "age!"
           from heartbeats order by name"#
    )
    .fetch_all(conn)
    .answer("read heartbeats")
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| Heartbeat {
            name: row.name,
            age: Duration::try_from_secs_f64(row.age).unwrap_or_default(),
        })
        .collect())
}
