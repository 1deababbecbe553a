//! The answers that refuse a request: `ORDER_REJECTED`, stored under its key, so that the same request
//! is answered alike whenever it is read again (P9, P11).

use std::collections::{HashMap, HashSet};

use contracts::{
    Code, HoldId, OrderId,
    events::{NewEvent, OrderRejected},
};
use messaging::{HandleError, Inbound};
use store::{
    Tx,
    idempotency::{self, Answer, Claim, KeyRow},
    outbox,
};

use super::{NEVER, Requested};
use crate::{accept_batch::Verdict, place_orders::Refused};

/// An answer that is an event.
#[derive(Debug)]
pub(super) struct Refusal<'a> {
    pub(super) event: &'a Inbound<Requested>,
    pub(super) code: Code,
    pub(super) detail: String,
    /// Whether it is to be stored under its key; a repeated one is stored already.
    pub(super) store: bool,
}

/// Takes the keys of what was refused without the accept. A key that is taken already says what was
/// answered before; that is what counts.
pub(super) async fn take_keys<'a>(
    tx: &mut Tx,
    refused: Vec<Refusal<'a>>,
) -> Result<Vec<Refusal<'a>>, HandleError> {
    if refused.is_empty() {
        return Ok(refused);
    }
    let claims: Vec<Claim> = refused
        .iter()
        .map(|refusal| Claim {
            hold_id: refusal.event.event.hold_id,
            fingerprint: refusal.event.event.fingerprint,
            order_id: OrderId::generate(),
            deadline: NEVER,
        })
        .collect();
    let mine: HashSet<HoldId> = idempotency::claim(tx, &claims, true)
        .await?
        .into_iter()
        .collect();
    let others: Vec<HoldId> = claims
        .iter()
        .map(|claim| claim.hold_id)
        .filter(|hold| !mine.contains(hold))
        .collect();
    let mut before = if others.is_empty() {
        HashMap::new()
    } else {
        idempotency::find(tx, &others).await?
    };
    let mut out = Vec::with_capacity(refused.len());
    for refusal in refused {
        let hold = refusal.event.event.hold_id;
        if mine.contains(&hold) {
            out.push(refusal);
        } else if let Some(row) = before.remove(&hold) {
            out.extend(repeated(refusal.event, row));
        }
    }
    Ok(out)
}

/// What is answered to a request whose key was used before.
fn repeated(event: &Inbound<Requested>, row: KeyRow) -> Option<Refusal<'_>> {
    if row.fingerprint != event.event.fingerprint {
        return Some(key_reused(event));
    }
    match row.answer {
        // Its ORDER_RESERVED went out with the order.
        Answer::Accepted(_) => None,
        Answer::Rejected { code, detail } => Some(Refusal {
            event,
            code,
            detail,
            store: false,
        }),
    }
}

/// The refusal that a verdict of the accept means; `None` when the order stands.
pub(super) fn of_verdict(event: &Inbound<Requested>, verdict: Verdict) -> Option<Refusal<'_>> {
    let outcome = match &verdict {
        Verdict::Accepted(_) => "accepted",
        Verdict::Before(_) => "replayed",
        Verdict::Rejected { code, .. } => code.as_str(),
        Verdict::KeyReused => "key-reused",
        Verdict::Refused(_) => "refused",
        Verdict::Late => "late",
    };
    metrics::counter!("order_requests_total", "outcome" => outcome).increment(1);
    match verdict {
        Verdict::Accepted(_) | Verdict::Before(_) => None,
        Verdict::Rejected { code, detail } => Some(Refusal {
            event,
            code,
            detail,
            store: false,
        }),
        Verdict::KeyReused => Some(key_reused(event)),
        Verdict::Refused(refusal) => {
            let refused = Refused::from(refusal);
            let detail = refused.detail();
            Some(Refusal {
                event,
                code: refused.code,
                detail,
                store: true,
            })
        }
        Verdict::Late => {
            // Only a key whose order has been removed by hand.
            tracing::warn!(
                event.id = event.event_id,
                "a request's key stands for no order"
            );
            None
        }
    }
}

fn key_reused(event: &Inbound<Requested>) -> Refusal<'_> {
    let detail = "the same source and id were used with another body".to_owned();
    Refusal {
        event,
        code: Code::KeyReused,
        detail,
        store: false,
    }
}

/// Stores what is new, and answers all.
pub(super) async fn write(tx: &mut Tx, refusals: Vec<Refusal<'_>>) -> Result<(), HandleError> {
    if refusals.is_empty() {
        return Ok(());
    }
    let new: Vec<(HoldId, Code, String)> = refusals
        .iter()
        .filter(|refusal| refusal.store)
        .map(|refusal| {
            (
                refusal.event.event.hold_id,
                refusal.code,
                refusal.detail.clone(),
            )
        })
        .collect();
    if !new.is_empty() {
        idempotency::reject(tx, &new).await?;
    }
    let answers: Vec<NewEvent> = refusals
        .into_iter()
        .map(|refusal| {
            let rejected = OrderRejected {
                request_source: refusal.event.source.clone(),
                request_id: refusal.event.event_id.clone(),
                code: refusal.code,
                detail: refusal.detail,
            };
            let mut answer = NewEvent::rejection(refusal.event.event.hold_id, rejected);
            answer.traceparent.clone_from(&refusal.event.traceparent);
            answer
        })
        .collect();
    outbox::insert(tx, &answers).await?;
    Ok(())
}
