//! `holdfast doctor`: asks servers and services whether they work, by a question that only a
//! working one answers. The health checks of `docker-compose.yml` are this command.

use std::{net::SocketAddr, time::Duration};

use clap::ValueEnum;
use serde::Serialize;
use store::{Store, StoreError, StoreOptions};

use crate::{
    exit::{Exit, Usage},
    output::{self, Format},
    servers::redis_answers,
    services::{self, ServiceName},
};

const ANSWER_WITHIN: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(250);

/// Flags.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Wait until these work, and ask no others (without it, everything with an address is asked
    /// once)
    #[arg(long, value_enum, num_args = 1.., value_delimiter = ',')]
    pub wait: Vec<Target>,
    /// How long to wait: 500ms, 30s, 2m
    #[arg(long, default_value = "30s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// PostgreSQL, as a URL
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: Option<String>,
    /// Redis, as a URL
    #[arg(long, env = "REDIS_URL", hide_env_values = true)]
    pub redis_url: Option<String>,
    /// Kafka's bootstrap servers, comma-separated
    #[arg(long, env = "KAFKA_BROKERS")]
    pub kafka_brokers: Option<String>,
    /// table or json
    #[arg(long, value_enum, default_value_t)]
    pub output: Format,
}

/// What can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Target {
    /// `select 1`
    Postgres,
    /// `PING`
    Redis,
    /// Metadata of the brokers
    Kafka,
    /// `/readyz`
    Order,
    /// `/readyz`
    Payment,
    /// `/readyz`
    Stock,
    /// `/readyz`
    GatewaySim,
}

#[derive(Debug, Serialize)]
struct Report {
    ok: bool,
    checks: Vec<Check>,
}

#[derive(Debug, Serialize)]
struct Check {
    name: String,
    ok: bool,
    detail: String,
}

impl Target {
    fn name(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }

    /// The service behind it, when it is one.
    fn service(self) -> Option<ServiceName> {
        match self {
            Self::Postgres | Self::Redis | Self::Kafka => None,
            Self::Order => Some(ServiceName::Order),
            Self::Payment => Some(ServiceName::Payment),
            Self::Stock => Some(ServiceName::Stock),
            Self::GatewaySim => Some(ServiceName::GatewaySim),
        }
    }
}

/// Runs the command.
///
/// # Errors
/// An address is missing, or standard output can't be written.
pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let begun = platform::clock::monotonic();
    #[cfg(feature = "failpoints")]
    eprintln!(
        "warning: this binary has crash points ({})",
        platform::failpoints::MARKER
    );
    let targets: Vec<Target> = if args.wait.is_empty() {
        Target::value_variants()
            .iter()
            .copied()
            .filter(|t| args.address(*t).is_some())
            .collect()
    } else {
        args.wait.clone()
    };
    if targets.is_empty() {
        return Err(
            Usage("no address is set: source DIR/holdfast.env, or name a target".into()).into(),
        );
    }
    let mut report = ask_all(&args, &targets).await?;
    while !report.ok && !args.wait.is_empty() && begun.elapsed() < args.timeout {
        tokio::time::sleep(POLL).await;
        report = ask_all(&args, &targets).await?;
    }
    match args.output {
        Format::Table => {
            let rows = report.checks.iter().map(|check| {
                let word = if check.ok { "ok" } else { "no" };
                [check.name.clone(), word.to_owned(), check.detail.clone()]
            });
            output::columns(&rows.collect::<Vec<_>>())?;
        }
        Format::Json | Format::Jsonl => output::json(args.output, &report)?,
    }
    Ok(if report.ok {
        Exit::Done
    } else {
        Exit::Unreachable
    })
}

async fn ask_all(args: &Args, targets: &[Target]) -> anyhow::Result<Report> {
    let mut checks = Vec::new();
    for target in targets {
        let address = args
            .address(*target)
            .ok_or_else(|| Usage(format!("the address of {} is not set", target.name())))?;
        let answer = ask(*target, &address).await;
        checks.push(Check {
            name: target.name(),
            ok: answer.is_ok(),
            detail: answer.err().unwrap_or_default(),
        });
    }
    Ok(Report {
        ok: checks.iter().all(|check| check.ok),
        checks,
    })
}

async fn ask(target: Target, address: &str) -> Result<(), String> {
    match target {
        Target::Postgres => ask_postgres(address).await.map_err(|error| chain(&error)),
        Target::Redis => ask_redis(address).await,
        Target::Kafka => messaging::admin::wait_ready(address, ANSWER_WITHIN)
            .await
            .map_err(|error| chain(&error)),
        Target::Order | Target::Payment | Target::Stock | Target::GatewaySim => {
            services::ready(address).await
        }
    }
}

async fn ask_postgres(url: &str) -> Result<(), StoreError> {
    Store::connect(&StoreOptions::background(url, "holdfast-doctor"))?
        .ping()
        .await
}

/// `PING` with the password of the URL; the name before the password is left out.
async fn ask_redis(url: &str) -> Result<(), String> {
    let uri: http::Uri = url
        .parse()
        .map_err(|_| "REDIS_URL is not a URL".to_owned())?;
    let host = uri.host().unwrap_or("127.0.0.1");
    let address = format!("{host}:{}", uri.port_u16().unwrap_or(6379));
    let secret = uri
        .authority()
        .and_then(|a| a.as_str().rsplit_once('@'))
        .map(|(user, _)| user);
    let password = secret
        .and_then(|user| user.split_once(':'))
        .map(|(_, password)| password);
    redis_answers(&address, password).await
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(&format!(": {source}"));
        next = source.source();
    }
    text
}

impl Args {
    /// Where a target is. One that is waited for is the one on this machine, if the environment
    /// says where it listens: a health check asks its own container. One that is merely looked at
    /// is where everybody finds it.
    fn address(&self, target: Target) -> Option<String> {
        let Some(service) = target.service() else {
            return match target {
                Target::Postgres => self.database_url.clone(),
                Target::Redis => self.redis_url.clone(),
                _ => self.kafka_brokers.clone(),
            };
        };
        let listen = std::env::var(service.listen_variable()).ok();
        let listen = listen.and_then(|address| address.parse::<SocketAddr>().ok());
        let public = service
            .url_variable()
            .and_then(|name| std::env::var(name).ok());
        let local = |port: u16| format!("http://127.0.0.1:{port}");
        if self.wait.contains(&target) {
            let here = listen.map(|address| local(address.port()));
            return here
                .or(public)
                .or_else(|| Some(local(service.default_port())));
        }
        let here = listen.filter(|address| !address.ip().is_unspecified());
        public.or_else(|| here.map(|address| format!("http://{address}")))
    }
}

/// `500ms`, `30s`, `2m`.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits
        .parse()
        .map_err(|_| "write 500ms, 30s or 2m".to_owned())?;
    match &text[digits.len()..] {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(number.saturating_mul(60))),
        _ => Err("write 500ms, 30s or 2m".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_number_and_a_unit() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        for wrong in ["", "30", "s", "-1s", "1h", "1.5s"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
