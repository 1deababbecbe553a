//! What can go wrong with servers, each with what a person needs to go on.

use std::{io, path::PathBuf};

/// Why a server is not there.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The machine lacks a program.
    #[error("{what} was not found: run `make setup`, or {instead}")]
    Missing {
        /// The program or file.
        what: String,
        /// What would do as well.
        instead: &'static str,
    },
    /// A file of the state directory could not be read or written.
    #[error("{doing} {}", path.display())]
    File {
        /// What we were doing, as a verb.
        doing: &'static str,
        /// To which file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A program could not be started.
    #[error("starting {program}")]
    Spawn {
        /// Its name.
        program: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A helper program ended with an error.
    #[error("{program} failed ({status}):\n{output}")]
    Command {
        /// Its name.
        program: String,
        /// Its exit status.
        status: String,
        /// The end of what it said.
        output: String,
    },
    /// The process ended before it answered.
    #[error("{name} ended before it was ready; {} ends with:\n{tail}", log.display())]
    Died {
        /// Which one.
        name: String,
        /// Its log.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
    /// The process runs, but did not answer in time.
    #[error(
        "{name} was not ready within {seconds} s ({last}); {} ends with:\n{tail}", log.display()
    )]
    NotReady {
        /// Which one.
        name: String,
        /// How long we waited.
        seconds: u64,
        /// Its last answer.
        last: String,
        /// Its log.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
    /// No port could be found.
    #[error("no free port was found on 127.0.0.1")]
    NoPort,
    /// An account that a server needs does not exist.
    #[error("PostgreSQL does not run as root, and there is no user `postgres`: run `make setup`")]
    NoAccount,
    /// The state file is of another version, or not ours.
    #[error("{} can't be read as a state file; stop what it names by hand and remove it", path.display())]
    BadState {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
}

impl ServerError {
    pub(crate) fn file(doing: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::File {
            doing,
            path: path.into(),
            source,
        }
    }
}
