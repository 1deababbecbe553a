//! `holdfast reconcile`: what is wrong with the gate, and with `--fix` its repair, by the same calls
//! that the stock service makes by itself.

use anyhow::Context;
use stock::{
    StockError,
    reconcile::{self, Reconciled, Said},
};

use crate::{
    exit::{Exit, Unreachable},
    output::{self, Format},
    stores::Stores,
};

/// Flags.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// PostgreSQL and the gate
    #[command(flatten)]
    pub stores: Stores,
    /// Repair it; without this flag it is only shown, and the exit code is 3 when there is any
    #[arg(long)]
    pub fix: bool,
    /// table or json
    #[arg(long, value_enum, default_value_t)]
    pub output: Format,
}

/// Runs the command.
///
/// # Errors
/// A server can't be reached.
pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let stock = args.stores.stock("holdfast reconcile")?;
    let reconciled = if args.fix {
        reconcile::fix(&stock).await
    } else {
        reconcile::plan(&stock).await
    };
    let reconciled = reconciled.map_err(unreachable_gate)?;
    print(args.output, args.fix, &reconciled)?;
    Ok(if reconciled.ok { Exit::Done } else { Exit::Red })
}

fn unreachable_gate(error: StockError) -> anyhow::Error {
    match error {
        StockError::Gate(error) if error.is_transient() => Unreachable {
            server: "Redis".to_owned(),
            said: error.to_string(),
        }
        .into(),
        other => anyhow::Error::from(other),
    }
}

fn print(format: Format, fixed: bool, reconciled: &Reconciled) -> anyhow::Result<()> {
    if format != Format::Table {
        return output::json(format, reconciled).context("printing what is wrong");
    }
    let rows: Vec<[String; 4]> = reconciled
        .repairs
        .iter()
        .map(|repair| {
            [
                repair.sku.clone(),
                repair.what.clone(),
                text(&repair.before),
                text(&repair.after),
            ]
        })
        .collect();
    output::columns(&rows)?;
    let count = rows.len();
    output::line(match (count, fixed, reconciled.ok) {
        (0, _, _) => "the gate is what PostgreSQL says".to_owned(),
        (_, false, _) => format!("{count} to repair: run it with --fix"),
        (_, true, true) => format!("{count} repaired"),
        (_, true, false) => format!("some of {count} are still wrong"),
    })?;
    Ok(())
}

fn text(said: &Said) -> String {
    match said {
        Said::Nothing => "-".to_owned(),
        Said::Units(units) => units.to_string(),
        Said::Word(word) => (*word).to_owned(),
    }
}
