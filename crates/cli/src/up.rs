//! `holdfast up`: the servers, the schema, the topics, the services; ready when it returns.
//!
//! What fails half-way is undone: processes that this call started are stopped, those that ran
//! already are left. A second call in the same state directory finds what runs and starts the rest.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use clap::{Args as _, FromArgMatches};
use platform::{PaymentsMode, Shutdown};
use serde::Serialize;

use crate::{
    down, environment,
    exit::Exit,
    output::{self, Format},
    prepare::{self, TopicSettings},
    servers::{self, Addresses, ServerName, Servers, Source, State, StateDir},
    services::{self, Plan},
};

/// How often a foreground `up` looks whether everything still runs.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Flags.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where data, logs and addresses are kept
    #[arg(long, env = "HOLDFAST_STATE_DIR", default_value = ".holdfast")]
    pub state_dir: PathBuf,
    /// Return when everything is ready, and leave it running
    #[arg(long)]
    pub detach: bool,
    /// Start PostgreSQL, Redis and Kafka alone
    #[arg(long)]
    pub servers_only: bool,
    /// Do not use docker compose, even where an engine answers
    #[arg(long, env = "HOLDFAST_NO_DOCKER", value_parser = clap::builder::BoolishValueParser::new(), num_args = 0..=1, default_value = "false", default_missing_value = "true")]
    pub no_docker: bool,
    /// Who writes payments.v1: `upstream` leaves our payment service out
    #[arg(
        long,
        env = "HOLDFAST_PAYMENTS",
        value_enum,
        default_value = "internal"
    )]
    pub payments: PaymentsMode,
    /// How topics are made
    #[command(flatten)]
    pub topics: TopicSettings,
    /// table or json
    #[arg(long, value_enum, default_value_t)]
    pub output: Format,
}

impl Args {
    /// What `holdfast up --detach` means for a directory, with everything else as the environment
    /// says: for other commands that need a system.
    ///
    /// # Errors
    /// A variable has a value that can't be used.
    pub fn in_dir(state_dir: &Path) -> Result<Self, clap::Error> {
        let command = Self::augment_args(clap::Command::new("up"));
        let words = [
            OsStr::new("up"),
            OsStr::new("--detach"),
            OsStr::new("--state-dir"),
        ];
        let matches =
            command.try_get_matches_from(words.into_iter().chain([state_dir.as_os_str()]))?;
        Self::from_arg_matches(&matches)
    }
}

/// What runs.
#[derive(Debug)]
pub struct System {
    /// Where the servers are.
    pub servers: Servers,
    /// Everything that `holdfast.env` holds.
    pub variables: environment::Variables,
    /// Name, address and origin, for people.
    lines: Vec<[String; 3]>,
}

#[derive(Serialize)]
struct Report<'a> {
    ok: bool,
    state_dir: &'a Path,
    env_file: PathBuf,
    addresses: BTreeMap<&'a str, &'a str>,
    sources: BTreeMap<&'a str, Source>,
    seconds: f64,
}

/// Runs the command.
///
/// # Errors
/// Something did not start; what this call had started is stopped again.
pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let begun = platform::clock::monotonic();
    let shutdown = Shutdown::on_signal();
    let dir = StateDir::lock(&args.state_dir)?;
    let system = bring_up(&dir, &args, &shutdown).await?;
    print(&args, &dir, &system, begun.elapsed())?;
    if args.detach {
        return Ok(Exit::Done);
    }
    let path = dir.path().to_owned();
    // The lock goes, so that `down` can end this from elsewhere.
    drop(dir);
    let ended = supervise(&path, &shutdown).await?;
    let dir = StateDir::lock(&path)?;
    for (name, how) in down::stop_all(&dir).await? {
        eprintln!("{name}: {}", down::explain(how));
    }
    match ended {
        None => Ok(Exit::Done),
        Some(entry) => anyhow::bail!(
            "{} ended by itself; {} ends with:\n{}",
            entry.name,
            entry.log.display(),
            servers::tail(&entry.log, 20)
        ),
    }
}

/// Starts what does not run yet. When something fails, or shutdown begins first, what this call
/// started is stopped; what ran before is not.
///
/// # Errors
/// What failed.
pub async fn bring_up(dir: &StateDir, args: &Args, shutdown: &Shutdown) -> anyhow::Result<System> {
    let before = dir.state();
    let brought = tokio::select! {
        brought = try_bring_up(dir, args) => brought,
        () = shutdown.begun() => Err(anyhow::anyhow!("interrupted")),
    };
    if brought.is_err() {
        // What can't be stopped is said, not hidden behind the error that made us stop.
        if let Err(error) = servers::stop_since(dir, &before).await {
            eprintln!("stopping what was started: {error}");
        }
    }
    brought
}

async fn try_bring_up(dir: &StateDir, args: &Args) -> anyhow::Result<System> {
    let servers = servers::ensure(dir, &Addresses::from_env(), !args.no_docker).await?;
    let mut lines = Vec::new();
    for (server, source) in ServerName::ALL.into_iter().zip(servers.sources) {
        let address = match server {
            ServerName::Postgres => &servers.database_url,
            ServerName::Redis => &servers.redis_url,
            ServerName::Kafka => &servers.kafka_brokers,
        };
        let text = source.explain().to_owned();
        eprintln!("{server}: {text}");
        lines.push([label(server).to_owned(), without_password(address), text]);
    }
    if args.servers_only {
        let variables = environment::of_servers(&servers);
        environment::write(dir.path(), &variables)?;
        return Ok(System {
            servers,
            variables,
            lines,
        });
    }
    prepare::migrate(&servers.database_url)
        .await
        .context("preparing PostgreSQL")?;
    prepare::topics(&servers.kafka_brokers, &args.topics)
        .await
        .context("preparing Kafka")?;
    let mut plan = Plan::new(dir, &servers, args.payments)?;
    plan.variables.insert(
        "HOLDFAST_TOPIC_SUFFIX".to_owned(),
        args.topics.topic_suffix.clone(),
    );
    plan.variables.insert(
        "HOLDFAST_STATE_DIR".to_owned(),
        dir.path().display().to_string(),
    );
    let program = std::env::current_exe().context("finding this program")?;
    let ran_before = services::start(dir, &plan, &program).await?;
    for (service, address) in &plan.services {
        let source = if ran_before.contains(service) {
            Source::Running
        } else {
            Source::Native
        };
        let line = [
            service.as_str().into(),
            format!("http://{address}"),
            source.explain().into(),
        ];
        lines.push(line);
    }
    environment::write(dir.path(), &plan.variables)?;
    Ok(System {
        servers,
        variables: plan.variables,
        lines,
    })
}

/// Waits for a signal, or for the first process that ends without `down`.
async fn supervise(path: &Path, shutdown: &Shutdown) -> anyhow::Result<Option<servers::Entry>> {
    while !shutdown.has_begun() {
        // Read anew: what `down` stops from elsewhere, it also removes from the file.
        let state = State::read(path)?;
        if state.entries.is_empty() {
            return Ok(None);
        }
        let ended = state
            .entries
            .into_iter()
            .find(|entry| !entry.identity.is_running());
        if let Some(ended) = ended
            && still_remembered(path, &ended)?
        {
            return Ok(Some(ended));
        }
        tokio::select! {
            () = shutdown.begun() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
    Ok(None)
}

/// Whether the file still names a process that has ended, once nobody works in the directory:
/// `down` removes an entry only after its process is gone.
fn still_remembered(path: &Path, ended: &servers::Entry) -> anyhow::Result<bool> {
    let dir = StateDir::lock(path)?;
    Ok(dir
        .state()
        .entries
        .iter()
        .any(|entry| entry.identity == ended.identity))
}

fn print(args: &Args, dir: &StateDir, system: &System, took: Duration) -> anyhow::Result<()> {
    let env_file = dir.path().join(environment::FILE);
    if args.output != Format::Table {
        let sources = ServerName::ALL
            .map(ServerName::as_str)
            .into_iter()
            .zip(system.servers.sources);
        let secret = |name: &str| name.ends_with("_KEY") || name.ends_with("_SECRET");
        let addresses = system.variables.iter().filter(|(name, _)| !secret(name));
        return output::json(
            args.output,
            &Report {
                ok: true,
                state_dir: dir.path(),
                env_file,
                addresses: addresses.map(|(n, v)| (n.as_str(), v.as_str())).collect(),
                sources: sources.collect(),
                seconds: took.as_secs_f64(),
            },
        );
    }
    output::columns(&system.lines)?;
    eprintln!();
    eprintln!(
        "Ready in {:.1} s. Logs: {}",
        took.as_secs_f64(),
        dir.path().join("logs").display()
    );
    eprintln!("Next:  . {}", env_file.display());
    if !args.servers_only {
        eprintln!("       holdfast load flash --skus 1 --stock 1000 --requests 10000");
    }
    if args.detach {
        eprintln!(
            "End:   holdfast down --state-dir {}",
            args.state_dir.display()
        );
    } else {
        eprintln!("End:   Ctrl-C");
    }
    Ok(())
}

fn label(server: ServerName) -> &'static str {
    match server {
        ServerName::Postgres => "PostgreSQL",
        ServerName::Redis => "Redis",
        ServerName::Kafka => "Kafka",
    }
}

/// The address without what is between `//` and `@`.
fn without_password(address: &str) -> String {
    match (address.split_once("://"), address.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => address.to_owned(),
    }
}
