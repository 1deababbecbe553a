//! A handler that does, and fails, as each event wishes, and remembers what it was called for.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use contracts::{ConsumerName, Envelope, Topic, events::NewEvent};
use messaging::{Aside, HandleError, Handler, Inbound, Rejection};
use store::outbox;

use crate::world::event;

/// What a test wants of one event, from its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wish {
    Effect,
    Aside,
    Permanent,
    Unclassified,
    Panic,
    /// Fails this many times for want of a dependency.
    Transient(usize),
    /// Fails for want of a dependency until it is healed.
    Away,
    /// Never returns.
    Hang,
    /// Fails as a statement does that takes longer than anyone waits, when it is beside more than
    /// ten others.
    Heavy,
}

/// A handler whose effect is one outbox row per event, with the event's id as key.
#[derive(Clone, Default)]
pub(crate) struct Recorder {
    pub(crate) prepared: Arc<AtomicUsize>,
    pub(crate) after_commit: Arc<Mutex<HashMap<String, usize>>>,
    failures: Arc<Mutex<HashMap<String, usize>>>,
    /// The events of each call of `handle` that succeeded.
    pub(crate) batches: Arc<Mutex<Vec<usize>>>,
    /// Failures end when it is set.
    pub(crate) healed: Arc<std::sync::atomic::AtomicBool>,
}

impl Handler for Recorder {
    type Event = Wish;
    type Prepared = ();

    fn consumer(&self) -> ConsumerName {
        ConsumerName::Stock
    }

    fn decode(&self, envelope: &Envelope, data: &[u8]) -> Result<Option<Wish>, Rejection> {
        if envelope.event_type == "SOMETHING_NEW" {
            return Ok(None);
        }
        let malformed = |error: serde_json::Error| {
            Rejection::new(messaging::Class::Malformed, error.to_string())
        };
        let value: serde_json::Value = serde_json::from_slice(data).map_err(malformed)?;
        Ok(Some(
            match value.get("wish").and_then(serde_json::Value::as_str) {
                Some("aside") => Wish::Aside,
                Some("permanent") => Wish::Permanent,
                Some("unclassified") => Wish::Unclassified,
                Some("panic") => Wish::Panic,
                Some("away") => Wish::Away,
                Some("hang") => Wish::Hang,
                Some("heavy") => Wish::Heavy,
                Some("transient") => Wish::Transient(2),
                _ => Wish::Effect,
            },
        ))
    }

    async fn prepare(&self, events: &[Inbound<Wish>]) -> Result<(), HandleError> {
        self.prepared.fetch_add(events.len(), Ordering::Relaxed);
        Ok(())
    }

    async fn handle(
        &self,
        tx: &mut store::Tx,
        events: &[Inbound<Wish>],
        (): (),
    ) -> Result<Vec<Aside>, HandleError> {
        assert!(!events.is_empty(), "handle is not called for nothing");
        let effects: Vec<NewEvent> = events
            .iter()
            .filter(|inbound| inbound.event != Wish::Aside)
            .map(|inbound| NewEvent {
                topic: Topic::Stock.as_str().to_owned(),
                ..event(&inbound.event_id, 1)
            })
            .collect();
        // written before the failure: the transaction has to take it back
        outbox::insert(tx, &effects).await?;
        let mut asides = Vec::new();
        for (index, inbound) in events.iter().enumerate() {
            match inbound.event {
                Wish::Effect => {}
                Wish::Heavy if events.len() <= 11 => {}
                Wish::Heavy => return Err(store::StoreError::no_answer().into()),
                Wish::Hang => std::future::pending().await,
                Wish::Away if self.healed.load(Ordering::Relaxed) => {}
                Wish::Away => return Err(HandleError::transient("the gate is away")),
                Wish::Aside => asides.push(Aside {
                    index,
                    reason: "speaks of nothing".to_owned(),
                    class: messaging::Class::UnknownSubject,
                }),
                Wish::Permanent => {
                    return Err(Rejection::new(messaging::Class::Contract, "never").into());
                }
                Wish::Unclassified if self.healed.load(Ordering::Relaxed) => {}
                Wish::Unclassified => return Err(HandleError::unclassified("strange")),
                Wish::Panic => panic!("a bug of the handler"),
                Wish::Transient(times) => {
                    let mut failures = self.failures.lock().unwrap();
                    let failed = failures.entry(inbound.event_id.clone()).or_default();
                    *failed += 1;
                    if *failed <= times {
                        return Err(HandleError::transient("the gate is loading"));
                    }
                }
            }
        }
        self.batches.lock().unwrap().push(events.len());
        Ok(asides)
    }

    async fn after_commit(&self, events: &[Inbound<Wish>]) {
        let mut seen = self.after_commit.lock().unwrap();
        for event in events {
            *seen.entry(event.event_id.clone()).or_default() += 1;
        }
    }
}
