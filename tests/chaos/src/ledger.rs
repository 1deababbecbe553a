//! What the clients saw: every request with every answer and its times, for the comparison with
//! the database afterwards (I11).

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    io::Write,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::Value;

use crate::http::Answer;

/// What one try led to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Seen {
    /// 201 with this order; whether it was marked as a repeat; a hash of the body.
    Accepted {
        /// Its id.
        order: String,
        /// Marked as a repeat.
        replayed: bool,
        /// Of the body, which must be the same each time.
        body: u64,
    },
    /// A definite refusal with its code.
    Refused(u16, String),
    /// Come again: 503, 429, 409 in flight.
    Later(u16, String),
    /// No answer.
    Unknown,
}

/// One try.
#[derive(Debug, Clone, Serialize)]
pub struct Try {
    /// Milliseconds from the start of the run to the sending.
    pub sent: u64,
    /// And to the answer.
    pub done: u64,
    /// The order service, from 0.
    pub replica: usize,
    /// What came.
    pub seen: Seen,
}

/// One key and all that was tried with it.
#[derive(Debug, Clone, Serialize)]
pub struct Request {
    /// Its `Idempotency-Key`.
    pub key: String,
    /// What it asked for.
    pub what: &'static str,
    /// In the order of their answers.
    pub tries: Vec<Try>,
}

/// A cancel and its definite answer.
#[derive(Debug, Clone, Serialize)]
pub struct Cancel {
    /// The order.
    pub order: String,
    /// 200 or 409.
    pub status: u16,
}

/// What all clients saw.
#[derive(Debug)]
pub struct Ledger {
    begun: Instant,
    inner: Mutex<Inner>,
}

/// The content.
#[derive(Debug, Default)]
pub struct Inner {
    /// By key.
    pub requests: BTreeMap<String, Request>,
    /// Definite answers to cancels.
    pub cancels: Vec<Cancel>,
    /// Orders whose observer saw time run backwards.
    pub backwards: Vec<String>,
    /// When each first 201 of a key came, and from which replica.
    pub accepted: Vec<(Instant, usize)>,
    /// The orders of those, in the same order.
    pub orders: Vec<String>,
    /// Answers per status; 0 counts those that never came.
    pub statuses: BTreeMap<u16, u64>,
    /// 500 and other answers that nobody may get.
    pub broken: Vec<String>,
    /// The same key with another body: how often it was 422, and what else came.
    pub reused: u64,
    /// Requests by Kafka that the broker acknowledged: `ce_id`.
    pub by_kafka: Vec<String>,
}

impl Ledger {
    /// An empty one.
    #[must_use]
    pub fn new(begun: Instant) -> Self {
        Self {
            begun,
            inner: Mutex::default(),
        }
    }

    /// What is in it.
    pub fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds since the start of the run.
    #[must_use]
    pub fn millis(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.begun).as_millis()).unwrap_or(u64::MAX)
    }

    /// Writes a try of a key down and says what it was.
    pub fn note(
        &self,
        key: &str,
        what: &'static str,
        replica: usize,
        (sent, done): (Instant, Instant),
        answer: Option<&Answer>,
    ) -> Seen {
        let seen = answer.map_or(Seen::Unknown, read);
        let mut inner = self.inner();
        let status = answer.map_or(0, |answer| answer.status);
        *inner.statuses.entry(status).or_insert(0) += 1;
        if let Some(answer) = answer
            && ![201, 409, 410, 429, 503].contains(&status)
            && inner.broken.len() < 100
        {
            inner.broken.push(format!("{key}: {}", answer.text()));
        }
        let request = inner
            .requests
            .entry(key.to_owned())
            .or_insert_with(|| Request {
                key: key.to_owned(),
                what,
                tries: Vec::new(),
            });
        let first = !request
            .tries
            .iter()
            .any(|one| matches!(one.seen, Seen::Accepted { .. }));
        request.tries.push(Try {
            sent: self.millis(sent),
            done: self.millis(done),
            replica,
            seen: seen.clone(),
        });
        if first && let Seen::Accepted { order, .. } = &seen {
            inner.accepted.push((done, replica));
            inner.orders.push(order.clone());
        }
        seen
    }

    /// First 201s between two moments.
    #[must_use]
    pub fn accepted_between(&self, from: Instant, to: Instant) -> usize {
        let inner = self.inner();
        let inside = |at: &Instant| *at >= from && *at < to;
        inner.accepted.iter().filter(|(at, _)| inside(at)).count()
    }

    /// The first 201 after a moment, from one replica or any.
    #[must_use]
    pub fn first_accepted_after(&self, from: Instant, replica: Option<usize>) -> Option<Duration> {
        let inner = self.inner();
        inner
            .accepted
            .iter()
            .filter(|(at, by)| *at >= from && replica.is_none_or(|wanted| wanted == *by))
            .map(|(at, _)| *at - from)
            .min()
    }

    /// Writes all of it as a line per request.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
        for request in self.inner().requests.values() {
            serde_json::to_writer(&mut file, request)?;
            file.write_all(b"\n")?;
        }
        Ok(file.flush()?)
    }
}

fn read(answer: &Answer) -> Seen {
    let json = answer.json();
    let code = json["code"].as_str().unwrap_or("").to_owned();
    match answer.status {
        201 => {
            let mut hash = DefaultHasher::new();
            answer.body.hash(&mut hash);
            Seen::Accepted {
                order: json["order_id"].as_str().unwrap_or("").to_owned(),
                replayed: answer.replayed,
                body: hash.finish(),
            }
        }
        429 | 503 => Seen::Later(answer.status, later_code(&json, code)),
        409 if code == "request-in-flight" => Seen::Later(409, code),
        status if status >= 500 => Seen::Unknown,
        status => Seen::Refused(status, code),
    }
}

/// 503 says so when its outcome is unknown.
fn later_code(json: &Value, code: String) -> String {
    match json["outcome"].as_str() {
        Some(outcome) => format!("{code} {outcome}"),
        None => code,
    }
}
