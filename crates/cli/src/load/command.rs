//! The command line of `holdfast load`.

use clap::Subcommand;

use super::{FlashArgs, Verdict, flash};
use crate::{
    exit::Exit,
    output::{self, Format},
};

/// Flags.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What is sent
    #[command(subcommand)]
    pub load: Load,
}

/// Kinds of load.
#[derive(Debug, Subcommand)]
pub enum Load {
    /// A flash sale: many clients, few units, duplicates and failing payments; then a verdict
    Flash(FlashCommand),
}

/// Flags of `load flash`.
#[derive(Debug, clap::Args)]
pub struct FlashCommand {
    /// The sale
    #[command(flatten)]
    pub sale: FlashArgs,
    /// table or json
    #[arg(long, value_enum, default_value_t)]
    pub output: Format,
}

/// Runs the command.
///
/// # Errors
/// The system can't be reached, or refuses.
pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let Load::Flash(flash_args) = args.load;
    let verdict = flash(&flash_args.sale).await?;
    print(flash_args.output, &verdict)?;
    Ok(if verdict.ok { Exit::Done } else { Exit::Red })
}

/// Prints a verdict.
///
/// # Errors
/// Standard output can't be written.
pub fn print(format: Format, verdict: &Verdict) -> anyhow::Result<()> {
    if format != Format::Table {
        return output::json(format, verdict);
    }
    let answers: Vec<String> = verdict
        .answers
        .iter()
        .map(|(status, n)| format!("{status}: {n}"))
        .collect();
    let rows: [[String; 2]; 14] = [
        ["requested".into(), verdict.requested.to_string()],
        ["answers".into(), answers.join(", ")],
        ["accepted orders".into(), verdict.accepted.to_string()],
        ["confirmed".into(), verdict.confirmed.to_string()],
        ["canceled".into(), verdict.canceled.to_string()],
        ["expired".into(), verdict.expired.to_string()],
        [
            "duplicates absorbed".into(),
            verdict.duplicates_absorbed.to_string(),
        ],
        ["oversold units".into(), verdict.oversold.to_string()],
        ["lost orders".into(), verdict.lost.to_string()],
        ["double effects".into(), verdict.double_effects.to_string()],
        ["unrefunded".into(), verdict.unrefunded.to_string()],
        [
            "answers a second".into(),
            format!("{:.0}", verdict.answers_per_second),
        ],
        ["accept p50 / p99 ms".into(), latency(verdict.accept_ms)],
        ["confirm p50 / p99 ms".into(), latency(verdict.confirm_ms)],
    ];
    output::columns(&rows)?;
    Ok(())
}

fn latency(percentiles: super::verdict::Percentiles) -> String {
    format!("{:.1} / {:.1}", percentiles.p50, percentiles.p99)
}
