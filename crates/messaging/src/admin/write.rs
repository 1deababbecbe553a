//! Writes records for tools and tests, never for the services: those write to the outbox.

use rdkafka::{
    message::{Header, OwnedHeaders},
    producer::{FutureProducer, FutureRecord},
    util::Timeout,
};

use super::{AdminError, REQUEST};
use crate::client;

/// Writes records and waits for each acknowledgement.
#[derive(Clone)]
pub struct Producer {
    inner: FutureProducer,
}

impl std::fmt::Debug for Producer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Producer").finish_non_exhaustive()
    }
}

impl Producer {
    /// A producer for these brokers.
    ///
    /// # Errors
    /// The client refuses its configuration.
    pub fn new(brokers: &str) -> Result<Self, AdminError> {
        client::future_producer(brokers, "holdfast-tool")
            .map(|inner| Self { inner })
            .map_err(AdminError::Create)
    }

    /// Writes one record to a topic (the broker's name), in the order of the calls per key; gives
    /// its partition and offset when it is acknowledged.
    ///
    /// # Errors
    /// It was refused, or not acknowledged in time (then it may still arrive).
    pub async fn send(
        &self,
        topic: &str,
        key: Option<&[u8]>,
        headers: &[(&str, &[u8])],
        payload: Option<&[u8]>,
    ) -> Result<(i32, i64), AdminError> {
        self.write((topic, None), key, headers, payload).await
    }

    /// [`Producer::send`] to a given partition.
    ///
    /// # Errors
    /// As [`Producer::send`].
    pub async fn send_to(
        &self,
        (topic, partition): (&str, i32),
        key: Option<&[u8]>,
        headers: &[(&str, &[u8])],
        payload: Option<&[u8]>,
    ) -> Result<(i32, i64), AdminError> {
        self.write((topic, Some(partition)), key, headers, payload)
            .await
    }

    async fn write(
        &self,
        (topic, partition): (&str, Option<i32>),
        key: Option<&[u8]>,
        headers: &[(&str, &[u8])],
        payload: Option<&[u8]>,
    ) -> Result<(i32, i64), AdminError> {
        let headers = headers.iter().fold(
            OwnedHeaders::new_with_capacity(headers.len()),
            |headers, (key, value)| {
                headers.insert(Header {
                    key,
                    value: Some(*value),
                })
            },
        );
        let record = FutureRecord {
            topic,
            partition,
            payload,
            key,
            timestamp: None,
            headers: Some(headers),
        };
        let sent = self.inner.send(record, Timeout::After(REQUEST));
        match tokio::time::timeout(REQUEST, sent).await {
            Ok(Ok(delivery)) => Ok((delivery.partition, delivery.offset)),
            Ok(Err((source, _))) => Err(AdminError::Request {
                what: "take a record",
                source,
            }),
            Err(_) => Err(AdminError::NotReady {
                within: REQUEST,
                source: None,
            }),
        }
    }
}

/// Writes one record with a producer of its own: for single records; see [`Producer`].
///
/// # Errors
/// As [`Producer::send`].
pub async fn produce(
    brokers: &str,
    topic: &str,
    key: Option<&[u8]>,
    headers: &[(&str, &[u8])],
    payload: Option<&[u8]>,
) -> Result<(i32, i64), AdminError> {
    Producer::new(brokers)?
        .send(topic, key, headers, payload)
        .await
}
