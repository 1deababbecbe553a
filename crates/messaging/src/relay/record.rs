//! From an outbox row to the record that is published.

use contracts::{ConsumerName, Envelope, TopicNames, envelope};
use rdkafka::message::{Header, OwnedHeaders};
use store::{dead_letters::DeadLetter, outbox::OutboxRow};

/// A record, ready to be sent.
pub(super) struct Outgoing {
    /// The topic as the broker knows it.
    pub(super) topic: String,
    pub(super) key: Option<Vec<u8>>,
    pub(super) payload: Option<Vec<u8>>,
    pub(super) headers: OwnedHeaders,
}

/// Why a row is no record: a fault of its own.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unsendable {
    #[error("{0:?} is no name of a topic")]
    Topic(String),
    #[error("the dead letter that it copies is gone")]
    NoDeadLetter,
    #[error("a header name holds a zero byte")]
    Header,
}

/// The record of an event: the envelope as headers, the data as value.
pub(super) fn event(row: &OutboxRow, names: &TopicNames) -> Result<Outgoing, Unsendable> {
    let extra = row.headers.as_ref().and_then(serde_json::Value::as_object);
    let extra: Vec<(&str, &str)> = extra
        .into_iter()
        .flatten()
        .filter_map(|(name, value)| value.as_str().map(|value| (name.as_str(), value)))
        .collect();
    let traceparent = extra
        .iter()
        .find(|(name, _)| *name == envelope::header::TRACEPARENT);
    let envelope = Envelope {
        id: row.event_id.to_string(),
        source: row.source.clone(),
        event_type: row.event_type.clone(),
        time: Some(row.at),
        subject: Some(row.key.clone()),
        dataschema: Some(envelope::dataschema(&row.event_type)),
        aggregate_version: Some(row.aggregate_version),
        traceparent: traceparent.map(|(_, value)| (*value).to_owned()),
    };
    let mut headers = Headers::new();
    for (name, value) in envelope.to_headers() {
        headers.add(name, Some(value.as_bytes()))?;
    }
    for (name, value) in extra
        .iter()
        .filter(|(name, _)| *name != envelope::header::TRACEPARENT)
    {
        headers.add(name, Some(value.as_bytes()))?;
    }
    Ok(Outgoing {
        topic: topic(&row.topic, names)?,
        key: Some(row.key.clone().into_bytes()),
        payload: Some(row.data.clone().into_bytes()),
        headers: headers.done(),
    })
}

/// The copy of a dead letter: the record unchanged, and why it was set aside.
pub(super) fn dead_letter(
    row: &OutboxRow,
    dead: &DeadLetter,
    names: &TopicNames,
) -> Result<Outgoing, Unsendable> {
    let letter = &dead.letter;
    let group = ConsumerName::ALL
        .into_iter()
        .find(|consumer| consumer.as_str() == letter.consumer)
        .map_or_else(|| letter.consumer.clone(), |consumer| names.group(consumer));
    let mut headers = Headers::new();
    for (name, value) in &letter.headers {
        headers.add(name, value.as_deref())?;
    }
    for (name, value) in [
        ("dlq_original_topic", names.apply(&letter.topic)),
        ("dlq_original_partition", letter.partition.to_string()),
        ("dlq_original_offset", letter.offset.to_string()),
        ("dlq_group", group),
        ("dlq_reason", letter.reason.clone()),
        ("dlq_class", letter.class.clone()),
        ("dlq_attempts", letter.attempts.to_string()),
        (
            "dlq_first_seen",
            letter
                .first_seen
                .to_rfc3339_opts(chrono::SecondsFormat::Micros, true),
        ),
    ] {
        headers.add(name, Some(value.as_bytes()))?;
    }
    Ok(Outgoing {
        topic: topic(&row.topic, names)?,
        key: letter.key.clone(),
        payload: letter.payload.clone(),
        headers: headers.done(),
    })
}

/// The broker's name; one that no broker can have would otherwise hold up everything for ever.
fn topic(base: &str, names: &TopicNames) -> Result<String, Unsendable> {
    let name = names.apply(base);
    let legal = !name.is_empty()
        && name.len() <= 249
        && name != "."
        && name != ".."
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    if legal {
        Ok(name)
    } else {
        Err(Unsendable::Topic(name))
    }
}

struct Headers(OwnedHeaders);

impl Headers {
    fn new() -> Self {
        Self(OwnedHeaders::new_with_capacity(20))
    }

    fn add(&mut self, key: &str, value: Option<&[u8]>) -> Result<(), Unsendable> {
        if key.contains('\0') {
            return Err(Unsendable::Header);
        }
        let headers = std::mem::replace(&mut self.0, OwnedHeaders::new_with_capacity(0));
        self.0 = headers.insert(Header { key, value });
        Ok(())
    }

    fn done(self) -> OwnedHeaders {
        self.0
    }
}
