//! Exit codes, and which error ends with which.

use std::process::ExitCode;

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

    /// The end that an error stands for: put [`Unreachable`] or [`Usage`] in its chain to choose.
    #[must_use]
    pub fn of(error: &anyhow::Error) -> Self {
        if error.downcast_ref::<Unreachable>().is_some() {
            Self::Unreachable
        } else if error.downcast_ref::<Usage>().is_some() {
            Self::Usage
        } else {
            Self::Failed
        }
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
