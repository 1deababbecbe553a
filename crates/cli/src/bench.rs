//! `holdfast bench`: paired measures on servers of its own, written to `target/bench/*.json`.
//!
//! A number is written only when the invariants hold afterwards; what did not start, or is red, is
//! an error and leaves no file of an earlier run behind.

mod confirmed;

use std::path::PathBuf;

use ::bench::{Client, Line, accepts};
use anyhow::Context;
use bytes::Bytes;
use clap::ValueEnum;
use http::Method;
use platform::Shutdown;

use crate::{
    down,
    exit::Exit,
    http_client::HttpClient,
    output, prepare,
    servers::{self, StateDir},
    up,
};

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// Accepted orders a second on one hot SKU, against SELECT ... FOR UPDATE
    Accepts,
    /// Confirmed orders a second through the whole system, and what one costs
    Confirmed,
}

impl Measure {
    fn file(self) -> &'static str {
        match self {
            Self::Accepts => "accepts",
            Self::Confirmed => "confirmed",
        }
    }
}

/// Flags.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One measure; all without it
    pub name: Option<Measure>,
    /// Where results are written
    #[arg(long, default_value = "target/bench")]
    pub out: PathBuf,
    /// Where the servers keep their data; removed at the end
    #[arg(long, default_value = ".holdfast/bench")]
    pub state_dir: PathBuf,
    /// Orders of one run of `confirmed`
    #[arg(long, default_value_t = 20_000)]
    pub orders: u32,
    /// Clients of `confirmed`
    #[arg(long, default_value_t = 100)]
    pub clients: u32,
    /// Runs of `confirmed`
    #[arg(long, default_value_t = 3)]
    pub runs: u32,
}

const SUMMARY: &str = "summary";

/// Runs the command.
///
/// # Errors
/// A server did not start, or the numbers would be of a system that breaks its promises.
pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let wanted = args
        .name
        .map_or_else(|| Measure::value_variants().to_vec(), |one| vec![one]);
    for name in wanted.iter().map(|measure| measure.file()).chain([SUMMARY]) {
        let file = args.out.join(format!("{name}.json"));
        if file.exists() {
            std::fs::remove_file(&file).with_context(|| format!("removing {}", file.display()))?;
        }
    }
    let shutdown = Shutdown::on_signal();
    if args.state_dir.is_dir() {
        let dir = StateDir::lock(&args.state_dir)?;
        down::stop_all(&dir).await?;
        drop(dir);
        servers::remove(&args.state_dir)?;
    }
    let dir = StateDir::lock(&args.state_dir)?;
    let measured = tokio::select! {
        measured = measure(&args, &wanted, &dir, &shutdown) => measured,
        () = shutdown.begun() => Err(anyhow::anyhow!("interrupted")),
    };
    let stopped = down::stop_all(&dir).await;
    drop(dir);
    match &measured {
        Ok(_) => servers::remove(&args.state_dir)?,
        Err(_) => eprintln!("data and logs: {}", args.state_dir.display()),
    }
    stopped?;
    print(&measured?)?;
    Ok(Exit::Done)
}

async fn measure(
    args: &Args,
    wanted: &[Measure],
    dir: &StateDir,
    shutdown: &Shutdown,
) -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for measure in wanted {
        let measured = match measure {
            Measure::Accepts => accepted(args, dir, shutdown).await,
            Measure::Confirmed => confirmed::measure(args, dir, shutdown).await,
        };
        let measured = measured.with_context(|| format!("no number for {}", measure.file()))?;
        ::bench::write(&args.out, measure.file(), &measured)?;
        lines.extend(measured);
    }
    ::bench::write(&args.out, SUMMARY, &lines)?;
    Ok(lines)
}

fn print(lines: &[Line]) -> anyhow::Result<()> {
    let optional =
        |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.1}"));
    let header = [
        "measure",
        "ours",
        "other",
        "ratio (min to max)",
        "gate",
        "goal",
        "",
    ];
    let mut rows = vec![header.map(str::to_owned)];
    for line in lines {
        let ratio = line.ratio.map_or_else(String::new, |ratio| {
            format!("{:.2} ({:.2} to {:.2})", ratio.median, ratio.min, ratio.max)
        });
        let verdict = match (line.gate, line.ok) {
            (None, _) => "",
            (Some(_), true) => "reached",
            (Some(_), false) => "MISSED",
        };
        rows.push([
            format!("{} [{}]", line.name, line.unit),
            format!("{:.1}", line.ours),
            optional(line.other),
            ratio,
            optional(line.gate),
            optional(line.goal),
            verdict.to_owned(),
        ]);
    }
    Ok(output::columns(&rows)?)
}

impl Client for HttpClient {
    fn new(url: &str, key: &str) -> anyhow::Result<Self> {
        Self::new(url, Some(key))
    }

    async fn send(
        &mut self,
        method: &'static str,
        path: &str,
        idempotency_key: Option<&str>,
        body: Option<Bytes>,
    ) -> anyhow::Result<u16> {
        let method = Method::from_bytes(method.as_bytes())?;
        let answer = Self::send(self, method, path, idempotency_key, body).await?;
        Ok(answer.status.as_u16())
    }
}

async fn accepted(args: &Args, dir: &StateDir, shutdown: &Shutdown) -> anyhow::Result<Vec<Line>> {
    let mut up_args = up::Args::in_dir(&args.state_dir)?;
    up_args.servers_only = true;
    let servers = up::bring_up(dir, &up_args, shutdown).await?.servers;
    prepare::topics(&servers.kafka_brokers, &up_args.topics).await?;
    accepts::run::<HttpClient>(&accepts::Servers {
        database_url: servers.database_url,
        redis_url: servers.redis_url,
        kafka_brokers: servers.kafka_brokers,
    })
    .await
}
