//! CloudEvents 1.0 in Kafka binary mode: the headers of an event.
//! Source: `CloudEvents` Kafka protocol binding, section 3.2.

use chrono::{DateTime, SecondsFormat, Utc};

use crate::Timestamp;

/// Header names, spelled here alone.
pub mod header {
    /// Always `1.0`.
    pub const SPECVERSION: &str = "ce_specversion";
    /// With [`SOURCE`], identifies the event.
    pub const ID: &str = "ce_id";
    /// Who produced it.
    pub const SOURCE: &str = "ce_source";
    /// The type, for example `ORDER_RESERVED`.
    pub const TYPE: &str = "ce_type";
    /// When it happened.
    pub const TIME: &str = "ce_time";
    /// What it is about: the record key.
    pub const SUBJECT: &str = "ce_subject";
    /// The schema of the data, ending in `:vMAJOR`.
    pub const DATASCHEMA: &str = "ce_dataschema";
    /// Extension: the version of the aggregate after the change.
    pub const AGGREGATE_VERSION: &str = "ce_aggregateversion";
    /// Of the data.
    pub const CONTENT_TYPE: &str = "content-type";
    /// W3C trace context.
    pub const TRACEPARENT: &str = "traceparent";
}

/// The `ce_source` of events that Holdfast's own services emit.
pub mod source {
    /// The order service.
    pub const ORDER: &str = "/holdfast/order";
    /// The payment service.
    pub const PAYMENT: &str = "/holdfast/payment";
    /// The stock service.
    pub const STOCK: &str = "/holdfast/stock";
}

/// The media type of all data.
pub const CONTENT_TYPE: &str = "application/json";

/// The only major version of the data that this code reads and writes.
pub const MAJOR: u32 = 1;

/// The greatest length of an id or source in bytes; longer ones could not be inbox keys.
pub const ID_MAX: usize = 255;

/// The headers of an event, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// `ce_id`.
    pub id: String,
    /// `ce_source`.
    pub source: String,
    /// `ce_type`, known or not.
    pub event_type: String,
    /// `ce_time`, when given.
    pub time: Option<Timestamp>,
    /// `ce_subject`, when given.
    pub subject: Option<String>,
    /// `ce_dataschema`, when given.
    pub dataschema: Option<String>,
    /// `ce_aggregateversion`, when given.
    pub aggregate_version: Option<i64>,
    /// `traceparent`, when given.
    pub traceparent: Option<String>,
}

/// Why headers are not an envelope. Always permanent: the record will never be readable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// A required header is not there or empty.
    #[error("header {0} is missing")]
    Missing(&'static str),
    /// A header is not UTF-8, too long, or not of its type.
    #[error("header {0} is malformed")]
    Malformed(&'static str),
    /// `ce_specversion` is not 1.0.
    #[error("CloudEvents version {0:?} is not 1.0")]
    SpecVersion(String),
    /// The data's major version is not known.
    #[error("data schema {0:?} has an unknown major version")]
    Major(String),
}

/// The URI of a type's schema: `urn:holdfast:schema:TYPE:vMAJOR`.
#[must_use]
pub fn dataschema(event_type: &str) -> String {
    format!("urn:holdfast:schema:{event_type}:v{MAJOR}")
}

/// The major version that a schema URI names: its last part that is `v` and digits. Digits beyond
/// a `u32` are a version all the same, and one that nobody knows.
fn major_of(uri: &str) -> Option<u32> {
    uri.rsplit([':', '/', '.', '#', '?', '=', '&'])
        .find_map(|part| {
            let digits = part.strip_prefix(['v', 'V'])?;
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            Some(digits.parse().unwrap_or(u32::MAX))
        })
}

impl Envelope {
    /// Reads an envelope from record headers. Unknown headers are ignored.
    ///
    /// # Errors
    /// [`EnvelopeError`]: see its variants.
    pub fn from_headers<'a>(
        headers: impl Iterator<Item = (&'a str, &'a [u8])>,
    ) -> Result<Self, EnvelopeError> {
        let mut raw = Raw::default();
        for (name, value) in headers {
            raw.take(name, value)?;
        }
        raw.finish()
    }

    /// The headers as they are written, in the order of the contract.
    #[must_use]
    pub fn to_headers(&self) -> Vec<(&'static str, String)> {
        let mut out = Vec::with_capacity(10);
        out.push((header::SPECVERSION, "1.0".to_owned()));
        out.push((header::ID, self.id.clone()));
        out.push((header::SOURCE, self.source.clone()));
        out.push((header::TYPE, self.event_type.clone()));
        if let Some(time) = self.time {
            out.push((
                header::TIME,
                time.to_rfc3339_opts(SecondsFormat::Micros, true),
            ));
        }
        if let Some(subject) = &self.subject {
            out.push((header::SUBJECT, subject.clone()));
        }
        if let Some(dataschema) = &self.dataschema {
            out.push((header::DATASCHEMA, dataschema.clone()));
        }
        if let Some(version) = self.aggregate_version {
            out.push((header::AGGREGATE_VERSION, version.to_string()));
        }
        out.push((header::CONTENT_TYPE, CONTENT_TYPE.to_owned()));
        if let Some(traceparent) = &self.traceparent {
            out.push((header::TRACEPARENT, traceparent.clone()));
        }
        out
    }
}

#[derive(Default)]
struct Raw {
    specversion: Option<String>,
    id: Option<String>,
    source: Option<String>,
    event_type: Option<String>,
    time: Option<Timestamp>,
    subject: Option<String>,
    dataschema: Option<String>,
    aggregate_version: Option<i64>,
    traceparent: Option<String>,
}

impl Raw {
    fn take(&mut self, name: &str, value: &[u8]) -> Result<(), EnvelopeError> {
        match name {
            header::SPECVERSION => self.specversion = Some(text(header::SPECVERSION, value)?),
            header::ID => self.id = Some(text(header::ID, value)?),
            header::SOURCE => self.source = Some(text(header::SOURCE, value)?),
            header::TYPE => self.event_type = Some(text(header::TYPE, value)?),
            header::TIME => {
                let text = text(header::TIME, value)?;
                let time = DateTime::parse_from_rfc3339(&text)
                    .map_err(|_| EnvelopeError::Malformed(header::TIME))?;
                self.time = Some(time.with_timezone(&Utc));
            }
            header::SUBJECT => self.subject = Some(text(header::SUBJECT, value)?),
            header::DATASCHEMA => self.dataschema = Some(text(header::DATASCHEMA, value)?),
            header::AGGREGATE_VERSION => {
                let version = text(header::AGGREGATE_VERSION, value)?
                    .parse()
                    .map_err(|_| EnvelopeError::Malformed(header::AGGREGATE_VERSION))?;
                self.aggregate_version = Some(version);
            }
            header::TRACEPARENT => self.traceparent = text(header::TRACEPARENT, value).ok(),
            _ => {}
        }
        Ok(())
    }

    fn finish(self) -> Result<Envelope, EnvelopeError> {
        let specversion = required(header::SPECVERSION, self.specversion)?;
        if specversion != "1.0" {
            return Err(EnvelopeError::SpecVersion(specversion));
        }
        let envelope = Envelope {
            id: required(header::ID, self.id)?,
            source: required(header::SOURCE, self.source)?,
            event_type: required(header::TYPE, self.event_type)?,
            time: self.time,
            subject: self.subject,
            dataschema: self.dataschema,
            aggregate_version: self.aggregate_version,
            traceparent: self.traceparent,
        };
        match &envelope.dataschema {
            Some(uri) if major_of(uri).is_some_and(|major| major != MAJOR) => {
                Err(EnvelopeError::Major(uri.clone()))
            }
            _ => Ok(envelope),
        }
    }
}

fn required(name: &'static str, value: Option<String>) -> Result<String, EnvelopeError> {
    value
        .filter(|text| !text.is_empty())
        .ok_or(EnvelopeError::Missing(name))
}

/// UTF-8 without control characters (PostgreSQL's text cannot hold a NUL), of bounded length.
fn text(name: &'static str, value: &[u8]) -> Result<String, EnvelopeError> {
    match std::str::from_utf8(value) {
        Ok(text) if text.len() <= ID_MAX && !text.chars().any(char::is_control) => {
            Ok(text.to_owned())
        }
        _ => Err(EnvelopeError::Malformed(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::major_of;

    #[test]
    fn the_major_version_of_a_schema_is_its_last_part_of_v_and_digits() {
        let table = [
            ("urn:holdfast:schema:ORDER_RESERVED:v1", Some(1)),
            ("urn:holdfast:schema:ORDER_RESERVED:v12", Some(12)),
            ("https://x.example/y/v2", Some(2)),
            ("https://x.example/schemas/payment.v3.json", Some(3)),
            ("https://x.example/schemas/v1.2/payment.json", Some(1)),
            ("https://x.example/v1/payment/v2/data.json", Some(2)),
            ("https://x.example/payment.json#v4", Some(4)),
            ("https://x.example/payment?schema=v5&lang=en", Some(5)),
            ("https://x.example/V6", Some(6)),
            ("urn:x:v99999999999999999999", Some(u32::MAX)),
            ("https://x.example/payment.json", None),
            ("urn:holdfast:schema:ORDER_RESERVED", None),
            ("https://v.example/vat/v+1", None),
            ("v", None),
            ("", None),
        ];
        for (uri, major) in table {
            assert_eq!(major_of(uri), major, "{uri:?}");
        }
    }
}
