//! `holdfast demo`: the whole system from nothing, one flash sale with duplicates, failing and
//! abandoned payments, a verdict from the databases; leaves nothing running.

use std::path::PathBuf;

use clap::Parser;
use platform::Shutdown;

use crate::{
    down,
    environment::Variables,
    exit::Exit,
    load::{self, FlashArgs, Verdict},
    output::{self, Format},
    servers::{self, StateDir},
    up,
    verify::{self, VerifyArgs},
};

/// Flags.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// SKUs on sale
    #[arg(long, default_value_t = 3)]
    pub skus: u32,
    /// Units of each
    #[arg(long, default_value_t = 1_000)]
    pub stock: u32,
    /// Requests in all
    #[arg(long, default_value_t = 10_000)]
    pub requests: u32,
    /// Clients
    #[arg(long, default_value_t = 500)]
    pub clients: u32,
    /// How long a reservation lasts: short, so that orders whose payment has no end expire while
    /// you watch
    #[arg(long, default_value_t = 8)]
    pub ttl_seconds: u32,
    /// Makes the run repeatable
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Where the demo keeps its data; removed at the end
    #[arg(long, default_value = ".holdfast/demo")]
    pub state_dir: PathBuf,
    /// Keep the data and the logs
    #[arg(long)]
    pub keep: bool,
}

/// Runs the command.
///
/// # Errors
/// Something did not start, or could not be reached. All that was started is stopped.
pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let shutdown = Shutdown::on_signal();
    // A demo that was killed leaves its data; its stock would not be this demo's.
    if args.state_dir.is_dir() {
        let dir = StateDir::lock(&args.state_dir)?;
        down::stop_all(&dir).await?;
        drop(dir);
        servers::remove(&args.state_dir)?;
    }
    let dir = StateDir::lock(&args.state_dir)?;
    let ended = tokio::select! {
        ended = sale(&args, &dir, &shutdown) => ended,
        () = shutdown.begun() => Err(anyhow::anyhow!("interrupted")),
    };
    let stopped = down::stop_all(&dir).await;
    drop(dir);
    if !args.keep && matches!(ended, Ok(Exit::Done)) {
        servers::remove(&args.state_dir)?;
    } else {
        eprintln!("data and logs: {}", args.state_dir.display());
    }
    stopped?;
    ended
}

async fn sale(args: &Args, dir: &StateDir, shutdown: &Shutdown) -> anyhow::Result<Exit> {
    let up_args = up::Args::in_dir(&args.state_dir)?;
    let system = up::bring_up(dir, &up_args, shutdown).await?;
    eprintln!(
        "selling {} units of each of {} SKUs to {} clients with {} requests",
        args.stock, args.skus, args.clients, args.requests
    );
    let verdict = load::flash(&flash_args(args, &system.variables)?).await?;
    let report = verify::at_rest(&verify_args(&system.variables)?.target().await?).await?;
    load::command::print(Format::Table, &verdict)?;
    output::line("")?;
    verify::command::print(Format::Table, &report)?;
    output::line("")?;
    let ok = verdict.ok && report.ok && the_point_was_made(args, &verdict)?;
    output::line(if ok {
        "VERDICT: clean. Every promise was kept."
    } else {
        "VERDICT: RED. See above."
    })?;
    output::line("Next:    make up, then the curl lines of README.md")?;
    Ok(if ok { Exit::Done } else { Exit::Red })
}

/// A demo in which nothing went wrong on purpose proves nothing: duplicates, failed payments and
/// expired orders must have occurred.
fn the_point_was_made(args: &Args, verdict: &Verdict) -> anyhow::Result<bool> {
    let small = args.requests < 1_000;
    let missing: Vec<&str> = [
        ("no order was confirmed", verdict.confirmed == 0),
        (
            "no duplicate was absorbed",
            verdict.duplicates_absorbed == 0,
        ),
        (
            "no payment failed for good",
            verdict.canceled == 0 && !small,
        ),
        ("no order expired", verdict.expired == 0 && !small),
    ]
    .into_iter()
    .filter_map(|(what, missing)| missing.then_some(what))
    .collect();
    for what in &missing {
        output::line(format!("the demo shows nothing: {what}"))?;
    }
    Ok(missing.is_empty())
}

#[derive(Parser)]
struct FlashFlags {
    #[command(flatten)]
    args: FlashArgs,
}

#[derive(Parser)]
struct VerifyFlags {
    #[command(flatten)]
    args: VerifyArgs,
}

fn flash_args(args: &Args, variables: &Variables) -> anyhow::Result<FlashArgs> {
    let mut flags = vec![
        "flash".to_owned(),
        format!("--skus={}", args.skus),
        format!("--stock={}", args.stock),
        format!("--requests={}", args.requests),
        format!("--clients={}", args.clients),
        format!("--ttl-seconds={}", args.ttl_seconds),
        format!("--seed={}", args.seed),
        "--duplicates=0.1".to_owned(),
        "--payment-failures=0.05".to_owned(),
        "--abandoned=0.02".to_owned(),
        format!("--state-dir={}", args.state_dir.display()),
    ];
    flags.extend(addresses(
        variables,
        &[
            ("--url", "HOLDFAST_URL"),
            ("--api-key", "HOLDFAST_API_KEY"),
            ("--operator-key", "HOLDFAST_OPERATOR_KEY"),
            ("--database-url", "DATABASE_URL"),
            ("--gateway-url", "GATEWAY_URL"),
        ],
    ));
    Ok(FlashFlags::try_parse_from(flags)?.args)
}

fn verify_args(variables: &Variables) -> anyhow::Result<VerifyArgs> {
    let mut flags = vec!["verify".to_owned()];
    flags.extend(addresses(
        variables,
        &[
            ("--database-url", "DATABASE_URL"),
            ("--redis-url", "REDIS_URL"),
            ("--kafka-brokers", "KAFKA_BROKERS"),
            ("--gateway-url", "GATEWAY_URL"),
        ],
    ));
    Ok(VerifyFlags::try_parse_from(flags)?.args)
}

fn addresses(variables: &Variables, wanted: &[(&str, &str)]) -> Vec<String> {
    wanted
        .iter()
        .filter_map(|(flag, name)| variables.get(*name).map(|value| format!("{flag}={value}")))
        .collect()
}
