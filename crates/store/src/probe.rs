//! Whether the server is there: asked on a connection beside the pools, so that a pool that is used
//! up is no absence, and an absence costs nobody but the probe its wait.

use std::time::Duration;

use contracts::Timestamp;
use sqlx::Connection as _;

use crate::{
    Conn,
    error::{Bounded, Result, StoreError, within},
    pool::StoreOptions,
};

/// How long a connection of the probe may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);

/// How long the server may take to answer. Half-open connections are to be found within 3 s (F41);
/// a server that is merely slow is to be called away only when no order could be accepted either.
const SIGN_WITHIN: Duration = Duration::from_secs(2);

/// A sign of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sign {
    /// The server's clock.
    pub now: Timestamp,
    /// Whether it takes no writes: a standby, or set so.
    pub read_only: bool,
}

/// The connection that asks.
#[derive(Debug)]
pub struct Probe {
    options: StoreOptions,
    conn: Option<Conn>,
}

impl Probe {
    /// Connects when it is first asked.
    #[must_use]
    pub fn new(options: &StoreOptions) -> Self {
        let options = StoreOptions {
            application_name: format!("{} probe", options.application_name),
            ..options.clone()
        };
        Self {
            options,
            conn: None,
        }
    }

    /// Asks for a sign of life; on a new connection when there is none, or the old one is broken.
    ///
    /// # Errors
    /// [`StoreError::is_absence`] tells whether the server is away; another error says only that
    /// the question could not be asked.
    pub async fn ask(&mut self) -> Result<Sign> {
        if let Some(mut conn) = self.conn.take()
            && let Ok(sign) = sign(&mut conn).await
        {
            self.conn = Some(conn);
            return Ok(sign);
        }
        let options = self.options.connect_options()?;
        let mut conn = within(CONNECT_WITHIN, Conn::connect_with(&options))
            .await
            .map_err(StoreError::Connect)?;
        let sign = sign(&mut conn).await?;
        self.conn = Some(conn);
        Ok(sign)
    }
}

async fn sign(conn: &mut Conn) -> Result<Sign> {
    let asked = sqlx::query_as!(
        Sign,
        r#"select clock_timestamp() as "now!",
                  current_setting('transaction_read_only') = 'on' as "read_only!""#
    )
    .fetch_one(conn);
    within(SIGN_WITHIN, asked)
        .answer("ask for a sign of life")
        .await
}
