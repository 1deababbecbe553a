//! Handles a dead letter again (P9). Not by way of Kafka: the other groups of its topic would see the
//! event a second time, and `payments.v1` may be for somebody else to write.
//!
//! Guarantee: the effect and the mark that the letter was redriven are one transaction, under the
//! letter's lock. So it has its effect once, whoever redrives it how often; and what can't be handled
//! still stays open, with nothing left of the attempt.
//!
//! 1. Read the letter into an event, and prepare as for any event.
//! 2. In one transaction: lock the letter, first in the order of locks; see to its key in the inbox;
//!    handle; mark it. *Dies up to here:* nothing of it is there, and the letter is open.
//! 3. After the commit what follows any event. *Dies before:* the sweeps are the net, as always.
//!
//! The key of an event that was handled and refused is in the inbox and stays there, so that a copy
//! on Kafka is known all the while. A record that could not be read never used its key: it is taken
//! now, unless the right event of that key has come meanwhile; then there is nothing left to do.

use std::{error::Error, panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt as _;
use store::{
    Store, StoreError, Tx, dead_letters,
    dead_letters::{DeadLetter, NewDeadLetter},
    inbox,
};
use uuid::Uuid;

use super::{
    attempt::{follow_up, panicked},
    handler::{Class, HandleError, Handler, Inbound, Rejection},
    poller::Record,
    unit::{self, Reject},
};
use crate::record::RawHeaders;

/// How often a transaction is run that lost against another one, or whose outcome is unknown.
const TRIES: u32 = 5;

/// What became of a dead letter, in the order in which it is decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Redriven {
    /// It was redriven before, or its event was handled in another way; or there is no such letter.
    AlreadyDone,
    /// It can't be handled now either, for this reason. It stays open.
    FailedAgain(String),
    /// It has had its effect.
    Replayed,
}

/// Handles a dead letter of the handler's consumer again; with `dry` everything is done but for the
/// end: the transaction is rolled back, and what it says would have become of it.
///
/// # Errors
/// [`HandleError::Transient`] alone: something is away or busy, and the letter is open.
pub async fn redrive<H: Handler>(
    handler: &H,
    store: &Store,
    id: Uuid,
    dry: bool,
) -> Result<Redriven, HandleError> {
    let mut conn = store.conn().await?;
    let found = dead_letters::get(&mut conn, id).await?;
    drop(conn);
    let Some(letter) = found.filter(|letter| !letter.redriven) else {
        return Ok(Redriven::AlreadyDone);
    };
    let events = match read(handler, &letter.letter) {
        Ok(event) => [event],
        Err(rejection) => return Ok(Redriven::FailedAgain(rejection.reason)),
    };
    let (mut unknown, mut tries) = (false, 0);
    loop {
        tries += 1;
        let work = AssertUnwindSafe(transact(handler, store, &letter, &events, dry));
        let done = work.catch_unwind().await;
        let error = match done.unwrap_or_else(|panic| Err(panicked(panic.as_ref()))) {
            Err(error) => error,
            // The commit whose answer was lost has marked it, as far as anyone can tell.
            Ok(Redriven::AlreadyDone) if unknown => {
                follow_up(handler, &events).await;
                return Ok(Redriven::Replayed);
            }
            Ok(Redriven::Replayed) if !dry => {
                follow_up(handler, &events).await;
                return Ok(Redriven::Replayed);
            }
            Ok(outcome) => return Ok(outcome),
        };
        match error {
            HandleError::Permanent(rejection) => {
                return Ok(Redriven::FailedAgain(rejection.reason));
            }
            HandleError::Unclassified(cause) => return Ok(Redriven::FailedAgain(chain(&*cause))),
            HandleError::Transient(cause) => {
                let store = cause.downcast_ref::<StoreError>();
                unknown |= store.is_some_and(StoreError::is_unknown_outcome);
                let again =
                    store.is_none_or(|error| error.must_rerun() || error.is_unknown_outcome());
                if tries == TRIES || !again {
                    return Err(HandleError::Transient(cause));
                }
            }
        }
    }
}

/// The transaction; for an outcome in which the letter stays open it is dropped, and so undone.
async fn transact<H: Handler>(
    handler: &H,
    store: &Store,
    letter: &DeadLetter,
    events: &[Inbound<H::Event>; 1],
    dry: bool,
) -> Result<Redriven, HandleError> {
    let prepared = handler.prepare(events).await?;
    let mut tx = store.begin().await?;
    let Some(locked) = dead_letters::lock_open(&mut tx, letter.id).await? else {
        tx.rollback().await?;
        return Ok(Redriven::AlreadyDone);
    };
    if locked != *letter {
        let reason = "somebody changed the dead letter meanwhile";
        return Ok(Redriven::FailedAgain(reason.to_owned()));
    }
    let [event] = events;
    let outcome = if is_handled(&mut tx, handler, &letter.letter, event).await? {
        Redriven::AlreadyDone
    } else {
        let asides = handler.handle(&mut tx, events, prepared).await?;
        if let Some(aside) = asides.into_iter().next() {
            return Ok(Redriven::FailedAgain(aside.reason));
        }
        Redriven::Replayed
    };
    dead_letters::mark_redriven(&mut tx, letter.id).await?;
    if dry {
        tx.rollback().await?;
    } else {
        tx.commit().await?;
    }
    Ok(outcome)
}

/// Whether the event was handled although the letter is open. Takes its key, if nobody has.
async fn is_handled<H: Handler>(
    tx: &mut Tx,
    handler: &H,
    letter: &NewDeadLetter,
    event: &Inbound<H::Event>,
) -> Result<bool, StoreError> {
    let key = unit::key(event);
    let consumer = handler.consumer();
    if inbox::insert(tx, consumer, std::slice::from_ref(&key))
        .await?
        .contains(&key)
    {
        return Ok(false);
    }
    // The key may be the letter's own, from when its event was refused. These classes are never an
    // event's, and tell it even when the payload was mended since.
    let unread = [Class::Malformed, Class::UnknownVersion].map(Class::as_str);
    if unread.contains(&&*letter.class) {
        return Ok(true);
    }
    let record = Arc::new(record(letter));
    let as_reject = Reject {
        rejection: Rejection::new(Class::Malformed, ""),
        was_event: false,
        envelope: unit::envelope(&record),
        records: vec![record],
        attempts: letter.attempts,
    };
    match unit::reject_key(&as_reject) {
        Some(own) => inbox::knows(tx, consumer, &own).await,
        None => Ok(false),
    }
}

fn read<H: Handler>(handler: &H, letter: &NewDeadLetter) -> Result<Inbound<H::Event>, Rejection> {
    let consumer = handler.consumer();
    if letter.consumer != consumer.as_str() {
        let reason = format!("it is for {}, not for {consumer:?}", letter.consumer);
        return Err(Rejection::new(Class::Conflict, reason));
    }
    match unit::read_one(handler, &Arc::from(&*letter.topic), &record(letter)) {
        Ok(Some(event)) => Ok(event),
        Ok(None) => {
            let reason = "this build does not handle events of its type";
            Err(Rejection::new(Class::Unclassified, reason))
        }
        Err(unreadable) => Err(unreadable.1),
    }
}

/// The record as the consumer read it. Headers that could not be read are not kept, so such a letter
/// stays unreadable.
fn record(letter: &NewDeadLetter) -> Record {
    Record {
        partition: letter.partition,
        epoch: 0,
        offset: letter.offset,
        key: letter.key.clone(),
        payload: letter.payload.clone(),
        headers: RawHeaders::Readable(letter.headers.clone()),
        first_seen: letter.first_seen,
    }
}

/// An error and its causes in one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
