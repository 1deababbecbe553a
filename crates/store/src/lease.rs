//! Who leads: a session advisory lock on a connection of its own. A stopped process loses it after
//! two seconds of silence, because the server ends the session (P8).

use std::time::Duration;

use sqlx::Connection;

use crate::{
    Conn, Store,
    error::{Bounded, Result, StoreError},
    pool::{StoreOptions, millis},
};

/// How often the holder must speak.
pub const HEARTBEAT_EVERY: Duration = Duration::from_millis(500);

/// After so much silence the server ends the session, and the lock is free.
pub const SILENCE_MAX: Duration = Duration::from_secs(2);

/// Whether nobody seems to hold the lock of this name: what a process that stands by asks again and
/// again, on a connection that is there already, before it makes one of its own to hold it on.
///
/// # Errors
/// No answer.
pub async fn is_free(store: &Store, key: &str) -> Result<bool> {
    let mut conn = store.conn().await?;
    is_free_on(&mut conn, key).await
}

/// The same on this connection; on the one that holds a lease it is a sign of life, too.
///
/// # Errors
/// No answer.
pub async fn is_free_on(conn: &mut Conn, key: &str) -> Result<bool> {
    // Taken until the end of this statement, which is its transaction.
    sqlx::query_scalar!(
        r#"select pg_try_advisory_xact_lock(hashtextextended($1, 0)) as "free!""#,
        key,
    )
    .fetch_one(conn)
    .answer("ask for a lease")
    .await
}

/// A lock that is held as long as its connection lives. Dropped, it is released.
#[derive(Debug)]
pub struct Lease {
    conn: Conn,
}

impl Lease {
    /// Takes the lock of this name on a new connection; `None` when another holds it.
    ///
    /// # Errors
    /// No connection.
    pub async fn try_acquire(options: &StoreOptions, key: &str) -> Result<Option<Self>> {
        let options = StoreOptions {
            application_name: format!("{} lease {key}", options.application_name),
            statement_timeout: SILENCE_MAX,
            idle_in_transaction_session_timeout: SILENCE_MAX,
            ..options.clone()
        };
        let options = options
            .connect_options()?
            .options([("idle_session_timeout", millis(SILENCE_MAX))]);
        let mut conn = bounded(Conn::connect_with(&options))
            .await
            .map_err(StoreError::Connect)?;
        let taken = bounded(
            sqlx::query_scalar!(
                r#"select pg_try_advisory_lock(hashtextextended($1, 0)) as "taken!""#,
                key,
            )
            .fetch_one(&mut conn),
        )
        .answer("take a lease")
        .await?;
        let lease = Self { conn };
        if taken {
            return Ok(Some(lease));
        }
        lease.release().await;
        Ok(None)
    }

    /// The connection that holds the lock: what is written on it is written by the leader.
    pub fn conn(&mut self) -> &mut Conn {
        &mut self.conn
    }

    /// Speaks, so that the session is not ended; to be called every [`HEARTBEAT_EVERY`].
    ///
    /// # Errors
    /// The lock is lost: end the leadership.
    pub async fn heartbeat(&mut self) -> Result<()> {
        bounded(sqlx::query_scalar!(r#"select 1 as "one!""#).fetch_one(&mut self.conn))
            .answer("keep a lease")
            .await
            .map(|_| ())
    }

    /// Gives the lock back at once.
    pub async fn release(self) {
        // Should the farewell fail, the server ends the session: by the closed socket, or by its
        // silence.
        if let Err(error) = bounded(self.conn.close()).await {
            tracing::debug!(%error, "a lease was not given back in order");
        }
    }
}

/// A server that does not answer is one that has ended the session.
async fn bounded<T>(
    answer: impl Future<Output = std::result::Result<T, sqlx::Error>>,
) -> std::result::Result<T, sqlx::Error> {
    tokio::time::timeout(SILENCE_MAX, answer)
        .await
        .unwrap_or_else(|_| Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())))
}
