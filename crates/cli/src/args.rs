//! The command line.

use clap::{Parser, Subcommand};

use crate::{doctor, down, exit::Exit, prepare, serve, up};

/// Orders and stock for flash sales: no unit sold twice, none lost.
#[derive(Debug, Parser)]
#[command(
    name = "holdfast",
    version,
    after_help = "Exit codes: 0 done, 1 failed, 2 usage, 3 an invariant is red, \
                  4 a server can't be reached.\n\
                  Addresses are read from DATABASE_URL, REDIS_URL, KAFKA_BROKERS and HOLDFAST_URL: \
                  `. .holdfast/holdfast.env` after `holdfast up --detach`."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the binary can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start the servers and the services, and wait until they are ready
    Up(up::Args),
    /// Stop what `up` started in a state directory, and only that
    Down(down::Args),
    /// Run one service, or all in one process
    Serve(serve::Args),
    /// Bring the schema of the database up to date
    Migrate(prepare::MigrateArgs),
    /// Make the topics that are missing
    Topics(prepare::TopicsArgs),
    /// Ask servers and services whether they work
    Doctor(doctor::Args),
}

impl Command {
    /// Carries the command out.
    ///
    /// # Errors
    /// It failed; [`Exit::of`] says with which code to end.
    pub async fn run(self) -> anyhow::Result<Exit> {
        match self {
            Self::Up(args) => up::run(args).await,
            Self::Down(args) => down::run(args).await,
            Self::Serve(args) => serve::run(args).await,
            Self::Migrate(args) => prepare::run_migrate(args).await,
            Self::Topics(args) => prepare::run_topics(args).await,
            Self::Doctor(args) => doctor::run(args).await,
        }
    }

    /// Whether it writes logs by default: services do, tools talk instead.
    #[must_use]
    pub fn writes_logs(&self) -> bool {
        matches!(self, Self::Serve(_))
    }
}
