//! Connections and transactions. Every connection carries its time-outs as session settings, so
//! that no statement waits for ever and a process that was stopped loses its transaction.

use std::{
    ops::{Deref, DerefMut},
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use contracts::Timestamp;
use sqlx::{
    Connection, PgPool, Postgres,
    pool::PoolConnection,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::sync::{Semaphore, watch};

use crate::error::{Bounded, Result, StoreError, at_commit, within};

/// How long a statement may be unanswered before its connection counts as lost (F41): longer than
/// the API's statement and the background's lock time-out, so that the server's own word comes
/// first. Statements that may rightly take longer say so.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// The same of statements over a whole table; above the background's statement time-out.
pub(crate) const SLOW_ANSWER_WITHIN: Duration = Duration::from_secs(35);

/// How long a connection that is given back may take to say that it is sound; then it is closed.
const GIVE_BACK_WITHIN: Duration = Duration::from_secs(2);

/// How long a connection may take to be made: longer than anyone waits for one. A connection that
/// is made too late for whoever asked is there for the next; if it were given up with the wait, a
/// server that is slow to let in (after a restart, with everybody at its door) would be asked in
/// vain for ever.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Who waits for a connection, at most, per connection of the pool: the driver serves in turn, and
/// those who have given up stay in its queue before those who wait.
const WAITING_PER_CONNECTION: u32 = 16;

/// A connection that was used this lately is taken to be there without a ping; one that is not shows
/// it at its first statement, as one does that breaks in use.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// How long the checks that share the one read-only connection wait for each other: nobody waits for
/// them, and the longest may take its whole statement time-out.
const READ_ONLY_WAIT: Duration = Duration::from_secs(60);

/// How long a transaction may be silent before the server ends it (P14): a COMMIT that arrives later
/// finds no transaction.
pub const SILENT_IN_TRANSACTION: Duration = Duration::from_secs(5);

/// A connection, in a transaction or not.
pub type Conn = sqlx::PgConnection;

/// How to reach PostgreSQL and how long to wait for it.
#[derive(Clone)]
pub struct StoreOptions {
    /// `postgres://user:password@host:port/database`.
    pub url: String,
    /// Shown in `pg_stat_activity`.
    pub application_name: String,
    /// Of the pool.
    pub max_connections: u32,
    /// How long to wait for a connection of the pool: 200 ms for the API (F35).
    pub acquire_timeout: Duration,
    /// Of one statement.
    pub statement_timeout: Duration,
    /// Of one wait for a lock; beyond it the transaction is run again (P1).
    pub lock_timeout: Duration,
    /// A transaction that is silent for longer is ended by the server (P14).
    pub idle_in_transaction_session_timeout: Duration,
}

impl std::fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreOptions")
            .field("application_name", &self.application_name)
            .field("max_connections", &self.max_connections)
            .finish_non_exhaustive()
    }
}

impl StoreOptions {
    /// The settings of the API: waits are short, because a buyer waits.
    #[must_use]
    pub fn new(url: &str, application_name: &str) -> Self {
        Self {
            url: url.to_owned(),
            application_name: application_name.to_owned(),
            max_connections: 8,
            acquire_timeout: Duration::from_millis(200),
            statement_timeout: Duration::from_secs(5),
            lock_timeout: Duration::from_millis(200),
            idle_in_transaction_session_timeout: SILENT_IN_TRANSACTION,
        }
    }

    /// The same with other numbers for work that no buyer waits for: consumers, sweeps, audits.
    #[must_use]
    pub fn background(url: &str, application_name: &str) -> Self {
        Self {
            acquire_timeout: Duration::from_secs(2),
            statement_timeout: Duration::from_secs(30),
            lock_timeout: Duration::from_secs(2),
            ..Self::new(url, application_name)
        }
    }

    pub(crate) fn connect_options(&self) -> Result<PgConnectOptions> {
        // The driver takes any scheme; an address of Redis here would be a puzzling time-out.
        if !["postgres://", "postgresql://"]
            .iter()
            .any(|scheme| self.url.starts_with(scheme))
        {
            let wrong = "DATABASE_URL must begin with postgres://";
            return Err(StoreError::Url(sqlx::Error::Configuration(wrong.into())));
        }
        let options = PgConnectOptions::from_str(&self.url).map_err(StoreError::Url)?;
        Ok(options.application_name(&self.application_name).options([
            ("timezone", "UTC".to_owned()),
            ("statement_timeout", millis(self.statement_timeout)),
            ("lock_timeout", millis(self.lock_timeout)),
            (
                "idle_in_transaction_session_timeout",
                millis(self.idle_in_transaction_session_timeout),
            ),
            // Compiling a statement costs hundreds of milliseconds, and pays for none of ours.
            ("jit", "off".to_owned()),
            // A client whose machine is gone must not keep its locks for hours.
            ("tcp_keepalives_idle", "5".to_owned()),
            ("tcp_keepalives_interval", "2".to_owned()),
            ("tcp_keepalives_count", "3".to_owned()),
            // The same while a statement runs, whose client has given up.
            ("client_connection_check_interval", "1000".to_owned()),
        ]))
    }
}

/// Milliseconds as a session setting; 0 would mean "for ever", so it becomes 1.
pub(crate) fn millis(duration: Duration) -> String {
    duration.as_millis().max(1).to_string()
}

/// The pool. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Store {
    pool: PgPool,
    /// How long whoever wants a connection waits for one.
    wait: Duration,
    /// Places of those who wait for one.
    waiting: Arc<Semaphore>,
    /// Whether the server is known to be away.
    away: watch::Sender<bool>,
    doubt: Doubt,
}

/// That a BEGIN was not answered in time: the driver does not know whether its session is inside a
/// transaction, and would hand it out (P14). What is given back while this is fresh is closed.
#[derive(Clone, Debug, Default)]
struct Doubt(Arc<Mutex<Option<Instant>>>);

impl Doubt {
    fn arise(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn is_fresh(&self) -> bool {
        let arose = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        arose.is_some_and(|arose| arose.elapsed() < 2 * GIVE_BACK_WITHIN)
    }
}

fn places(connections: u32) -> Arc<Semaphore> {
    let most = connections.max(1) * WAITING_PER_CONNECTION;
    Arc::new(Semaphore::new(usize::try_from(most).unwrap_or(usize::MAX)))
}

/// A connection of the pool; `&mut *conn` is a [`Conn`].
pub type PooledConn = PoolConnection<Postgres>;

impl Store {
    /// A store that connects when it is first used: a service starts while PostgreSQL is away.
    /// [`Store::ping`] tells whether it is there.
    ///
    /// # Errors
    /// [`StoreError::Url`].
    pub fn connect(options: &StoreOptions) -> Result<Self> {
        let doubt = Doubt::default();
        let doubted = doubt.clone();
        let pool = PgPoolOptions::new()
            .max_connections(options.max_connections)
            .acquire_timeout(options.acquire_timeout.max(CONNECT_WITHIN))
            .idle_timeout(Duration::from_mins(10))
            .max_lifetime(Duration::from_mins(30))
            // A ping before use, when it has been idle for long enough that the server may have
            // been restarted.
            .test_before_acquire(false)
            .before_acquire(|conn, meta| {
                Box::pin(async move {
                    if meta.idle_for < FRESH_FOR {
                        return Ok(true);
                    }
                    let sound = tokio::time::timeout(GIVE_BACK_WITHIN, conn.ping()).await;
                    Ok(matches!(sound, Ok(Ok(()))))
                })
            })
            // The driver waits for ever for a connection that is given back while its server is
            // silent, and its place in the pool is lost. Also flushes a rollback.
            .after_release(move |conn, _| {
                let doubtful = doubted.is_fresh();
                Box::pin(async move {
                    if doubtful {
                        return Ok(false);
                    }
                    let sound = tokio::time::timeout(GIVE_BACK_WITHIN, conn.ping()).await;
                    Ok(matches!(sound, Ok(Ok(()))))
                })
            })
            .connect_lazy_with(options.connect_options()?);
        Ok(Self {
            pool,
            wait: options.acquire_timeout,
            waiting: places(options.max_connections),
            away: watch::Sender::new(false),
            doubt,
        })
    }

    /// A connection of the pool, waited for in a task of its own for as long as the options say.
    /// What comes later goes to the pool: see [`CONNECT_WITHIN`].
    async fn acquire(&self) -> std::result::Result<PooledConn, sqlx::Error> {
        let Ok(place) = Arc::clone(&self.waiting).try_acquire_owned() else {
            return Err(sqlx::Error::PoolTimedOut);
        };
        let pool = self.pool.clone();
        let acquired = tokio::spawn(async move {
            let acquired = pool.acquire().await;
            drop(place);
            acquired
        });
        match tokio::time::timeout(self.wait, acquired).await {
            Ok(Ok(acquired)) => acquired,
            Ok(Err(_)) => Err(sqlx::Error::WorkerCrashed),
            Err(_) => Err(sqlx::Error::PoolTimedOut),
        }
    }

    /// One connection that can't write, whose every statement sees one snapshot and uses one core:
    /// for the audit. Plans are made for the values at hand, since its ranges grow with the tables.
    ///
    /// # Errors
    /// [`StoreError::Url`].
    pub fn connect_read_only(options: &StoreOptions) -> Result<Self> {
        let connect = options.connect_options()?.options([
            ("default_transaction_read_only", "on"),
            ("default_transaction_isolation", "repeatable read"),
            ("max_parallel_workers_per_gather", "0"),
            ("plan_cache_mode", "force_custom_plan"),
        ]);
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(READ_ONLY_WAIT)
            .max_lifetime(Duration::from_mins(30))
            .test_before_acquire(false)
            .connect_lazy_with(connect);
        Ok(Self {
            pool,
            wait: READ_ONLY_WAIT,
            waiting: places(1),
            away: watch::Sender::new(false),
            doubt: Doubt::default(),
        })
    }

    /// Says whether the server is known to be away ([`crate::probe`]). While it is, whoever wants a
    /// connection is told so at once, and so are those who wait for one.
    pub fn set_away(&self, away: bool) {
        self.away
            .send_if_modified(|was| std::mem::replace(was, away) != away);
    }

    /// Whether the server is known to be away.
    #[must_use]
    pub fn is_away(&self) -> bool {
        *self.away.borrow()
    }

    /// Returns when the server is known to be away.
    async fn gone(&self) -> StoreError {
        let mut away = self.away.subscribe();
        let told = away.wait_for(|away| *away).await.is_ok();
        if !told {
            // Can't be: this store holds the sender.
            std::future::pending::<()>().await;
        }
        StoreError::Away
    }

    /// A connection outside any transaction, for reads.
    ///
    /// # Errors
    /// [`StoreError::Connect`].
    pub async fn conn(&self) -> Result<PooledConn> {
        tokio::select! {
            biased;
            gone = self.gone() => Err(gone),
            conn = self.acquire() => conn.map_err(StoreError::Connect),
        }
    }

    /// Begins a transaction, READ COMMITTED. In a task of its own: the driver leaves a session inside
    /// its transaction when it is not waited for to the end (P14).
    ///
    /// # Errors
    /// [`StoreError::Away`], [`StoreError::Connect`], [`StoreError::Begin`].
    pub async fn begin(&self) -> Result<Tx> {
        let conn = self.conn().await?;
        let doubt = self.doubt.clone();
        let begun = tokio::spawn(async move {
            let mut begun = sqlx::Transaction::begin(conn, None);
            match tokio::time::timeout(ANSWER_WITHIN, begun.as_mut()).await {
                Ok(begun) => begun,
                Err(_) => {
                    doubt.arise();
                    drop(begun);
                    Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()))
                }
            }
        });
        let begun = tokio::select! {
            biased;
            gone = self.gone() => return Err(gone),
            // An error here is a panic, or a runtime that ends.
            begun = begun => begun.unwrap_or(Err(sqlx::Error::WorkerCrashed)),
        };
        let inner = begun.map_err(|error| match error {
            sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::Io(_) => StoreError::Connect(error),
            other => StoreError::Begin(other),
        })?;
        Ok(Tx { inner })
    }

    /// PostgreSQL's clock.
    ///
    /// # Errors
    /// No answer.
    pub async fn clock(&self) -> Result<Timestamp> {
        let mut conn = self.conn().await?;
        sqlx::query_scalar!(r#"select clock_timestamp() as "now!""#)
            .fetch_one(&mut *conn)
            .answer("read the clock")
            .await
    }

    /// Whether PostgreSQL answers.
    ///
    /// # Errors
    /// It does not.
    pub async fn ping(&self) -> Result<()> {
        self.clock().await.map(|_| ())
    }

    /// Closes the pool and waits for its connections.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

/// A transaction; as `&mut *tx` it is a [`Conn`]. Dropped without [`Tx::commit`] it is rolled back.
#[derive(Debug)]
pub struct Tx {
    inner: sqlx::Transaction<'static, Postgres>,
}

impl Tx {
    /// Makes it lasting.
    ///
    /// # Errors
    /// [`StoreError::RolledBack`] when the server said so, otherwise [`StoreError::CommitUnknown`].
    pub async fn commit(self) -> Result<()> {
        within(ANSWER_WITHIN, self.inner.commit())
            .await
            .map_err(at_commit)
    }

    /// Undoes it and gives the connection back.
    ///
    /// # Errors
    /// No answer; it is undone all the same.
    pub async fn rollback(self) -> Result<()> {
        self.inner.rollback().answer("roll back").await
    }
}

impl Deref for Tx {
    type Target = Conn;
    fn deref(&self) -> &Conn {
        &self.inner
    }
}

impl DerefMut for Tx {
    fn deref_mut(&mut self) -> &mut Conn {
        &mut self.inner
    }
}
