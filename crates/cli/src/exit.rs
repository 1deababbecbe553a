//! Exit codes, and which error ends with which.

use std::process::ExitCode;

use messaging::AdminError;
use reservations::GateError;
use store::StoreError;

/// How the binary ends: scripts rely on the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// What was asked for is done.
    Done,
    /// It is not.
    Failed,
    /// The command line was wrong.
    Usage,
    /// It was done, and an invariant is red.
    Red,
    /// A server can't be reached.
    Unreachable,
}

impl Exit {
    /// The number.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Red => 3,
            Self::Unreachable => 4,
        }
    }

    /// The end that an error stands for, whatever was said around it: a command fails with
    /// [`Unreachable`] or [`Usage`] to choose, and a store that can't be reached is enough.
    #[must_use]
    pub fn of(error: &anyhow::Error) -> Self {
        // As the context of what the network said it is none of the chain.
        if error.downcast_ref::<Unreachable>().is_some() {
            return Self::Unreachable;
        }
        for cause in error.chain() {
            let no_store = cause.downcast_ref().is_some_and(|error: &StoreError| {
                matches!(error, StoreError::Connect(_)) || error.is_absence()
            });
            let no_broker = matches!(
                cause.downcast_ref(),
                Some(AdminError::NotReady { .. } | AdminError::Request { .. })
            );
            let gate = cause.downcast_ref::<GateError>();
            let no_gate = gate.is_some_and(GateError::is_transient);
            if no_store || no_broker || no_gate || cause.is::<Unreachable>() {
                return Self::Unreachable;
            }
            if cause.is::<Usage>() {
                return Self::Usage;
            }
        }
        Self::Failed
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// A server can't be reached.
#[derive(Debug, thiserror::Error)]
#[error("{server} can't be reached: {said}")]
pub struct Unreachable {
    /// Which one.
    pub server: String,
    /// What it said, or what the network did.
    pub said: String,
}

/// A command line that is wrong in a way that only shows when it is carried out.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);
