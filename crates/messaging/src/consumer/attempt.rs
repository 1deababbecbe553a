//! One transaction: inbox rows, the handler's effect, dead letters, commit; then what follows it.
//!
//! When the process dies before the commit nothing is there and the records come again; after the
//! commit and before the offsets are stored they come again too, and the inbox knows them.

use std::{any::Any, collections::HashSet, panic::AssertUnwindSafe};

use futures::FutureExt as _;
use store::{Store, dead_letters, inbox, inbox::EventKey};

use super::{
    handler::{HandleError, Handler, Inbound},
    unit::{Unit, letters},
};

/// What a transaction did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) handled: usize,
    pub(super) duplicates: usize,
    pub(super) dead: usize,
}

/// Runs a unit once.
pub(super) async fn attempt<H: Handler>(
    handler: &H,
    store: &Store,
    unit: &mut Unit<H::Event>,
) -> Result<Tally, HandleError> {
    let work = AssertUnwindSafe(transact(handler, store, unit)).catch_unwind();
    let tally = work
        .await
        .unwrap_or_else(|panic| Err(panicked(panic.as_ref())))?;
    follow_up(handler, &unit.events).await;
    platform::crash_point!("cp16", err => return Err(store::StoreError::no_connection().into()));
    Ok(tally)
}

/// What follows a commit. A panic in it is a bug, and nothing that the sweeps would not repair.
pub(super) async fn follow_up<H: Handler>(handler: &H, events: &[Inbound<H::Event>]) {
    let after = AssertUnwindSafe(handler.after_commit(events)).catch_unwind();
    if let Err(panic) = after.await {
        let consumer = handler.consumer().as_str();
        metrics::counter!("consumer_after_commit_panics_total", "consumer" => consumer)
            .increment(1);
        tracing::error!(
            consumer,
            panic = message(panic.as_ref()),
            "after_commit panicked; the sweeps repair"
        );
    }
}

async fn transact<H: Handler>(
    handler: &H,
    store: &Store,
    unit: &mut Unit<H::Event>,
) -> Result<Tally, HandleError> {
    let consumer = handler.consumer();
    let prepared = match unit.events.as_slice() {
        [] => None,
        events => Some(handler.prepare(events).await?),
    };
    platform::crash_point!("cp14", err => return Err(store::StoreError::no_connection().into()));
    let mut tx = store.begin().await?;
    let keys = unit.keys();
    let new: HashSet<EventKey> = match keys.as_slice() {
        [] => HashSet::new(),
        keys => inbox::insert(&mut tx, consumer, keys).await?,
    };
    platform::crash_point!("cp15", err => return Err(store::StoreError::no_connection().into()));
    let fresh = unit.new_first(&new);
    let asides = match (fresh, prepared) {
        (0, _) | (_, None) => Vec::new(),
        (_, Some(prepared)) => {
            handler
                .handle(&mut tx, &unit.events[..fresh], prepared)
                .await?
        }
    };
    if let Some(wrong) = asides.iter().find(|aside| aside.index >= fresh) {
        let index = wrong.index;
        return Err(HandleError::unclassified(format!(
            "event {index} of {fresh} was set aside"
        )));
    }
    let letters = letters(consumer, unit, &asides, new);
    let dead = match letters.as_slice() {
        [] => 0,
        letters => dead_letters::insert(&mut tx, letters).await?,
    };
    tx.commit().await?;
    platform::crash_point!("cp17", err => return Err(store::StoreError::no_answer().into()));
    for letter in &letters {
        tracing::warn!(
            consumer = letter.consumer,
            event.id = letter.event_id,
            event.r#type = letter.event_type,
            partition = letter.partition,
            offset = letter.offset,
            class = letter.class,
            reason = letter.reason,
            "record set aside as a dead letter"
        );
    }
    let duplicates = unit.all_records().count() - fresh - unit.rejects.len();
    Ok(Tally {
        handled: fresh - asides.len(),
        duplicates,
        dead,
    })
}

/// The failure that a panic of a handler is.
pub(super) fn panicked(panic: &(dyn Any + Send)) -> HandleError {
    HandleError::unclassified(format!("the handler panicked: {}", message(panic)))
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message")
}
