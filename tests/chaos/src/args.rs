//! The command line.

use std::path::PathBuf;

/// Faults, crashes and races under load, on servers of its own; then the proof.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "chaos", version)]
pub struct Args {
    /// How long load and faults go on, in seconds
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(20..=86_400))]
    pub seconds: u64,
    /// All choices come from it; a new one when it is not given
    #[arg(long)]
    pub seed: Option<u64>,
    /// New keys a second
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=2_000))]
    pub rate: u32,
    /// Only these faults, comma-separated (F25,F33); all of them in turn otherwise
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Logs, data and the report
    #[arg(long, default_value = "target/chaos")]
    pub dir: PathBuf,
    /// The services, built with the feature `failpoints`; beside this program when not given
    #[arg(long)]
    pub program: Option<PathBuf>,
    /// Keep the data of the servers as well as the logs
    #[arg(long)]
    pub keep: bool,
}

impl Args {
    /// The services.
    ///
    /// # Errors
    /// This program does not know where it is.
    pub fn program(&self) -> anyhow::Result<PathBuf> {
        match &self.program {
            Some(given) => Ok(given.clone()),
            None => Ok(std::env::current_exe()?.with_file_name("holdfast")),
        }
    }
}
