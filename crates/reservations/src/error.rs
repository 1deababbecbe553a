//! What can go wrong between us and Redis.

use contracts::HoldId;
use redis::{ErrorKind, RedisError, ServerErrorKind};

/// What we were doing when something broke. A refusal by a rule is an outcome, never an error.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// The configuration can't be used.
    #[error("gate configuration: {0}")]
    Config(&'static str),
    /// The URL can't be read.
    #[error("redis url")]
    Url(#[source] RedisError),
    /// No connection, or no greeting on it.
    #[error("connecting to redis")]
    Connect(#[source] RedisError),
    /// The server or the connection failed during a call. It may have been executed.
    #[error("gate call {verb}")]
    Call {
        /// Which.
        verb: &'static str,
        /// Why.
        #[source]
        source: RedisError,
    },
    /// No answer in time. The call may have been executed.
    #[error("gate call {verb} timed out")]
    Timeout {
        /// Which.
        verb: &'static str,
    },
    /// A script found its arguments malformed and did nothing.
    #[error("gate call {verb} was refused: {detail}")]
    Refused {
        /// Which.
        verb: &'static str,
        /// What the script says.
        detail: String,
    },
    /// A reply that none of our scripts gives.
    #[error("gate call {verb} replied {detail}")]
    Reply {
        /// Which.
        verb: &'static str,
        /// What is odd about it.
        detail: String,
    },
    /// Lines that are empty, too many, unsorted or name a SKU twice.
    #[error("hold {0} is not canonical")]
    NotCanonical(HoldId),
    /// A limit, version or count outside 0 to 999,999,999,999,999.
    #[error("{0} is out of range")]
    OutOfRange(&'static str),
    /// Not 1 to 36 of `a-z 0-9 -`, or the epoch that is to be replaced, or the newest one.
    #[error("epoch {0:?} can't be used")]
    Epoch(String),
}

impl GateError {
    /// Whether the same call may succeed later without anyone's help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Timeout { .. } => true,
            Self::Call { source, .. } => is_transient(source),
            Self::Config(_)
            | Self::Url(_)
            | Self::Refused { .. }
            | Self::Reply { .. }
            | Self::NotCanonical(_)
            | Self::OutOfRange(_)
            | Self::Epoch(_) => false,
        }
    }

    /// Whether the server is away, rather than there and unwilling.
    pub(crate) fn is_absence(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Timeout { .. } => true,
            Self::Call { source, .. } => source.is_io_error() || source.is_unrecoverable_error(),
            Self::Config(_)
            | Self::Url(_)
            | Self::Refused { .. }
            | Self::Reply { .. }
            | Self::NotCanonical(_)
            | Self::OutOfRange(_)
            | Self::Epoch(_) => false,
        }
    }
}

/// Whether a connection that gave this error must not be used again: it is broken, or leads to a
/// server that is no longer the master.
pub(crate) fn spoils_connection(error: &RedisError) -> bool {
    error.is_unrecoverable_error()
        || error.is_io_error()
        || matches!(
            error.kind(),
            ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown)
        )
}

/// The wrong key type, an unknown command or a missing right stay wrong; all else passes (P9).
fn is_transient(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Io => true,
        ErrorKind::Server(kind) => matches!(
            kind,
            ServerErrorKind::BusyLoading
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ReadOnly
                | ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::NoScript
        ),
        ErrorKind::Extension => matches!(
            error.code(),
            Some("OOM" | "MISCONF" | "BUSY" | "LOADING" | "READONLY" | "NOREPLICAS")
        ),
        _ => error.is_unrecoverable_error(),
    }
}

/// Whether a key is not of the type that the command wants.
pub(crate) fn is_wrong_type(error: &RedisError) -> bool {
    error.code() == Some("WRONGTYPE")
}
