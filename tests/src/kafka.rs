//! The topics of a test, as an upstream service and as a subscriber see them.

use contracts::{ConsumerName, Topic, TopicNames, envelope};
use messaging::admin::{self, RawRecord, TopicOutcome};
use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    consumer::{BaseConsumer, CommitMode, Consumer},
    error::KafkaError,
};
use serde_json::Value;

use crate::wait_for;

/// One test's topics.
#[derive(Clone)]
pub struct Kafka {
    brokers: String,
    names: TopicNames,
}

impl Kafka {
    /// The topics of these names.
    #[must_use]
    pub fn new(brokers: &str, names: TopicNames) -> Self {
        Self {
            brokers: brokers.to_owned(),
            names,
        }
    }

    /// Writes an event as an upstream service would.
    ///
    /// # Panics
    /// The broker refuses it.
    pub async fn produce(
        &self,
        topic: Topic,
        key: &str,
        (source, id): (&str, &str),
        event_type: &str,
        data: &Value,
    ) -> (i32, i64) {
        let schema = envelope::dataschema(event_type);
        let headers = [
            (envelope::header::SPECVERSION, "1.0"),
            (envelope::header::ID, id),
            (envelope::header::SOURCE, source),
            (envelope::header::TYPE, event_type),
            (envelope::header::TIME, "2026-11-29T12:00:00Z"),
            (envelope::header::SUBJECT, key),
            (envelope::header::DATASCHEMA, schema.as_str()),
            (envelope::header::CONTENT_TYPE, envelope::CONTENT_TYPE),
        ];
        self.produce_raw(
            topic,
            Some(key),
            &headers,
            Some(data.to_string().as_bytes()),
        )
        .await
    }

    /// Writes any record.
    ///
    /// # Panics
    /// The broker refuses it.
    pub async fn produce_raw(
        &self,
        topic: Topic,
        key: Option<&str>,
        headers: &[(&str, &str)],
        payload: Option<&[u8]>,
    ) -> (i32, i64) {
        let topic = self.names.topic(topic);
        let headers: Vec<(&str, &[u8])> = headers
            .iter()
            .map(|(name, value)| (*name, value.as_bytes()))
            .collect();
        let key = key.map(str::as_bytes);
        match admin::produce(&self.brokers, &topic, key, &headers, payload).await {
            Ok(at) => at,
            Err(error) => panic!("{topic}: {error}"),
        }
    }

    /// Sets a consumer's group back to the beginning of its topic; nobody may be in the group.
    ///
    /// # Panics
    /// The broker refuses.
    pub async fn reset_offsets(&self, consumer: ConsumerName) {
        let (brokers, topic, group) = (
            self.brokers.clone(),
            self.names.topic(consumer.topic()),
            self.names.group(consumer),
        );
        let reset = tokio::task::spawn_blocking(move || reset(&brokers, &topic, &group));
        match reset.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => panic!("{consumer:?}: {error}"),
            Err(error) => panic!("{consumer:?}: {error}"),
        }
    }

    /// Deletes the topics and makes them again, empty.
    ///
    /// # Panics
    /// The broker refuses.
    pub async fn recreate_topics(&self) {
        if let Err(error) = admin::delete_topics(&self.brokers, &self.names).await {
            panic!("{error}");
        }
        // Deleting goes on for a moment after the answer.
        wait_for("the topics to be there again", || async {
            let made = admin::ensure_topics(&self.brokers, &self.names, 3, 1).await;
            let there =
                |report: &admin::TopicReport| matches!(report.outcome, TopicOutcome::Created);
            made.ok()?.iter().all(there).then_some(())
        })
        .await;
    }

    /// Every record of a topic.
    pub async fn records(&self, topic: Topic) -> Vec<RawRecord> {
        self.dump(self.names.topic(topic)).await
    }

    /// Every record of a consumer's dead letter topic.
    pub async fn dead_letters(&self, consumer: ConsumerName) -> Vec<RawRecord> {
        self.dump(self.names.dlq(consumer)).await
    }

    async fn dump(&self, topic: String) -> Vec<RawRecord> {
        let brokers = self.brokers.clone();
        let read = tokio::task::spawn_blocking(move || {
            let mut records = Vec::new();
            admin::dump(&brokers, &topic, |record| records.push(record)).map(|_| records)
        });
        match read.await {
            Ok(Ok(records)) => records,
            Ok(Err(error)) => panic!("{error}"),
            Err(error) => panic!("{error}"),
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "it is the fault that the test injects"
)]
fn reset(brokers: &str, topic: &str, group: &str) -> Result<(), KafkaError> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", group)
        .set("enable.auto.commit", "false")
        .create()?;
    let mut beginning = TopicPartitionList::new();
    for partition in 0..3 {
        beginning.add_partition_offset(topic, partition, Offset::Offset(0))?;
    }
    consumer.commit(&beginning, CommitMode::Sync)
}
