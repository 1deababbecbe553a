//! `holdfast down`: ends the services, then the servers, that `up` started in a state directory.

use std::path::PathBuf;

use serde::Serialize;

use crate::{
    environment,
    exit::Exit,
    output::{self, Format},
    servers::{self, Role, StateDir, Stopped},
};

/// Flags.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where `up` keeps what it started
    #[arg(long, env = "HOLDFAST_STATE_DIR", default_value = ".holdfast")]
    pub state_dir: PathBuf,
    /// Remove the directory and all its data as well
    #[arg(long)]
    pub delete_data: bool,
    /// table or json
    #[arg(long, value_enum, default_value_t)]
    pub output: Format,
}

#[derive(Serialize)]
struct Report {
    stopped: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    name: String,
    how: Stopped,
}

/// Runs the command.
///
/// # Errors
/// The state directory can't be read or written.
pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let mut report = Report {
        stopped: Vec::new(),
    };
    if args.state_dir.is_dir() {
        let dir = StateDir::lock(&args.state_dir)?;
        for (name, how) in stop_all(&dir).await? {
            report.stopped.push(Line { name, how });
        }
    }
    if args.delete_data {
        servers::remove(&args.state_dir)?;
    }
    match args.output {
        Format::Table if report.stopped.is_empty() => {
            eprintln!("nothing runs in {}", args.state_dir.display());
        }
        Format::Table => output::columns(
            &report
                .stopped
                .iter()
                .map(|l| [l.name.clone(), explain(l.how).into()])
                .collect::<Vec<_>>(),
        )?,
        Format::Json | Format::Jsonl => output::json(args.output, &report)?,
    }
    Ok(Exit::Done)
}

/// Ends everything that was started for `dir`, services first.
///
/// # Errors
/// The state file can't be written.
pub async fn stop_all(dir: &StateDir) -> Result<Vec<(String, Stopped)>, servers::ServerError> {
    let mut stopped = servers::stop(dir, Role::Service).await?;
    stopped.extend(servers::stop(dir, Role::Server).await?);
    // Its addresses answer nobody any more.
    let _ = std::fs::remove_file(dir.path().join(environment::FILE));
    Ok(stopped)
}

/// For people.
pub(crate) fn explain(how: Stopped) -> &'static str {
    match how {
        Stopped::WasGone => "had ended before",
        Stopped::Ended => "stopped",
        Stopped::Killed => "killed: it did not stop in time",
    }
}
