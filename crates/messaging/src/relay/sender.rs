//! Hands records to librdkafka and brings back what became of them.

use rdkafka::{
    client::ClientContext,
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
    producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer},
};
use tokio::sync::mpsc;

use super::record::Outgoing;
use crate::client;

/// What became of a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Report {
    pub(super) id: i64,
    pub(super) result: Result<(), RDKafkaErrorCode>,
}

/// What became of handing over a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handed {
    /// It will be reported on.
    Sent,
    /// The local queue is full: the same record again, later.
    Full,
    /// It failed at once.
    Failed(RDKafkaErrorCode),
}

/// Whose fault a failure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blame {
    /// The record's; when it was sent in a batch, perhaps that of another record of the batch.
    Record,
    /// Of the world: broker, topic, rights, network, or this producer.
    World,
}

/// Only what the record itself can cause is its fault; all else is an outage, and an outage parks
/// nothing.
pub(super) fn blame(code: RDKafkaErrorCode) -> Blame {
    match code {
        RDKafkaErrorCode::MessageSizeTooLarge
        | RDKafkaErrorCode::MessageBatchTooLarge
        | RDKafkaErrorCode::InvalidTimestamp
        | RDKafkaErrorCode::InvalidRecord => Blame::Record,
        _ => Blame::World,
    }
}

struct Reports(mpsc::UnboundedSender<Report>);

impl ClientContext for Reports {
    fn error(&self, error: KafkaError, reason: &str) {
        // the relay says once that an outage began; librdkafka says it every second
        tracing::debug!(%error, reason, "the relay's producer reports an error");
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<i64>;

    fn delivery(&self, result: &DeliveryResult<'_>, id: Box<i64>) {
        let result = match result {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(error
                .rdkafka_error_code()
                .unwrap_or(RDKafkaErrorCode::Unknown)),
        };
        // nobody listens when this producer was given up
        let _ = self.0.send(Report { id: *id, result });
    }
}

/// A producer and its reports.
pub(super) struct Sender {
    inner: Option<ThreadedProducer<Reports>>,
    reports: mpsc::UnboundedReceiver<Report>,
}

impl Sender {
    pub(super) fn new(brokers: &str, instance: &str) -> KafkaResult<Self> {
        let (tx, reports) = mpsc::unbounded_channel();
        let client_id = format!("holdfast-relay-{instance}");
        let inner = client::producer(brokers, &client_id, Reports(tx))?;
        Ok(Self {
            inner: Some(inner),
            reports,
        })
    }

    pub(super) fn hand(&self, id: i64, record: &Outgoing) -> Handed {
        let Some(inner) = &self.inner else {
            return Handed::Full;
        };
        let mut out =
            BaseRecord::<[u8], [u8], Box<i64>>::with_opaque_to(&record.topic, Box::new(id))
                .headers(record.headers.clone());
        out.key = record.key.as_deref();
        out.payload = record.payload.as_deref();
        match inner.send(out) {
            Ok(()) => Handed::Sent,
            Err((error, _)) => match error.rdkafka_error_code() {
                Some(RDKafkaErrorCode::QueueFull) => Handed::Full,
                Some(code) => Handed::Failed(code),
                None => Handed::Failed(RDKafkaErrorCode::Unknown),
            },
        }
    }

    /// A report that is there already.
    pub(super) fn try_report(&mut self) -> Option<Report> {
        self.reports.try_recv().ok()
    }

    /// The next report.
    pub(super) async fn report(&mut self) -> Option<Report> {
        self.reports.recv().await
    }

    /// Whether librdkafka has declared this producer dead.
    pub(super) fn is_dead(&self) -> bool {
        self.inner
            .as_ref()
            .is_some_and(|inner| inner.client().fatal_error().is_some())
    }
}

impl Drop for Sender {
    /// Ending a client waits for its threads: on a thread of its own, since it may take long while
    /// a broker is away.
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            let ended = std::thread::Builder::new()
                .name("relay-producer-end".to_owned())
                .spawn(move || drop(inner));
            if let Err(error) = ended {
                tracing::warn!(%error, "no thread to end a producer on");
            }
        }
    }
}
