//! I21, I22, I23: Kafka against the outbox.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use contracts::{ConsumerName, Topic, envelope};
use messaging::admin::{self, RawRecord};
use store::verify::{Check, Payments, facts};
use uuid::Uuid;

use super::Target;

pub(super) async fn checks(target: &Target) -> anyhow::Result<Vec<Check>> {
    let mut lag = Vec::new();
    for consumer in ConsumerName::ALL {
        // In upstream mode nobody of ours reads orders.v1.
        if consumer == ConsumerName::Payment && target.payments == Payments::Upstream {
            continue;
        }
        let partitions = admin::lag(&target.brokers, &target.names, consumer)
            .await
            .context("Kafka can't be reached")?;
        lag.extend(partitions.iter().filter(|p| p.lag() > 0).map(|p| {
            let committed = p
                .committed
                .map_or_else(|| "nothing".to_owned(), |c| c.to_string());
            // Without the end of the partition: it moves although the consumer stands still.
            format!(
                "{} of {}/{}: stands at {committed}",
                consumer.group(),
                consumer.topic(),
                p.partition
            )
        }));
    }
    let seen = read(target).await?;
    let ours: Vec<Uuid> = seen.ours.iter().copied().collect();
    let unknown = facts::unknown_events(&target.store, &ours).await?;
    Ok(vec![
        Check::of(
            "I21",
            "no consumer of ours lags without moving",
            "0 behind",
            lag,
        ),
        Check::of(
            "I22",
            "the events of an order or SKU are in one partition, first occurrences in rising versions",
            "in order",
            seen.disorder,
        ),
        Check::of(
            "I23",
            "every event under our name on Kafka is in the outbox",
            "0 invented",
            unknown
                .iter()
                .map(|id| format!("event {id}: not in the outbox"))
                .collect(),
        ),
    ])
}

#[derive(Default)]
struct Seen {
    ours: BTreeSet<Uuid>,
    /// (topic, key) -> partition and greatest version of first occurrences.
    keys: BTreeMap<(&'static str, String), (i32, i64)>,
    disorder: Vec<String>,
}

async fn read(target: &Target) -> anyhow::Result<Seen> {
    let brokers = target.brokers.clone();
    let topics: Vec<(Topic, String)> = [Topic::Orders, Topic::Payments, Topic::Stock]
        .into_iter()
        .map(|topic| (topic, target.names.topic(topic)))
        .collect();
    let read = tokio::task::spawn_blocking(move || {
        let mut seen = Seen::default();
        for (topic, name) in topics {
            admin::dump(&brokers, &name, |record| seen.take(topic, &record))?;
        }
        Ok::<Seen, admin::AdminError>(seen)
    });
    read.await?.context("Kafka can't be read")
}

impl Seen {
    fn take(&mut self, topic: Topic, record: &RawRecord) {
        let ours = [
            envelope::source::ORDER,
            envelope::source::PAYMENT,
            envelope::source::STOCK,
        ];
        let from_us = record
            .header(envelope::header::SOURCE)
            .is_some_and(|s| ours.contains(&s));
        let id = record
            .header(envelope::header::ID)
            .and_then(|id| id.parse::<Uuid>().ok());
        let (Some(id), true) = (id, from_us) else {
            return;
        };
        // A copy may come at any time; only first occurrences have an order to keep.
        if !self.ours.insert(id) {
            return;
        }
        let key = String::from_utf8_lossy(record.key.as_deref().unwrap_or_default()).into_owned();
        let kind = record.header(envelope::header::TYPE).unwrap_or_default();
        let version = record
            .header(envelope::header::AGGREGATE_VERSION)
            .and_then(|version| version.parse::<i64>().ok())
            .unwrap_or(0);
        // Refund requests are about an order but are no step of its life.
        let ordered = match topic {
            Topic::Orders => kind != "REFUND_REQUESTED",
            Topic::Stock => true,
            Topic::Payments | Topic::Coupons | Topic::OrderRequests => false,
        };
        let last = self
            .keys
            .entry((topic.as_str(), key.clone()))
            .or_insert((record.partition, 0));
        if last.0 != record.partition {
            self.disorder.push(format!(
                "{topic} {key}: in partitions {} and {}",
                last.0, record.partition
            ));
        }
        if ordered && version <= last.1 && kind != "ORDER_REJECTED" {
            self.disorder.push(format!(
                "{topic} {key}: {kind} version {version} after {}",
                last.1
            ));
        }
        if ordered && topic == Topic::Orders && version > last.1 + 1 {
            self.disorder.push(format!(
                "{topic} {key}: {kind} version {version} after {}",
                last.1
            ));
        }
        if ordered {
            last.1 = last.1.max(version);
        }
    }
}
