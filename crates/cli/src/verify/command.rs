//! The command line of `holdfast verify`.

use store::verify::Check;

use super::{Report, VerifyArgs, verify};
use crate::{
    exit::Exit,
    output::{self, Format},
};

/// Flags.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What is looked at
    #[command(flatten)]
    pub target: VerifyArgs,
    /// table or json
    #[arg(long, value_enum, default_value_t)]
    pub output: Format,
}

/// Runs the command.
///
/// # Errors
/// A server can't be reached.
pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let target = args.target.target().await?;
    let report = verify(&target).await?;
    print(args.output, &report)?;
    Ok(if report.ok { Exit::Done } else { Exit::Red })
}

/// Prints a report: a line per rule, and each offender of a red one.
///
/// # Errors
/// Standard output can't be written.
pub fn print(format: Format, report: &Report) -> anyhow::Result<()> {
    if format != Format::Table {
        return output::json(format, report);
    }
    let rows: Vec<[String; 4]> = report.checks.iter().map(row).collect();
    output::columns(&rows)?;
    for check in report.checks.iter().filter(|check| !check.ok) {
        for offender in &check.offenders {
            output::line(format!("{}: {offender}", check.id))?;
        }
    }
    let red = report.checks.iter().filter(|check| !check.ok).count();
    output::line(format!("{} rules, {red} red", report.checks.len()))?;
    Ok(())
}

fn row(check: &Check) -> [String; 4] {
    let mark = if check.ok { "ok" } else { "RED" };
    [
        mark.to_owned(),
        check.id.clone(),
        check.left.clone(),
        check.rule.clone(),
    ]
}
