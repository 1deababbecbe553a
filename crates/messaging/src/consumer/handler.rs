//! What a service writes to consume a topic.

use std::{error::Error, future::Future};

use contracts::{
    ConsumerName, Envelope, OrderId, Timestamp, envelope, envelope::EnvelopeError,
    events::DecodeError,
};
use store::StoreError;

/// Handles the events of one consumer. The runner calls the steps in the order of the methods;
/// every step may run again for the same events, with nothing kept from the attempt before.
pub trait Handler: Send + Sync + 'static {
    /// A decoded event.
    type Event: Send + Sync + 'static;
    /// What [`Handler::prepare`] hands to [`Handler::handle`].
    type Prepared: Send;

    /// Who consumes: gives topic, group, inbox name and dead letter topic.
    fn consumer(&self) -> ConsumerName;

    /// Reads a record. `Ok(None)`: a type that is not ours, skipped and counted.
    ///
    /// # Errors
    /// The record will never be readable: it is a dead letter at once.
    fn decode(&self, envelope: &Envelope, data: &[u8]) -> Result<Option<Self::Event>, Rejection>;

    /// Outside of any transaction: the place for the gate. Sees every event of the attempt once,
    /// in the order of their offsets, *including* those that [`Handler::handle`] will not get
    /// because the inbox knows them: what is prepared must be found by event, not by index.
    fn prepare(
        &self,
        events: &[Inbound<Self::Event>],
    ) -> impl Future<Output = Result<Self::Prepared, HandleError>> + Send;

    /// In the transaction that holds the inbox rows of `events`: the new ones alone, never empty,
    /// in the order of their offsets per partition. Must not commit and must not call the network.
    /// Single events can be set aside: they become dead letters in the same transaction.
    fn handle(
        &self,
        tx: &mut store::Tx,
        events: &[Inbound<Self::Event>],
        prepared: Self::Prepared,
    ) -> impl Future<Output = Result<Vec<Aside>, HandleError>> + Send;

    /// After the commit, for all events of the attempt, known ones too. Idempotent. It reports its
    /// own failures and never holds anything up: the sweeps are the net.
    fn after_commit(&self, events: &[Inbound<Self::Event>]) -> impl Future<Output = ()> + Send;
}

/// Where a record lies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The topic as the broker knows it.
    pub topic: std::sync::Arc<str>,
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
}

/// An event as it came in.
#[derive(Debug)]
pub struct Inbound<E> {
    /// `ce_source`; with `event_id`, what identifies the event.
    pub source: String,
    /// `ce_id`.
    pub event_id: String,
    /// `ce_time`, when given.
    pub time: Option<Timestamp>,
    /// `ce_aggregateversion`, when given.
    pub aggregate_version: Option<i64>,
    /// `traceparent`, when given: to be handed on with the events that this one causes.
    pub traceparent: Option<String>,
    /// Where the record lies.
    pub position: Position,
    /// The event.
    pub event: E,
}

impl<E> Inbound<E> {
    /// An event under our own name about an order that does not exist: an order is committed before
    /// its events are written, so the database has forgotten it, for example because it was restored
    /// to an earlier moment (I23). Raises the alarm; does nothing for the events of others.
    pub fn alarm_if_phantom(&self, order: OrderId) {
        let ours = [
            envelope::source::ORDER,
            envelope::source::PAYMENT,
            envelope::source::STOCK,
        ];
        if ours.contains(&self.source.as_str()) {
            metrics::counter!("alarms_total", "kind" => "phantom-event").increment(1);
            tracing::error!(
                event.id = self.event_id,
                event.source = self.source,
                order.id = %order,
                "an event of ours names an order that the database does not know"
            );
        }
    }
}

/// Why a dead letter is one. Never a fault of ours: such faults are waited out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Not an event: headers, encoding or shape.
    Malformed,
    /// The major version of the data is not known.
    UnknownVersion,
    /// It breaks a rule of the contract.
    Contract,
    /// It speaks of something that does not exist.
    UnknownSubject,
    /// It contradicts what is recorded.
    Conflict,
    /// It failed again and again, alone, and nobody knows why.
    Unclassified,
}

impl Class {
    /// As stored in `dead_letters.class` and sent in `dlq_class`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownVersion => "unknown-version",
            Self::Contract => "contract",
            Self::UnknownSubject => "unknown-subject",
            Self::Conflict => "conflict",
            Self::Unclassified => "unclassified",
        }
    }
}

/// A record that will never be handled.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason}")]
pub struct Rejection {
    /// For people; a sentence without secrets.
    pub reason: String,
    /// Its class.
    pub class: Class,
}

impl Rejection {
    /// A rejection with its reason.
    #[must_use]
    pub fn new(class: Class, reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            class,
        }
    }
}

impl From<EnvelopeError> for Rejection {
    fn from(error: EnvelopeError) -> Self {
        let class = match error {
            EnvelopeError::Missing(_)
            | EnvelopeError::Malformed(_)
            | EnvelopeError::SpecVersion(_) => Class::Malformed,
            EnvelopeError::Major(_) => Class::UnknownVersion,
        };
        Self::new(class, error.to_string())
    }
}

impl From<DecodeError> for Rejection {
    fn from(error: DecodeError) -> Self {
        Self::new(Class::Malformed, error.to_string())
    }
}

/// One event of [`Handler::handle`]'s slice that is set aside as a dead letter, alone.
#[derive(Debug, Clone)]
pub struct Aside {
    /// Its index in the slice.
    pub index: usize,
    /// For people.
    pub reason: String,
    /// Its class.
    pub class: Class,
}

/// Why an attempt failed as a whole.
#[derive(Debug, thiserror::Error)]
pub enum HandleError {
    /// Something of ours is away or busy: the same events are tried again, for ever.
    #[error("a dependency is away")]
    Transient(#[source] Box<dyn Error + Send + Sync>),
    /// Some event of the attempt can never be handled: bisected, the one alone is a dead letter.
    #[error("an event can't be handled")]
    Permanent(#[from] Rejection),
    /// Not known which of the two: bisected; an event that fails alone five times over a minute,
    /// while others are handled, is a dead letter.
    #[error("an attempt failed")]
    Unclassified(#[source] Box<dyn Error + Send + Sync>),
}

impl HandleError {
    /// A transient failure with its cause.
    pub fn transient(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Transient(cause.into())
    }

    /// A failure that is not classified, with its cause.
    pub fn unclassified(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unclassified(cause.into())
    }
}

impl From<StoreError> for HandleError {
    /// A lost reply to COMMIT is transient too: the attempt is run again and the inbox decides.
    fn from(error: StoreError) -> Self {
        if error.is_transient() {
            Self::Transient(Box::new(error))
        } else {
            Self::Unclassified(Box::new(error))
        }
    }
}
