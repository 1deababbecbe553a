//! `holdfast load flash`: a flash sale from the outside, and its verdict from the databases.
//!
//! Latency counts from the moment a request was to be sent: with `--rate` from the schedule (open
//! loop, so that a stalled server is not flattered), without it from the moment its client was free.

mod clients;
pub mod command;
pub(crate) mod cpu;
mod plan;
mod sale;
mod verdict;

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use clap::Args;
use contracts::OrderId;
use secrecy::{ExposeSecret, SecretString};
use store::{Store, StoreOptions};

pub use verdict::{Percentiles, Verdict};

/// A flash sale.
#[derive(Debug, Clone, Args)]
pub struct FlashArgs {
    /// SKUs on sale: SKU-1 to SKU-N
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub skus: u32,
    /// Units of each SKU that can be taken when the sale begins
    #[arg(long, default_value_t = 1_000)]
    pub stock: u32,
    /// Requests in all, duplicates included
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub requests: u32,
    /// Clients, each with one connection
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub clients: u32,
    /// Share of requests that repeat an earlier key and body, from 0 to 0.9
    #[arg(long, default_value_t = 0.1, value_parser = share)]
    pub duplicates: f64,
    /// Share of payments that are declined for good, from 0 to 0.9 (sets the simulated gateway)
    #[arg(long, default_value_t = 0.05, value_parser = share)]
    pub payment_failures: f64,
    /// Share of payments that fail without an end, so that their orders expire, from 0 to 0.9
    #[arg(long, default_value_t = 0.0, value_parser = share)]
    pub abandoned: f64,
    /// Requests a second, on schedule whatever the answers take; without it each client sends when free
    #[arg(long)]
    pub rate: Option<u32>,
    /// Makes the run repeatable
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How long a reservation lasts
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub ttl_seconds: u32,
    /// How long to wait for the last order to end
    #[arg(long, default_value_t = 180)]
    pub wait_seconds: u64,
    /// Where the running system is
    #[command(flatten)]
    pub target: Target,
}

/// The addresses of `holdfast.env`.
#[derive(Debug, Clone, Args)]
pub struct Target {
    /// The order service
    #[arg(long, env = "HOLDFAST_URL")]
    pub url: String,
    /// A shop's key
    #[arg(long, env = "HOLDFAST_API_KEY", hide_env_values = true)]
    pub api_key: SecretString,
    /// An operator's key
    #[arg(long, env = "HOLDFAST_OPERATOR_KEY", hide_env_values = true)]
    pub operator_key: SecretString,
    /// PostgreSQL: the verdict comes from there
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: SecretString,
    /// The simulated gateway; needed for failing payments
    #[arg(long, env = "GATEWAY_URL")]
    pub gateway_url: Option<String>,
    /// The state directory of `holdfast up`, for the CPU times of its processes
    #[arg(long, env = "HOLDFAST_STATE_DIR")]
    pub state_dir: Option<PathBuf>,
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=0.9).contains(&share) => Ok(share),
        _ => Err("must be a number from 0 to 0.9".to_owned()),
    }
}

/// Runs the sale, waits until every accepted order has ended, and judges it.
///
/// # Errors
/// The system can't be reached, or refuses to be set up for the sale. A sale that went wrong is
/// not an error but a verdict that is not ok.
pub async fn flash(args: &FlashArgs) -> anyhow::Result<Verdict> {
    let url = args.target.database_url.expose_secret();
    let store = Store::connect(&StoreOptions::background(url, "holdfast load"))?;
    store.ping().await.context("PostgreSQL can't be reached")?;
    let skus: Vec<String> = (1..=args.skus)
        .map(|number| format!("SKU-{number}"))
        .collect();
    let gateway = sale::prepare(args, &skus).await?;
    let run = format!("{:x}", contracts::ids::generate().as_u128() >> 64);
    let requests = args.requests.try_into().context("too many requests")?;
    let planned = Arc::new(plan::plan(
        &run,
        &skus,
        requests,
        args.duplicates,
        args.seed,
    ));
    let since = OrderId::generate();
    let cpu = cpu::Sample::take(args.target.state_dir.as_deref());
    let progress = sale::Progress::start(store.clone(), skus.clone(), since, planned.len());
    let sent = clients::send(args, Arc::clone(&planned), progress.tally()).await?;
    let ended = sale::wait_for_ends(&store, &skus, since, Duration::from_secs(args.wait_seconds));
    let all_ended = ended.await?;
    progress.stop().await;
    gateway.restore().await;
    let cpu = cpu.map(|before| before.until_now());
    verdict::judge(&store, &skus, since, &planned, sent, all_ended, cpu).await
}

impl Target {
    fn key(&self) -> &str {
        self.api_key.expose_secret()
    }

    fn operator(&self) -> &str {
        self.operator_key.expose_secret()
    }
}
