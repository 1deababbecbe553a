//! What can go wrong while talking to PostgreSQL, and what may be done about it. The one place
//! where SQLSTATEs are known.

use std::time::Duration;

use sqlx::postgres::{PgDatabaseError, PgSeverity};

use crate::pool::{ANSWER_WITHIN, SLOW_ANSWER_WITHIN};

/// The result of everything in this crate.
pub type Result<T> = std::result::Result<T, StoreError>;

/// Variants say what we were doing.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The URL is not one of PostgreSQL.
    #[error("the database URL can't be read")]
    Url(#[source] sqlx::Error),
    /// The server is known to be away: nobody waits for it.
    #[error("the database is away")]
    Away,
    /// No connection: the server is away, refuses, or the pool is used up.
    #[error("no connection to the database")]
    Connect(#[source] sqlx::Error),
    /// A transaction could not be begun.
    #[error("a transaction could not be begun")]
    Begin(#[source] sqlx::Error),
    /// A statement failed; its transaction can only be rolled back.
    #[error("failed to {doing}")]
    Statement {
        /// What the statement is for, in words.
        doing: &'static str,
        /// What the driver says.
        #[source]
        source: sqlx::Error,
    },
    /// The server answered COMMIT with an error: nothing of the transaction is there.
    #[error("the transaction was rolled back at its end")]
    RolledBack(#[source] sqlx::Error),
    /// No answer to COMMIT: the transaction may be there or not (P4). Run it again with the same
    /// keys; never compensate.
    #[error("the outcome of the transaction is unknown")]
    CommitUnknown(#[source] sqlx::Error),
    /// A statement touched another number of rows than the rows locked for it. The transaction
    /// must be rolled back.
    #[error("{doing}: {expected} rows expected, {found} touched")]
    Mismatch {
        /// What the statement is for.
        doing: &'static str,
        /// How many rows it should have touched.
        expected: usize,
        /// How many it did.
        found: usize,
    },
    /// The catalogue changed between two statements of this transaction; run it again.
    #[error("the catalogue of {sku} changed meanwhile")]
    CatalogueMoved {
        /// The SKU that gained or lost its per-customer limit.
        sku: String,
    },
    /// Stock would leave its bounds: an invariant is broken, or a caller's sum.
    #[error("stock of {sku} would leave its bounds")]
    StockBounds {
        /// Which.
        sku: String,
    },
    /// An order can only move to an end.
    #[error("{0} is not an end of an order")]
    NotAnEnd(&'static str),
    /// A stored value that our types refuse.
    #[error("column {column} holds {value:?}, which is not valid")]
    Malformed {
        /// Table and column.
        column: &'static str,
        /// What it holds.
        value: String,
    },
    /// The schema could not be brought up to date.
    #[error("failed to migrate the schema")]
    Migrate(#[source] sqlx::migrate::MigrateError),
}

impl StoreError {
    /// Whether the same call may succeed later without any change of ours (P9): connection,
    /// 40001, 40P01, 53xxx, 55P03, 57P0x, 25006, a used-up pool, an unknown commit. A statement
    /// that ran into its time-out (57014) is not among them: one poisoned statement would wait
    /// for ever.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Away
            | Self::Connect(_)
            | Self::CommitUnknown(_)
            | Self::CatalogueMoved { .. } => true,
            Self::Begin(source) | Self::Statement { source, .. } | Self::RolledBack(source) => {
                is_transient(source)
            }
            Self::Migrate(source) => match source {
                sqlx::migrate::MigrateError::Execute(source) => is_transient(source),
                _ => false,
            },
            Self::Url(_)
            | Self::Mismatch { .. }
            | Self::StockBounds { .. }
            | Self::NotAnEnd(_)
            | Self::Malformed { .. } => false,
        }
    }

    /// Whether it may be the fault of one row, so that the same work without that row may succeed: a
    /// value that a constraint or our types refuse, or stock that would leave its bounds. A time-out
    /// and a server that fails say nothing of a row.
    #[must_use]
    pub fn may_be_of_a_row(&self) -> bool {
        match self {
            Self::Mismatch { .. } | Self::StockBounds { .. } | Self::Malformed { .. } => true,
            Self::Statement { source, .. } | Self::RolledBack(source) => is_of_a_row(source),
            Self::Url(_)
            | Self::Away
            | Self::Connect(_)
            | Self::Begin(_)
            | Self::CommitUnknown(_)
            | Self::CatalogueMoved { .. }
            | Self::NotAnEnd(_)
            | Self::Migrate(_) => false,
        }
    }

    /// Whether it says that the server is away: no connection, none any more, or it starts or ends.
    /// A used-up pool and refused work say no such thing.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        match self.driver() {
            Some(sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed) => {
                true
            }
            Some(sqlx::Error::Database(_)) => self
                .sqlstate()
                .is_some_and(|code| code.starts_with("08") || code.starts_with("57P0")),
            _ => matches!(self, Self::Away),
        }
    }

    /// Whether the transaction lost against another one and is to be run again at once: 40001,
    /// 40P01, 55P03, or the catalogue moved.
    #[must_use]
    pub fn must_rerun(&self) -> bool {
        matches!(self, Self::CatalogueMoved { .. })
            || self
                .sqlstate()
                .is_some_and(|code| matches!(&*code, "40001" | "40P01" | "55P03"))
    }

    /// Whether the transaction may have been committed although this is an error (P4).
    #[must_use]
    pub fn is_unknown_outcome(&self) -> bool {
        matches!(self, Self::CommitUnknown(_))
    }

    /// A transaction whose caller stopped waiting: as if the reply to COMMIT were lost.
    #[must_use]
    pub fn no_answer() -> Self {
        Self::CommitUnknown(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()))
    }

    /// A connection that broke before anything was committed.
    #[must_use]
    pub fn no_connection() -> Self {
        Self::Connect(sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into()))
    }

    /// The name of the constraint that was violated.
    #[must_use]
    pub fn constraint(&self) -> Option<&str> {
        self.database().and_then(PgDatabaseError::constraint)
    }

    /// The server's five characters.
    #[must_use]
    pub fn sqlstate(&self) -> Option<String> {
        self.database().map(|error| error.code().to_owned())
    }

    fn driver(&self) -> Option<&sqlx::Error> {
        match self {
            Self::Url(source)
            | Self::Connect(source)
            | Self::Begin(source)
            | Self::Statement { source, .. }
            | Self::RolledBack(source)
            | Self::CommitUnknown(source) => Some(source),
            Self::Migrate(sqlx::migrate::MigrateError::Execute(source)) => Some(source),
            Self::Migrate(_)
            | Self::Away
            | Self::Mismatch { .. }
            | Self::CatalogueMoved { .. }
            | Self::StockBounds { .. }
            | Self::NotAnEnd(_)
            | Self::Malformed { .. } => None,
        }
    }

    fn database(&self) -> Option<&PgDatabaseError> {
        database(self.driver()?)
    }
}

fn database(error: &sqlx::Error) -> Option<&PgDatabaseError> {
    match error {
        sqlx::Error::Database(error) => error.try_downcast_ref::<PgDatabaseError>(),
        _ => None,
    }
}

fn is_transient(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => true,
        sqlx::Error::Database(_) => {
            database(error).is_some_and(|error| is_transient_state(error.code()))
        }
        _ => false,
    }
}

/// 22xxx values, 23xxx constraints, P0xxx what a trigger raises, and what can't be read as our types.
fn is_of_a_row(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. } => true,
        sqlx::Error::Database(_) => database(error).is_some_and(|error| {
            let class = error.code().get(..2);
            matches!(class, Some("22" | "23" | "P0"))
        }),
        _ => false,
    }
}

/// 08xxx connection, 25006 read-only (a standby), 25P03 and 57P05 (a session that was ended
/// because it was silent), 40001 and 40P01, 53xxx resources, 55P03 lock not available, 57P0x
/// shutdown and start-up.
fn is_transient_state(code: &str) -> bool {
    matches!(code, "25006" | "25P03" | "40001" | "40P01" | "55P03")
        || code.starts_with("08")
        || code.starts_with("53")
        || code.starts_with("57P0")
}

/// Sorts the failure of a COMMIT. Only an ordinary ERROR says that it was rolled back: a FATAL
/// (57P01 at a shutdown) may come after the commit, behind its answer.
pub(crate) fn at_commit(error: sqlx::Error) -> StoreError {
    match database(&error).map(PgDatabaseError::severity) {
        Some(PgSeverity::Error) => StoreError::RolledBack(error),
        _ => StoreError::CommitUnknown(error),
    }
}

/// Says what a statement was for.
pub(crate) trait Doing<T> {
    /// `doing` completes "failed to ...".
    fn doing(self, doing: &'static str) -> Result<T>;
}

impl<T> Doing<T> for std::result::Result<T, sqlx::Error> {
    fn doing(self, doing: &'static str) -> Result<T> {
        self.map_err(|source| StoreError::Statement { doing, source })
    }
}

/// Bounds a statement and says what it was for.
pub(crate) trait Bounded<T>: Sized {
    /// `doing` completes "failed to ...". Without an answer within [`ANSWER_WITHIN`] the connection
    /// is lost; dropped in the middle of a statement it is closed when it is given back.
    fn answer(self, doing: &'static str) -> impl Future<Output = Result<T>> + Send;

    /// The same of a statement that may go over a whole table.
    fn slowly(self, doing: &'static str) -> impl Future<Output = Result<T>> + Send;
}

impl<T, F> Bounded<T> for F
where
    T: Send,
    F: Future<Output = std::result::Result<T, sqlx::Error>> + Send,
{
    async fn answer(self, doing: &'static str) -> Result<T> {
        within(ANSWER_WITHIN, self).await.doing(doing)
    }

    async fn slowly(self, doing: &'static str) -> Result<T> {
        within(SLOW_ANSWER_WITHIN, self).await.doing(doing)
    }
}

/// A server that does not answer is one whose connection is lost.
pub(crate) async fn within<T>(
    bound: Duration,
    answer: impl Future<Output = std::result::Result<T, sqlx::Error>>,
) -> std::result::Result<T, sqlx::Error> {
    tokio::time::timeout(bound, answer)
        .await
        .unwrap_or_else(|_| Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())))
}

/// Fails unless a statement touched as many rows as were locked for it.
pub(crate) fn expect_rows(doing: &'static str, expected: usize, found: u64) -> Result<()> {
    let found = usize::try_from(found).unwrap_or(usize::MAX);
    if expected == found {
        Ok(())
    } else {
        Err(StoreError::Mismatch {
            doing,
            expected,
            found,
        })
    }
}
