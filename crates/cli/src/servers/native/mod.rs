//! PostgreSQL, Redis and Kafka as plain processes on 127.0.0.1, each in a directory of its own.
//!
//! `holdfast up` leaves them running ([`Server::leave_running`]); a test that wants to stop, kill
//! and restart one starts its own, which ends with the value:
//!
//! ```text
//! let mut redis = Redis::start(directory.path(), Ports::Free).await?;
//! redis.kill().await;
//! redis.restart().await?; // the same port, the same data
//! ```

mod kafka;
mod postgres;
mod redis;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{sys::signal::Signal, unistd::User};

use super::{
    Identity, Launch, Ports, Process, ServerError, Stopped,
    files::{make_dir, tail},
};

pub use kafka::KafkaRecipe;
pub use postgres::PostgresRecipe;
pub use redis::RedisRecipe;

/// A PostgreSQL of our own.
pub type Postgres = Server<PostgresRecipe>;
/// A Redis of our own.
pub type Redis = Server<RedisRecipe>;
/// A Kafka broker of our own.
pub type Kafka = Server<KafkaRecipe>;

/// How long a server may take until it answers: a cold start on a busy machine, with room.
const READY_WITHIN: Duration = Duration::from_secs(90);
const STOP_WITHIN: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(50);

/// An account that a server runs under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Account {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Account {
    fn named(name: &str) -> Option<Self> {
        let user = User::from_name(name).ok()??;
        Some(Self {
            uid: user.uid.as_raw(),
            gid: user.gid.as_raw(),
        })
    }
}

/// How one kind of server is prepared, started, asked and stopped.
pub trait Recipe: Sized + Send {
    /// For people, and for file names.
    const NAME: &'static str;
    /// The signal that makes it end in order.
    const STOP: Signal;

    /// Makes ready what lies in `home` (once: later calls find it) for `port`.
    fn prepare(home: &Path, ports: Ports)
    -> impl Future<Output = Result<Self, ServerError>> + Send;
    /// What to start.
    fn launch(&self, log: &Path) -> Launch;
    /// Whether it answers a question.
    fn probe(&self) -> impl Future<Output = Result<(), String>> + Send;
    /// What is left to do once it answers; safe to repeat.
    fn finish(&self) -> impl Future<Output = Result<(), ServerError>> + Send {
        async { Ok(()) }
    }
    /// Its port.
    fn port(&self) -> u16;
    /// Its address, as the services want it.
    fn url(&self) -> String;
    /// Removes what it keeps outside its home.
    fn forget(home: &Path) {
        let _ = home;
    }
}

/// A running server; ends, without ceremony, when dropped.
#[derive(Debug)]
pub struct Server<R: Recipe> {
    recipe: R,
    process: Process,
    home: PathBuf,
    log: PathBuf,
    left_running: bool,
}

impl<R: Recipe> Server<R> {
    /// Starts one whose data and log live in `home`, and returns when it answers.
    ///
    /// # Errors
    /// The program is missing, the process ended, or it did not answer in time.
    pub async fn start(home: &Path, ports: Ports) -> Result<Self, ServerError> {
        make_dir(home)?;
        let mut server = Self::begin(home, &home.join("log"), ports).await?;
        server.wait_ready().await?;
        Ok(server)
    }

    /// Starts one without waiting: record [`Server::identity`] before [`Server::wait_ready`].
    pub(crate) async fn begin(home: &Path, log: &Path, ports: Ports) -> Result<Self, ServerError> {
        make_dir(home)?;
        let home = home
            .canonicalize()
            .map_err(|e| ServerError::file("finding", home, e))?;
        let recipe = R::prepare(&home, ports).await?;
        let process = recipe.launch(log).start()?;
        Ok(Self {
            recipe,
            process,
            home,
            log: log.to_owned(),
            left_running: false,
        })
    }

    /// Returns when it answers.
    pub(crate) async fn wait_ready(&mut self) -> Result<(), ServerError> {
        let begun = platform::clock::monotonic();
        loop {
            let last = match self.recipe.probe().await {
                Ok(()) => return self.recipe.finish().await,
                Err(said) => said,
            };
            // Asked after the probe: whoever answered on this port while ours was dead is not ours.
            if !self.process.is_running() {
                return Err(ServerError::Died {
                    name: R::NAME.to_owned(),
                    log: self.log.clone(),
                    tail: tail(&self.log, 20),
                });
            }
            if begun.elapsed() > READY_WITHIN {
                return Err(ServerError::NotReady {
                    name: R::NAME.to_owned(),
                    seconds: READY_WITHIN.as_secs(),
                    last,
                    log: self.log.clone(),
                    tail: tail(&self.log, 20),
                });
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.recipe.port()
    }

    /// Its address: a URL, or for Kafka the bootstrap servers.
    pub fn url(&self) -> String {
        self.recipe.url()
    }

    /// Its process.
    pub fn identity(&self) -> Identity {
        self.process.identity()
    }

    /// Its process id, for signals of a test (SIGSTOP, SIGCONT).
    pub fn pid(&self) -> i32 {
        self.identity().pid
    }

    /// Where its data lives.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Stops it in order; the data stays.
    pub async fn stop(&mut self) -> Stopped {
        let stopped = self.identity().stop(R::STOP, STOP_WITHIN).await;
        self.process.is_running();
        stopped
    }

    /// Kills it and its children, as a power cut would; the data stays as it is.
    pub async fn kill(&mut self) {
        self.identity().kill_tree().await;
        self.process.is_running();
    }

    /// Starts it again, on the same port and data, and returns when it answers.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub async fn restart(&mut self) -> Result<(), ServerError> {
        self.stop().await;
        self.process = self.recipe.launch(&self.log).start()?;
        self.wait_ready().await
    }

    /// Lets it run on when this value is dropped.
    pub(crate) fn leave_running(mut self) {
        self.left_running = true;
    }
}

impl<R: Recipe> Drop for Server<R> {
    fn drop(&mut self) {
        if !self.left_running {
            self.identity().signal(R::STOP);
            self.process.reap();
            R::forget(&self.home);
        }
    }
}
