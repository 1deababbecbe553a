//! The topics of a test, as an upstream service and as a subscriber see them.

use contracts::{ConsumerName, Topic, TopicNames, envelope};
use messaging::admin::{self, RawRecord};
use serde_json::Value;

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
