//! `holdfast reconcile`: what is wrong with the gate, and with `--fix` its repair, by the same calls
//! that the stock service makes by itself.

use anyhow::Context;
use reservations::{Gate, GateConfig};
use secrecy::{ExposeSecret, SecretString};
use stock::{
    Stock, StockError,
    reconcile::{self, Reconciled, Said},
};
use store::{Store, StoreOptions};

use crate::{
    exit::{Exit, Unreachable},
    output::{self, Format},
};

/// Flags.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// PostgreSQL
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: SecretString,
    /// Redis
    #[arg(long, env = "REDIS_URL", hide_env_values = true)]
    pub redis_url: SecretString,
    /// Prefix of all Redis keys
    #[arg(long, env = "HOLDFAST_KEY_PREFIX", default_value = "hf")]
    pub key_prefix: String,
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
    let options = StoreOptions::background(args.database_url.expose_secret(), "holdfast reconcile");
    let gate = Gate::new(GateConfig {
        key_prefix: args.key_prefix.clone(),
        ..GateConfig::new(args.redis_url.expose_secret())
    })?;
    let stock = Stock {
        store: Store::connect(&options)?,
        gate,
    };
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
