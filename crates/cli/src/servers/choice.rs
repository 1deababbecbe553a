//! Which of the three sources each server comes from, and starting and stopping what we started.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use super::{
    Entry, Ports, Role, ServerError, State, StateDir, Stopped, compose,
    compose::Project,
    native::{Kafka, KafkaRecipe, Postgres, PostgresRecipe, Recipe, Redis, RedisRecipe, Server},
};

const STOP_WITHIN: Duration = Duration::from_secs(20);

/// The three servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerName {
    /// PostgreSQL.
    Postgres,
    /// Redis.
    Redis,
    /// Apache Kafka.
    Kafka,
}

impl ServerName {
    /// All, in the order in which they are listed.
    pub const ALL: [Self; 3] = [Self::Postgres, Self::Redis, Self::Kafka];

    /// As in `docker-compose.yml` and in file names.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Redis => "redis",
            Self::Kafka => "kafka",
        }
    }

    /// The variable that gives its address.
    #[must_use]
    pub fn variable(self) -> &'static str {
        match self {
            Self::Postgres => "DATABASE_URL",
            Self::Redis => "REDIS_URL",
            Self::Kafka => "KAFKA_BROKERS",
        }
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a server came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// An address in the environment: not ours to stop.
    Environment,
    /// A container of `docker-compose.yml`.
    Compose,
    /// A process that was started now.
    Native,
    /// A process that ran already in this state directory.
    Running,
}

impl Source {
    /// For people.
    #[must_use]
    pub fn explain(self) -> &'static str {
        match self {
            Self::Environment => "given by the environment",
            Self::Compose => "docker compose",
            Self::Native => "started here",
            Self::Running => "ran already",
        }
    }
}

/// Addresses that need not be found: those given win over everything else.
#[derive(Debug, Clone, Default)]
pub struct Addresses {
    /// `DATABASE_URL`
    pub postgres: Option<String>,
    /// `REDIS_URL`
    pub redis: Option<String>,
    /// `KAFKA_BROKERS`
    pub kafka: Option<String>,
}

impl Addresses {
    /// Those in the environment; an empty one counts as none.
    #[must_use]
    pub fn from_env() -> Self {
        let read = |server: ServerName| {
            std::env::var(server.variable())
                .ok()
                .filter(|address| !address.is_empty())
        };
        Self {
            postgres: read(ServerName::Postgres),
            redis: read(ServerName::Redis),
            kafka: read(ServerName::Kafka),
        }
    }

    fn of(&self, server: ServerName) -> Option<&String> {
        match server {
            ServerName::Postgres => self.postgres.as_ref(),
            ServerName::Redis => self.redis.as_ref(),
            ServerName::Kafka => self.kafka.as_ref(),
        }
    }
}

/// Where the three servers answer, and where each came from.
#[derive(Debug, Clone)]
pub struct Servers {
    /// PostgreSQL, as a URL with a database.
    pub database_url: String,
    /// Redis, as a URL.
    pub redis_url: String,
    /// Kafka's bootstrap servers.
    pub kafka_brokers: String,
    /// Postgres, Redis, Kafka.
    pub sources: [Source; 3],
}

/// The three servers of a state directory: those given, those that run already, or fresh ones.
/// When one can't be started, those that were started by this call are stopped.
///
/// # Errors
/// What could not be started, and why.
pub async fn ensure(
    dir: &StateDir,
    given: &Addresses,
    use_docker: bool,
) -> Result<Servers, ServerError> {
    let state = dir.state();
    let mut found = BTreeMap::new();
    let mut missing = Vec::new();
    for server in ServerName::ALL {
        if let Some(address) = given.of(server) {
            found.insert(server, (address.clone(), Source::Environment));
        } else if let Some(entry) = state.running(server.as_str()) {
            found.insert(server, (entry.address.clone(), Source::Running));
        } else {
            missing.push(server);
        }
    }
    let file = if missing.is_empty() || !use_docker {
        None
    } else {
        compose::available().await
    };
    let (fresh, source) = match file {
        Some(file) => (start_compose(dir, file, &missing).await?, Source::Compose),
        None => (start_native(dir, &missing).await?, Source::Native),
    };
    found.extend(
        fresh
            .into_iter()
            .map(|(server, address)| (server, (address, source))),
    );
    let mut take = |server: ServerName| {
        found.remove(&server).ok_or_else(|| ServerError::Missing {
            what: server.to_string(),
            instead: "set its address in the environment",
        })
    };
    let postgres = take(ServerName::Postgres)?;
    let redis = take(ServerName::Redis)?;
    let kafka = take(ServerName::Kafka)?;
    Ok(Servers {
        database_url: postgres.0,
        redis_url: redis.0,
        kafka_brokers: kafka.0,
        sources: [postgres.1, redis.1, kafka.1],
    })
}

async fn start_compose(
    dir: &StateDir,
    file: PathBuf,
    missing: &[ServerName],
) -> Result<Vec<(ServerName, String)>, ServerError> {
    let project = Project::of(dir.path(), file);
    dir.change(|state| state.compose = Some(project.clone()))?;
    project.up(dir.path(), missing).await
}

async fn start_native(
    dir: &StateDir,
    missing: &[ServerName],
) -> Result<Vec<(ServerName, String)>, ServerError> {
    let wants = |server| missing.contains(&server);
    let (postgres, redis, kafka) = tokio::join!(
        start_one::<PostgresRecipe>(dir, wants(ServerName::Postgres)),
        start_one::<RedisRecipe>(dir, wants(ServerName::Redis)),
        start_one::<KafkaRecipe>(dir, wants(ServerName::Kafka)),
    );
    // The values of those that did start end their servers when one of them did not.
    let (postgres, redis, kafka): (Option<Postgres>, Option<Redis>, Option<Kafka>) =
        (postgres?, redis?, kafka?);
    let mut fresh = Vec::new();
    keep(ServerName::Postgres, postgres, &mut fresh);
    keep(ServerName::Redis, redis, &mut fresh);
    keep(ServerName::Kafka, kafka, &mut fresh);
    Ok(fresh)
}

fn keep<R: Recipe>(
    name: ServerName,
    server: Option<Server<R>>,
    fresh: &mut Vec<(ServerName, String)>,
) {
    if let Some(server) = server {
        fresh.push((name, server.url()));
        server.leave_running();
    }
}

async fn start_one<R: Recipe>(
    dir: &StateDir,
    wanted: bool,
) -> Result<Option<Server<R>>, ServerError> {
    if !wanted {
        return Ok(None);
    }
    let log = dir.log(R::NAME);
    let mut server = Server::<R>::begin(&dir.path().join(R::NAME), &log, Ports::Free).await?;
    let entry = Entry {
        name: R::NAME.to_owned(),
        role: Role::Server,
        identity: server.identity(),
        address: server.url(),
        log,
    };
    dir.change(|state| state.record(entry))?;
    server.wait_ready().await?;
    Ok(Some(server))
}

/// Stops the processes of one role that this state directory remembers, the last started first,
/// and forgets them. What was not started for it is left alone.
///
/// # Errors
/// The state file can't be written, or the engine refused.
pub async fn stop(dir: &StateDir, role: Role) -> Result<Vec<(String, Stopped)>, ServerError> {
    let mut report = stop_entries(dir, |entry| entry.role == role).await?;
    if role == Role::Server && stop_compose(dir).await? {
        report.push(("docker compose".to_owned(), Stopped::Ended));
    }
    Ok(report)
}

/// Stops what was started since `before`, the last started first.
///
/// # Errors
/// As [`stop`].
pub async fn stop_since(dir: &StateDir, before: &State) -> Result<(), ServerError> {
    let known = |entry: &Entry| {
        before
            .entries
            .iter()
            .any(|old| old.identity == entry.identity)
    };
    stop_entries(dir, |entry| !known(entry)).await?;
    if before.compose.is_none() {
        stop_compose(dir).await?;
    }
    Ok(())
}

async fn stop_entries(
    dir: &StateDir,
    which: impl Fn(&Entry) -> bool,
) -> Result<Vec<(String, Stopped)>, ServerError> {
    let mut report = Vec::new();
    for entry in dir
        .state()
        .entries
        .iter()
        .rev()
        .filter(|entry| which(entry))
    {
        let stopped = entry
            .identity
            .stop(stop_signal(&entry.name), STOP_WITHIN)
            .await;
        dir.change(|state| state.entries.retain(|known| known.name != entry.name))?;
        report.push((entry.name.clone(), stopped));
    }
    Ok(report)
}

/// Whether there was a project to end.
async fn stop_compose(dir: &StateDir) -> Result<bool, ServerError> {
    let Some(project) = dir.state().compose else {
        return Ok(false);
    };
    project.down().await?;
    dir.change(|state| state.compose = None)?;
    Ok(true)
}

fn stop_signal(name: &str) -> Signal {
    match name {
        PostgresRecipe::NAME => PostgresRecipe::STOP,
        _ => Signal::SIGTERM,
    }
}

/// Removes the data of a state directory whose servers were stopped.
///
/// # Errors
/// A file can't be removed.
pub fn remove(path: &Path) -> Result<(), ServerError> {
    PostgresRecipe::forget(&path.join(PostgresRecipe::NAME));
    if !path.exists() {
        return Ok(());
    }
    std::fs::remove_dir_all(path).map_err(|source| ServerError::file("removing", path, source))
}
