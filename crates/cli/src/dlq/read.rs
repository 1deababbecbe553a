//! `holdfast dlq list` and `show`.

use contracts::TopicNames;
use secrecy::{ExposeSecret, SecretString};
use store::{Store, StoreOptions, dead_letters};
use uuid::Uuid;

use super::{
    Filter,
    letter::{Letter, Whole, table},
    page,
};
use crate::{
    exit::Exit,
    output::{self, Format},
};

/// Where dead letters are read.
#[derive(Debug, clap::Args)]
pub struct Source {
    /// PostgreSQL
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: SecretString,
    /// Suffix of all topics and groups
    #[arg(long, env = "HOLDFAST_TOPIC_SUFFIX", default_value = "")]
    pub topic_suffix: String,
    /// table, json or jsonl
    #[arg(long, value_enum, default_value_t)]
    pub output: Format,
}

/// Flags of `dlq list`.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Those that were redriven, too
    #[arg(long)]
    pub all: bool,
    /// Which
    #[command(flatten)]
    pub filter: Filter,
    /// Where
    #[command(flatten)]
    pub source: Source,
}

/// Flags of `dlq show`.
#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    /// The dead letter
    pub id: Uuid,
    /// Where
    #[command(flatten)]
    pub source: Source,
}

/// Prints the open ones, or all.
///
/// # Errors
/// PostgreSQL can't be reached.
pub async fn list(args: ListArgs) -> anyhow::Result<Exit> {
    let (store, names) = args.source.open()?;
    let (mut letters, mut after) = (Vec::new(), None);
    loop {
        let (found, last) = page(&store, !args.all, &args.filter, after).await?;
        letters.extend(found.into_iter().map(|found| Letter::of(found, &names)));
        if last.is_none() {
            break;
        }
        after = last;
    }
    match args.source.output {
        Format::Json => output::json(Format::Json, &letters)?,
        Format::Jsonl => {
            for letter in &letters {
                output::json(Format::Jsonl, letter)?;
            }
        }
        Format::Table => table(&letters)?,
    }
    Ok(Exit::Done)
}

/// Prints one.
///
/// # Errors
/// There is none, or PostgreSQL can't be reached.
pub async fn show(args: ShowArgs) -> anyhow::Result<Exit> {
    let (store, names) = args.source.open()?;
    let found = dead_letters::get(&mut *store.conn().await?, args.id).await?;
    let Some(found) = found else {
        anyhow::bail!("there is no dead letter {}", args.id);
    };
    let whole = Whole::of(found, &names);
    match args.source.output {
        Format::Table => whole.print()?,
        other => output::json(other, &whole)?,
    }
    Ok(Exit::Done)
}

impl Source {
    fn open(&self) -> anyhow::Result<(Store, TopicNames)> {
        let url = self.database_url.expose_secret();
        let store = Store::connect(&StoreOptions::background(url, "holdfast dlq"))?;
        Ok((store, TopicNames::new(&self.topic_suffix)))
    }
}
