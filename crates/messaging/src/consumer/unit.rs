//! What is handled in one transaction: events and records to be set aside, with the records that
//! they came in.

use std::{
    collections::{HashMap, HashSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use contracts::{ConsumerName, Envelope};
use sha2::{Digest, Sha256};
use store::{dead_letters::NewDeadLetter, inbox::EventKey};

use super::{
    handler::{Aside, Class, Handler, Inbound, Position, Rejection},
    poller::Record,
};
use crate::record::RawHeaders;

/// What the inbox has as the source of records that could not be read.
const UNREADABLE: &str = "unreadable:";

/// A record that will never be handled.
pub(super) struct Reject {
    pub(super) rejection: Rejection,
    /// Whether it was an event that the handler refused; else it could not be read as one.
    pub(super) was_event: bool,
    /// When its headers could be read.
    pub(super) envelope: Option<Envelope>,
    pub(super) records: Records,
    pub(super) attempts: i32,
}

/// The first record of an event, then its copies in the same batch.
pub(super) type Records = Vec<Arc<Record>>;

/// One transaction's worth.
pub(super) struct Unit<E> {
    /// In the order of their offsets, or the new ones first after [`Unit::new_first`].
    pub(super) events: Vec<Inbound<E>>,
    /// The records of each event.
    pub(super) records: Vec<Records>,
    pub(super) rejects: Vec<Reject>,
}

impl<E> Unit<E> {
    pub(super) fn empty() -> Self {
        Self {
            events: Vec::new(),
            records: Vec::new(),
            rejects: Vec::new(),
        }
    }

    pub(super) fn of_reject(reject: Reject) -> Self {
        Self {
            events: Vec::new(),
            records: Vec::new(),
            rejects: vec![reject],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.events.len() + self.rejects.len()
    }

    /// Takes away the later half of the events; the rejects go with it. Without two events, takes
    /// away the rejects; without events, half of them.
    pub(super) fn split(&mut self) -> Self {
        if self.events.is_empty() {
            let rejects = self.rejects.split_off(self.rejects.len() / 2);
            return Self {
                rejects,
                ..Self::empty()
            };
        }
        let at = self.events.len().div_ceil(2);
        Self {
            events: self.events.split_off(at),
            records: self.records.split_off(at),
            rejects: std::mem::take(&mut self.rejects),
        }
    }

    /// Puts the events that are new first, each kind in the order of its offsets; gives the number
    /// of new ones.
    pub(super) fn new_first(&mut self, new: &HashSet<EventKey>) -> usize {
        let events = std::mem::take(&mut self.events);
        let mut all: Vec<_> = events
            .into_iter()
            .zip(std::mem::take(&mut self.records))
            .map(|(event, records)| (!new.contains(&key(&event)), event, records))
            .collect();
        all.sort_by_key(|(known, event, _)| {
            (*known, event.position.partition, event.position.offset)
        });
        let count = all.iter().filter(|(known, ..)| !known).count();
        (self.events, self.records) = all
            .into_iter()
            .map(|(_, event, records)| (event, records))
            .unzip();
        count
    }

    /// The keys of all events and of those rejects that are events.
    pub(super) fn keys(&self) -> Vec<EventKey> {
        self.events
            .iter()
            .map(key)
            .chain(self.rejects.iter().filter_map(reject_key))
            .collect()
    }

    /// All records, copies too.
    pub(super) fn all_records(&self) -> impl Iterator<Item = &Arc<Record>> {
        let rejected = self.rejects.iter().flat_map(|reject| &reject.records);
        self.records.iter().flatten().chain(rejected)
    }
}

/// What reading a batch gave.
pub(super) struct Read<E> {
    pub(super) unit: Unit<E>,
    /// Records of unknown types.
    pub(super) skipped: Records,
}

/// Reads records into events: copies of one event within the batch become one.
pub(super) fn read<H: Handler>(
    handler: &H,
    topic: &Arc<str>,
    records: Vec<Record>,
) -> Read<H::Event> {
    let mut out = Read {
        unit: Unit::empty(),
        skipped: Vec::new(),
    };
    let mut seen: HashMap<EventKey, usize> = HashMap::new();
    for record in records {
        let record = Arc::new(record);
        match read_one(handler, topic, &record) {
            Ok(Some(event)) => {
                let key = (event.source.clone(), event.event_id.clone());
                let index = *seen.entry(key).or_insert(out.unit.events.len());
                match out.unit.records.get_mut(index) {
                    Some(copies) => copies.push(record),
                    None => {
                        out.unit.events.push(event);
                        out.unit.records.push(vec![record]);
                    }
                }
            }
            Ok(None) => out.skipped.push(record),
            Err(unreadable) => {
                let (envelope, rejection) = *unreadable;
                let records = vec![record];
                out.unit.rejects.push(Reject {
                    rejection,
                    was_event: false,
                    envelope,
                    records,
                    attempts: 1,
                });
            }
        }
    }
    out
}

/// The envelope of a record that can't be read, when that could be, and why.
pub(super) type Unreadable = Box<(Option<Envelope>, Rejection)>;

/// Reads a record; `None` when its type is not ours.
pub(super) fn read_one<H: Handler>(
    handler: &H,
    topic: &Arc<str>,
    record: &Record,
) -> Result<Option<Inbound<H::Event>>, Unreadable> {
    let malformed = |reason: &str| Rejection::new(Class::Malformed, reason);
    let headers = match &record.headers {
        RawHeaders::Readable(headers) => headers,
        RawHeaders::Unreadable => {
            return Err(Box::new((None, malformed("a header name is not UTF-8"))));
        }
    };
    let given = headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_deref().unwrap_or(&[])));
    let envelope = Envelope::from_headers(given).map_err(|error| Box::new((None, error.into())))?;
    let data = match record.payload.as_deref() {
        None => {
            return Err(Box::new((
                Some(envelope),
                malformed("the record is a tombstone"),
            )));
        }
        Some([]) => return Err(Box::new((Some(envelope), malformed("the record is empty")))),
        Some(data) => data,
    };
    let decoded = catch_unwind(AssertUnwindSafe(|| handler.decode(&envelope, data)))
        .unwrap_or_else(|_| Err(Rejection::new(Class::Unclassified, "decoding it panicked")));
    match decoded {
        Err(rejection) => Err(Box::new((Some(envelope), rejection))),
        Ok(None) => Ok(None),
        Ok(Some(event)) => Ok(Some(Inbound {
            source: envelope.source,
            event_id: envelope.id,
            time: envelope.time,
            aggregate_version: envelope.aggregate_version,
            traceparent: envelope.traceparent,
            position: Position {
                topic: topic.clone(),
                partition: record.partition,
                offset: record.offset,
            },
            event,
        })),
    }
}

/// The key of an event in the inbox.
pub(super) fn key<E>(event: &Inbound<E>) -> EventKey {
    (event.source.clone(), event.event_id.clone())
}

/// The key of a reject in the inbox, when its envelope could be read. What could not be read is not
/// the event whose id it bears: it has a key of its own, made of its content, so that copies of it
/// are known and the right event with that id is still handled when it comes.
pub(super) fn reject_key(reject: &Reject) -> Option<EventKey> {
    let envelope = reject.envelope.as_ref()?;
    if reject.was_event {
        return Some((envelope.source.clone(), envelope.id.clone()));
    }
    let payload = reject.records.first().and_then(|r| r.payload.as_deref());
    let mut digest = Sha256::new();
    for part in [envelope.source.as_bytes(), envelope.event_type.as_bytes()] {
        digest.update(part);
        digest.update([0]);
    }
    digest.update([u8::from(payload.is_some())]);
    digest.update(payload.unwrap_or_default());
    let source = format!("{UNREADABLE}{}", hex::encode(digest.finalize()));
    Some((source, envelope.id.clone()))
}

/// A reject made of an event that was read.
pub(super) fn reject(records: Records, rejection: Rejection, attempts: i32) -> Reject {
    let envelope = records.first().and_then(|record| envelope(record));
    Reject {
        rejection,
        was_event: true,
        envelope,
        records,
        attempts,
    }
}

/// The envelope of a record, when it can be read.
pub(super) fn envelope(record: &Record) -> Option<Envelope> {
    let RawHeaders::Readable(headers) = &record.headers else {
        return None;
    };
    let given = headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_deref().unwrap_or(&[])));
    Envelope::from_headers(given).ok()
}

/// The dead letter of a record.
pub(super) fn letter(
    consumer: ConsumerName,
    record: &Record,
    rejection: &Rejection,
    attempts: i32,
) -> NewDeadLetter {
    let envelope = envelope(record);
    let headers = match &record.headers {
        RawHeaders::Readable(headers) => headers.clone(),
        RawHeaders::Unreadable => Vec::new(),
    };
    NewDeadLetter {
        consumer: consumer.as_str().to_owned(),
        topic: consumer.topic().as_str().to_owned(),
        partition: record.partition,
        offset: record.offset,
        key: record.key.clone(),
        event_type: envelope
            .as_ref()
            .map(|envelope| envelope.event_type.clone()),
        source: envelope.as_ref().map(|envelope| envelope.source.clone()),
        event_id: envelope.map(|envelope| envelope.id),
        payload: record.payload.clone(),
        headers,
        reason: printable(&rejection.reason),
        class: rejection.class.as_str().to_owned(),
        attempts,
        first_seen: record.first_seen,
        dlq_topic: consumer.dlq(),
    }
}

/// A reason may quote what came in: no control characters (PostgreSQL refuses a zero byte), no
/// novels.
fn printable(reason: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    reason.chars().map(clean).take(1000).collect()
}

/// The dead letters that a transaction is to write: of events that the handler set aside, and of
/// rejects that are new or were never events.
pub(super) fn letters<E>(
    consumer: ConsumerName,
    unit: &Unit<E>,
    asides: &[Aside],
    mut new: HashSet<EventKey>,
) -> Vec<NewDeadLetter> {
    let set_aside = asides.iter().filter_map(|aside| {
        let record = unit.records.get(aside.index)?.first()?;
        let rejection = Rejection::new(aside.class, aside.reason.clone());
        Some(letter(consumer, record, &rejection, 1))
    });
    let rejects = unit.rejects.iter().filter_map(|reject| {
        // a copy of a reject in the same transaction is not set aside a second time
        let is_new = reject_key(reject).is_none_or(|key| new.remove(&key));
        let record = reject.records.first().filter(|_| is_new)?;
        Some(letter(consumer, record, &reject.rejection, reject.attempts))
    });
    set_aside.chain(rejects).collect()
}
