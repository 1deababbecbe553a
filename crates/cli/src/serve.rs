//! `holdfast serve`: one service, or all in one process, until SIGTERM or SIGINT. One that ends by
//! itself ends the process, so that whoever supervises it sees it.

use std::{pin::Pin, time::Duration};

use anyhow::Context;
use clap::FromArgMatches;
use platform::{CommonConfig, PaymentsMode, Shutdown};

use crate::{exit::Exit, services::ServiceName};

/// Flags.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which one
    #[command(subcommand)]
    pub service: Service,
}

/// The services, each with its settings.
#[derive(Debug, clap::Subcommand)]
pub enum Service {
    /// The HTTP API, and order requests by Kafka
    Order(::order::Config),
    /// Charges and refunds
    Payment(payment::Config),
    /// Settles and expires orders, repairs the gate
    Stock(stock::Config),
    /// A stand-in payment provider
    GatewaySim(gateway_sim::Config),
    /// All of them in one process, with the settings of the environment
    All,
}

type Running = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

/// Runs the command: returns when the service has stopped.
///
/// # Errors
/// The service refused to start, or broke.
pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let shutdown = Shutdown::on_signal();
    platform::watchdog::start(blocked_for(&args.service)?).context("the watchdog has no thread")?;
    match args.service {
        Service::Order(config) => ::order::run(config, shutdown).await?,
        Service::Payment(config) => payment::run(config, shutdown).await?,
        Service::Stock(config) => stock::run(config, shutdown).await?,
        Service::GatewaySim(config) => gateway_sim::run(config, shutdown).await?,
        Service::All => run_all(&shutdown).await?,
    }
    Ok(Exit::Done)
}

/// How long the runtime may be blocked.
fn blocked_for(service: &Service) -> anyhow::Result<Duration> {
    let seconds = match service {
        Service::Order(config) => config.common.blocked_seconds,
        Service::Payment(config) => config.common.blocked_seconds,
        Service::Stock(config) => config.common.blocked_seconds,
        Service::All => from_environment::<CommonConfig>()?.blocked_seconds,
        // Has no part in any promise.
        Service::GatewaySim(_) => 3_600,
    };
    Ok(Duration::from_secs(seconds))
}

async fn run_all(shutdown: &Shutdown) -> anyhow::Result<()> {
    let payments = from_environment::<CommonConfig>()?.payments;
    let mut tasks = tokio::task::JoinSet::new();
    for service in ServiceName::ALL {
        if service == ServiceName::Payment && payments == PaymentsMode::Upstream {
            continue;
        }
        let running = start(service, shutdown.clone())?;
        tasks.spawn(async move { running.await.with_context(|| service.as_str().to_owned()) });
    }
    let mut first = Ok(());
    while let Some(ended) = tasks.join_next().await {
        // Whichever ends first, and however: the others follow in order.
        shutdown.begin();
        let ended = ended.context("a service panicked").flatten();
        first = first.and(ended);
    }
    first
}

fn start(service: ServiceName, shutdown: Shutdown) -> anyhow::Result<Running> {
    Ok(match service {
        ServiceName::Order => {
            let config = from_environment()?;
            Box::pin(async move { Ok(::order::run(config, shutdown).await?) })
        }
        ServiceName::Payment => {
            let config = from_environment()?;
            Box::pin(async move { Ok(payment::run(config, shutdown).await?) })
        }
        ServiceName::Stock => {
            let config = from_environment()?;
            Box::pin(async move { Ok(stock::run(config, shutdown).await?) })
        }
        ServiceName::GatewaySim => {
            let config = from_environment()?;
            Box::pin(async move { Ok(gateway_sim::run(config, shutdown).await?) })
        }
    })
}

/// Settings from variables and defaults alone.
fn from_environment<C: clap::Args + FromArgMatches>() -> Result<C, clap::Error> {
    let command = C::augment_args(clap::Command::new("holdfast serve all"));
    C::from_arg_matches(&command.try_get_matches_from(["holdfast serve all"])?)
}
