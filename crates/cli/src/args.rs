//! The command line.

use clap::{Parser, Subcommand};

use crate::{
    bench, demo, dlq, doctor, down, exit::Exit, load, order, prepare, reconcile, seed, serve, up,
    verify,
};

#[cfg(not(feature = "failpoints"))]
const VERSION: &str = env!("CARGO_PKG_VERSION");
#[cfg(feature = "failpoints")]
const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (holdfast-failpoint: a build for tests that can be told to crash)"
);

/// Orders and stock for flash sales: no unit sold twice, none lost.
#[derive(Debug, Parser)]
#[command(
    name = "holdfast",
    version = VERSION,
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
    /// Put SKUs with stock
    Seed(seed::Args),
    /// Send load and judge what became of it
    Load(load::command::Args),
    /// Check every invariant; exit code 3 when one is red
    Verify(verify::command::Args),
    /// Show what is wrong with the gate in Redis, and with --fix repair it
    Reconcile(reconcile::Args),
    /// Dead letters: what consumers set aside, and handling it again
    #[command(subcommand)]
    Dlq(dlq::Ask),
    /// One order: as the API shows it, or all that happened to it
    #[command(subcommand)]
    Order(order::Ask),
    /// The whole system from nothing, one flash sale, a verdict; leaves nothing running
    Demo(demo::Args),
    /// Measure, in pairs, on servers of its own; writes target/bench/*.json
    Bench(bench::Args),
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
            Self::Seed(args) => seed::run(args).await,
            Self::Load(args) => load::command::run(args).await,
            Self::Verify(args) => verify::command::run(args).await,
            Self::Reconcile(args) => reconcile::run(args).await,
            Self::Dlq(ask) => dlq::run(ask).await,
            Self::Order(ask) => order::run(ask).await,
            Self::Demo(args) => demo::run(args).await,
            Self::Bench(args) => bench::run(args).await,
            Self::Doctor(args) => doctor::run(args).await,
        }
    }

    /// Whether it writes logs by default: services do, tools talk instead.
    #[must_use]
    pub fn writes_logs(&self) -> bool {
        matches!(self, Self::Serve(_))
    }
}
