//! `holdfast order get|timeline`: one order, over the API and from the stores.

use std::collections::HashMap;

use anyhow::Context;
use clap::Subcommand;
use contracts::{OrderId, Timestamp, Topic, TopicNames, envelope};
use http::{Method, StatusCode};
use messaging::admin;
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use store::{Store, StoreOptions, timeline::Step};

use crate::{
    exit::Exit,
    http_client::HttpClient,
    output::{self, Format},
};

/// What can be asked of an order.
#[derive(Debug, Subcommand)]
pub enum Ask {
    /// The order as the API shows it
    Get(GetArgs),
    /// All that happened to it, with the place of each event on Kafka
    Timeline(TimelineArgs),
}

/// Flags of `order get`.
#[derive(Debug, clap::Args)]
pub struct GetArgs {
    /// The order
    pub id: OrderId,
    /// The order service
    #[arg(long, env = "HOLDFAST_URL")]
    pub url: String,
    /// A shop's key
    #[arg(long, env = "HOLDFAST_API_KEY", hide_env_values = true)]
    pub api_key: SecretString,
}

/// Flags of `order timeline`.
#[derive(Debug, clap::Args)]
pub struct TimelineArgs {
    /// The order
    pub id: OrderId,
    /// PostgreSQL
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: SecretString,
    /// Kafka; without it the events have no partition and offset
    #[arg(long, env = "KAFKA_BROKERS")]
    pub kafka_brokers: Option<String>,
    /// Suffix of all topics
    #[arg(long, env = "HOLDFAST_TOPIC_SUFFIX", default_value = "")]
    pub topic_suffix: String,
    /// table or json
    #[arg(long, value_enum, default_value_t)]
    pub output: Format,
}

#[derive(Serialize)]
struct TimelineStep {
    at: Timestamp,
    what: String,
    #[serde(rename = "where")]
    place: Place,
    by: String,
    version: Option<i64>,
}

#[derive(Serialize)]
struct Place {
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<i64>,
}

/// Runs the command.
///
/// # Errors
/// There is no such order, or a server can't be reached.
pub async fn run(ask: Ask) -> anyhow::Result<Exit> {
    match ask {
        Ask::Get(args) => get(args).await,
        Ask::Timeline(args) => timeline(args).await,
    }
}

async fn get(args: GetArgs) -> anyhow::Result<Exit> {
    let mut client = HttpClient::new(&args.url, Some(args.api_key.expose_secret()))?;
    let path = format!("/v1/orders/{}", args.id);
    let answer = client.send(Method::GET, &path, None, None).await?;
    if answer.status != StatusCode::OK {
        anyhow::bail!(
            "{}: {}",
            answer.status,
            String::from_utf8_lossy(&answer.body)
        );
    }
    output::json(Format::Json, &answer.json())?;
    Ok(Exit::Done)
}

async fn timeline(args: TimelineArgs) -> anyhow::Result<Exit> {
    let options = StoreOptions::background(args.database_url.expose_secret(), "holdfast order");
    let store = Store::connect(&options)?;
    let steps = store::timeline::of_order(&store, args.id, store::timeline::Events::All).await?;
    anyhow::ensure!(!steps.is_empty(), "there is no order {}", args.id);
    let places = match args.kafka_brokers {
        Some(brokers) => places(brokers, TopicNames::new(&args.topic_suffix), args.id).await?,
        None => HashMap::new(),
    };
    let steps: Vec<TimelineStep> = steps
        .into_iter()
        .map(|step| TimelineStep::of(step, &places))
        .collect();
    if args.output != Format::Table {
        output::json(args.output, &steps)?;
        return Ok(Exit::Done);
    }
    let mut before = None;
    let mut rows = Vec::with_capacity(steps.len());
    for step in &steps {
        rows.push(step.row(before));
        before = Some(step.at);
    }
    output::columns(&rows)?;
    Ok(Exit::Done)
}

/// Where each event of the order lies on Kafka, by event id. Reads the topics whole: a tool for
/// people, not for a hot path.
async fn places(
    brokers: String,
    names: TopicNames,
    order: OrderId,
) -> anyhow::Result<HashMap<String, (i32, i64)>> {
    let key = order.to_string().into_bytes();
    let read = tokio::task::spawn_blocking(move || {
        let mut places = HashMap::new();
        for topic in [Topic::Orders, Topic::Payments] {
            admin::dump(&brokers, &names.topic(topic), |record| {
                if record.key.as_deref() == Some(&key[..])
                    && let Some(id) = record.header(envelope::header::ID)
                {
                    places
                        .entry(id.to_owned())
                        .or_insert((record.partition, record.offset));
                }
            })?;
        }
        Ok::<_, admin::AdminError>(places)
    });
    read.await?.context("Kafka can't be read")
}

impl TimelineStep {
    fn of(step: Step, places: &HashMap<String, (i32, i64)>) -> Self {
        let place = match step.event {
            None => Place {
                table: Some(step.place),
                topic: None,
                partition: None,
                offset: None,
            },
            Some((_, event_id)) => {
                let at = places.get(&event_id.to_string());
                Place {
                    table: None,
                    topic: Some(step.place),
                    partition: at.map(|(partition, _)| *partition),
                    offset: at.map(|(_, offset)| *offset),
                }
            }
        };
        Self {
            at: step.at,
            what: step.what,
            place,
            by: step.by,
            version: step.version,
        }
    }

    fn row(&self, before: Option<Timestamp>) -> [String; 5] {
        let gap = before.map_or_else(String::new, |before| {
            format!("+{} ms", (self.at - before).num_milliseconds())
        });
        let place = match (&self.place.table, &self.place.topic) {
            (Some(table), _) => table.clone(),
            (None, Some(topic)) => match (self.place.partition, self.place.offset) {
                (Some(partition), Some(offset)) => format!("{topic}/{partition}@{offset}"),
                _ => topic.clone(),
            },
            (None, None) => String::new(),
        };
        let at = self.at.to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
        [at, gap, self.what.clone(), place, self.by.clone()]
    }
}
