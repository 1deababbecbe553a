//! `holdfast serve`: one service, or all in one process, until SIGTERM or SIGINT.

use platform::Shutdown;

use crate::exit::Exit;

/// Flags.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which one
    #[command(subcommand)]
    pub service: Service,
}

/// The services.
#[derive(Debug, clap::Subcommand)]
pub enum Service {
    /// A stand-in payment provider
    GatewaySim(gateway_sim::Config),
}

/// Runs the command: returns when the service has stopped.
///
/// # Errors
/// The service refused to start, or broke.
pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let shutdown = Shutdown::on_signal();
    match args.service {
        Service::GatewaySim(config) => gateway_sim::run(config, shutdown).await?,
    }
    Ok(Exit::Done)
}
