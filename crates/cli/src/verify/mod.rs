//! `holdfast verify`: every invariant that the running system can be asked for, with both sides of
//! each rule. Reads twice, 2 s apart, when the first reading is not clean: what differs both times
//! in the same way is a violation, what moved on is work in progress.

pub mod command;
mod gate;
mod kafka;
mod provider;

use std::{collections::BTreeSet, time::Duration};

use clap::Args;
use contracts::TopicNames;
use platform::PaymentsMode;
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use store::{
    Store, StoreOptions,
    verify::{Check, OFFENDERS_MAX, Payments},
};

use crate::exit::Unreachable;

/// What is looked at.
#[derive(Debug, Clone, Args)]
pub struct VerifyArgs {
    /// PostgreSQL
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: SecretString,
    /// Redis
    #[arg(long, env = "REDIS_URL", hide_env_values = true)]
    pub redis_url: SecretString,
    /// Kafka
    #[arg(long, env = "KAFKA_BROKERS")]
    pub kafka_brokers: String,
    /// The simulated gateway's journal is compared when it is given
    #[arg(long, env = "GATEWAY_URL")]
    pub gateway_url: Option<String>,
    /// Prefix of all Redis keys
    #[arg(long, env = "HOLDFAST_KEY_PREFIX", default_value = "hf")]
    pub key_prefix: String,
    /// Suffix of all topics and groups
    #[arg(long, env = "HOLDFAST_TOPIC_SUFFIX", default_value = "")]
    pub topic_suffix: String,
    /// Who writes payments.v1
    #[arg(
        long,
        env = "HOLDFAST_PAYMENTS",
        value_enum,
        default_value = "internal"
    )]
    pub payments: PaymentsMode,
}

/// Where the system under verification is.
#[derive(Debug, Clone)]
pub struct Target {
    /// PostgreSQL.
    pub store: Store,
    /// Redis.
    pub redis_url: String,
    /// Of the gate.
    pub key_prefix: String,
    /// Kafka.
    pub brokers: String,
    /// The topics.
    pub names: TopicNames,
    /// The simulated gateway, when its journal is to be compared.
    pub gateway_url: Option<String>,
    /// Who makes payments.
    pub payments: Payments,
}

/// The JSON of `holdfast verify`.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Whether every rule holds.
    pub ok: bool,
    /// One per rule.
    pub checks: Vec<Check>,
}

/// How far apart the two readings are.
const APART: Duration = Duration::from_secs(2);

/// How long the slowest net may take (P7), and a look after it.
const NETS_WITHIN: Duration = Duration::from_secs(35);

/// Rules that one snapshot of PostgreSQL answers, with no time in them: nothing breaks them for a
/// moment only, so who is named twice is broken, whatever its sides have become meanwhile.
const STEADY: [&str; 10] = ["I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I24"];

impl VerifyArgs {
    /// Where these arguments point.
    ///
    /// # Errors
    /// PostgreSQL can't be reached.
    pub async fn target(&self) -> anyhow::Result<Target> {
        let options =
            StoreOptions::background(self.database_url.expose_secret(), "holdfast verify");
        let store = Store::connect(&options)?;
        store.ping().await.map_err(|error| Unreachable {
            server: "PostgreSQL".to_owned(),
            said: error.to_string(),
        })?;
        Ok(Target {
            store,
            redis_url: self.redis_url.expose_secret().to_owned(),
            key_prefix: self.key_prefix.clone(),
            brokers: self.kafka_brokers.clone(),
            names: TopicNames::new(&self.topic_suffix),
            gateway_url: self.gateway_url.clone(),
            payments: match self.payments {
                PaymentsMode::Internal => Payments::Internal,
                PaymentsMode::Upstream => Payments::Upstream,
            },
        })
    }
}

/// The verdict: twice when once is not clean. The gate is looked at first, and again before
/// anything else: what is wrong there may be repaired while the rest is still being read.
///
/// # Errors
/// A server can't be reached.
pub async fn verify(target: &Target) -> anyhow::Result<Report> {
    let of_gate = twice(|| gate::checks(target)).await?;
    let mut checks = twice(|| rest(target)).await?;
    checks.extend(of_gate);
    for check in &mut checks {
        check.offenders.truncate(OFFENDERS_MAX);
    }
    Ok(Report {
        ok: checks.iter().all(|check| check.ok),
        checks,
    })
}

/// The verdict on a system that nobody uses any more: what the nets repair (an orphan's hold within
/// 7 s, a lost sync within 32 s: P7) is given the time for it, what is still wrong then is red.
///
/// # Errors
/// As [`verify`].
pub async fn at_rest(target: &Target) -> anyhow::Result<Report> {
    let begun = platform::clock::monotonic();
    loop {
        let report = verify(target).await?;
        if report.ok || begun.elapsed() > NETS_WITHIN {
            return Ok(report);
        }
        tokio::time::sleep(APART).await;
    }
}

/// Reads once, and once more when that is not clean.
async fn twice<F, Fut>(read: F) -> anyhow::Result<Vec<Check>>
where
    F: Fn() -> Fut,
    Fut: Future<Output = anyhow::Result<Vec<Check>>>,
{
    let first = read().await?;
    if first.iter().all(|check| check.ok) {
        return Ok(first);
    }
    tokio::time::sleep(APART).await;
    let second = read().await?;
    Ok(first.iter().zip(second).map(|(a, b)| both(a, b)).collect())
}

/// A check is red when the same offenders were seen both times: each offender's text holds its
/// sides, so one that moved is another, but for the rules that are [`STEADY`].
fn both(first: &Check, second: Check) -> Check {
    if second.ok || first.ok {
        return Check {
            ok: true,
            offenders: Vec::new(),
            left: second.right.clone(),
            ..second
        };
    }
    let steady = STEADY.contains(&second.id.as_str());
    let identity = |offender: &String| match offender.split_once(": ") {
        Some((id, _)) if steady => id.to_owned(),
        _ => offender.clone(),
    };
    let before: BTreeSet<String> = first.offenders.iter().map(identity).collect();
    let stuck: Vec<String> = second
        .offenders
        .iter()
        .filter(|offender| before.contains(&identity(offender)))
        .cloned()
        .collect();
    Check {
        ok: stuck.is_empty(),
        offenders: stuck,
        ..second
    }
}

/// Every rule, read once.
///
/// # Errors
/// A server can't be reached.
pub async fn once(target: &Target) -> anyhow::Result<Vec<Check>> {
    let mut checks = gate::checks(target).await?;
    checks.extend(rest(target).await?);
    Ok(checks)
}

/// Every rule but the gate's.
async fn rest(target: &Target) -> anyhow::Result<Vec<Check>> {
    let mut checks = store::verify::run(&target.store, target.payments)
        .await
        .map_err(|error| {
            anyhow::Error::from(error).context("asking PostgreSQL for the invariants")
        })?;
    checks.extend(kafka::checks(target).await?);
    if let Some(url) = &target.gateway_url {
        checks.extend(provider::checks(target, url).await?);
    }
    Ok(checks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(offenders: &[&str]) -> Check {
        check_of("I20", offenders)
    }

    fn check_of(id: &str, offenders: &[&str]) -> Check {
        Check::of(
            id,
            "rule",
            "right",
            offenders.iter().map(|&o| o.to_owned()).collect(),
        )
    }

    #[test]
    fn only_what_stays_is_a_violation() {
        assert!(both(&check(&["A: 1 of 2"]), check(&["A: 2 of 3"])).ok);
        assert!(both(&check(&["A: 1 of 2"]), check(&[])).ok);
        assert!(both(&check(&[]), check(&["A: 1 of 2"])).ok);
        let red = both(&check(&["A", "B"]), check(&["B", "C"]));
        assert!(!red.ok);
        assert_eq!(red.offenders, ["B"]);
    }

    #[test]
    fn a_broken_rule_of_one_snapshot_does_not_hide_behind_traffic() {
        let red = both(
            &check_of("I2", &["A: 1 of 2"]),
            check_of("I2", &["A: 2 of 3"]),
        );
        assert_eq!(
            (red.ok, &*red.offenders),
            (false, &["A: 2 of 3".to_owned()][..])
        );
        assert!(
            both(
                &check_of("I2", &["A: 1 of 2"]),
                check_of("I2", &["B: 1 of 2"])
            )
            .ok
        );
    }
}
