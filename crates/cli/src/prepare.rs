//! `holdfast migrate` and `holdfast topics`: what must exist before a service starts. Both may be
//! run again at any time.

use std::time::Duration;

use contracts::TopicNames;
use messaging::admin::{self, TopicOutcome};
use secrecy::{ExposeSecret, SecretString};

use crate::{
    exit::{Exit, Unreachable},
    output,
};

const READY_WITHIN: Duration = Duration::from_secs(30);

/// Flags of `migrate`.
#[derive(Debug, clap::Args)]
pub struct MigrateArgs {
    /// PostgreSQL, as a URL
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: SecretString,
}

/// Flags of `topics`.
#[derive(Debug, clap::Args)]
pub struct TopicsArgs {
    /// Kafka's bootstrap servers, comma-separated
    #[arg(long, env = "KAFKA_BROKERS")]
    pub kafka_brokers: String,
    /// How they are made
    #[command(flatten)]
    pub settings: TopicSettings,
}

/// How topics are named and made.
#[derive(Debug, Clone, clap::Args)]
pub struct TopicSettings {
    /// Suffix of all topics and groups; empty in production
    #[arg(long, env = "HOLDFAST_TOPIC_SUFFIX", default_value = "")]
    pub topic_suffix: String,
    /// Partitions of a topic that is made
    #[arg(long, env = "HOLDFAST_TOPIC_PARTITIONS", default_value_t = 6)]
    pub topic_partitions: i32,
    /// Copies of each partition of a topic that is made; 3 in production
    #[arg(long, env = "HOLDFAST_TOPIC_REPLICATION", default_value_t = 1)]
    pub topic_replication: i32,
}

/// Runs `migrate`.
///
/// # Errors
/// The database can't be reached, or has a schema that is not ours.
pub async fn run_migrate(args: MigrateArgs) -> anyhow::Result<Exit> {
    let report = migrate(args.database_url.expose_secret()).await?;
    let (version, applied) = (report.version, report.applied.len());
    output::line(format!(
        "schema: version {version}, {applied} migrations applied now"
    ))?;
    Ok(Exit::Done)
}

/// Runs `topics`.
///
/// # Errors
/// The broker can't be reached, or refused a topic.
pub async fn run_topics(args: TopicsArgs) -> anyhow::Result<Exit> {
    let rows: Vec<_> = topics(&args.kafka_brokers, &args.settings)
        .await?
        .into_iter()
        .map(|(name, what)| [name, what])
        .collect();
    output::columns(&rows)?;
    Ok(Exit::Done)
}

/// Brings the schema of a database up to date.
///
/// # Errors
/// It can't be reached, or has a schema that is not ours.
pub async fn migrate(database_url: &str) -> anyhow::Result<store::migrate::Report> {
    Ok(store::migrate(database_url).await?)
}

/// Makes the topics that are missing; each with what became of it.
///
/// # Errors
/// The broker can't be reached, or refused a topic.
pub async fn topics(
    brokers: &str,
    settings: &TopicSettings,
) -> anyhow::Result<Vec<(String, String)>> {
    admin::wait_ready(brokers, READY_WITHIN)
        .await
        .map_err(|error| Unreachable {
            server: "Kafka".into(),
            said: error.to_string(),
        })?;
    let names = TopicNames::new(&settings.topic_suffix);
    let (partitions, copies) = (settings.topic_partitions, settings.topic_replication);
    let mut made = Vec::new();
    for report in admin::ensure_topics(brokers, &names, partitions, copies).await? {
        let what = match report.outcome {
            TopicOutcome::Created => "created",
            TopicOutcome::Exists => "present",
            TopicOutcome::Refused(why) => {
                anyhow::bail!("the broker refused to make {}: {why}", report.name)
            }
        };
        made.push((report.name, what.to_owned()));
    }
    Ok(made)
}
