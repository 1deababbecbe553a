//! Charges: create, read, cancel.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Path, State, rejection::JsonRejection},
    http::HeaderMap,
};
use platform::clock;

use super::{Problem, checked_key, idempotency_key, pause, up};
use crate::{
    Behaviour, Outcome, Sim,
    book::{Begun, Charge, ChargeRequest, ChargeStatus},
};

pub(crate) async fn create(
    State(sim): State<Arc<Sim>>,
    headers: HeaderMap,
    body: Result<Json<ChargeRequest>, JsonRejection>,
) -> Result<Json<Charge>, Problem> {
    let behaviour = up(&sim)?;
    let key = idempotency_key(&headers)?;
    let Json(request) = body?;
    let begun = sim.book().begin_charge(&key, &request);
    match begun {
        Begun::Done(charge) => told(&behaviour, charge),
        Begun::InFlight => Err(Problem::in_flight()),
        Begun::Reused => Err(Problem::key_reused()),
        Begun::Full => Err(Problem::full()),
        Begun::Fresh => {
            // A task of its own: a caller that hangs up does not stop the execution half-way.
            let task = execute(Arc::clone(&sim), behaviour.clone(), key, request);
            let charge = sim
                .shutdown
                .spawn(task)
                .await
                .map_err(|_| Problem::lost())?;
            told(&behaviour, charge.ok_or_else(Problem::lost)?)
        }
    }
}

/// Nobody hears of a late outcome before its time.
fn told(behaviour: &Behaviour, charge: Charge) -> Result<Json<Charge>, Problem> {
    let is_late = charge
        .request
        .as_ref()
        .is_some_and(|request| behaviour.fate(&charge.key, request).is_late());
    let wait = chrono::TimeDelta::from_std(Duration::from_millis(behaviour.late_ms));
    let heard = charge
        .executed_at
        .zip(wait.ok())
        .map(|(at, wait)| at + wait);
    if is_late && heard.is_some_and(|heard| clock::now() < heard) {
        return Err(Problem::late());
    }
    Ok(Json(charge))
}

async fn execute(
    sim: Arc<Sim>,
    mut behaviour: Behaviour,
    key: String,
    request: ChargeRequest,
) -> Option<Charge> {
    pause(&sim.shutdown, behaviour.latency(&key)).await;
    let fate = behaviour.fate(&key, &request);
    let charge = sim.book().execute_charge(&key, fate, clock::now())?;
    if fate.is_late() {
        behaviour.webhook_delay_ms += behaviour.late_ms;
    }
    if let Some(webhooks) = &sim.webhooks {
        match charge.status {
            ChargeStatus::Succeeded => webhooks.notify(&behaviour, "charge.succeeded", &charge),
            ChargeStatus::Declined => webhooks.notify(&behaviour, "charge.failed", &charge),
            ChargeStatus::Pending | ChargeStatus::Canceled => {}
        }
    }
    if fate == Outcome::Hang {
        pause(&sim.shutdown, Duration::from_millis(behaviour.hang_ms)).await;
    }
    Some(charge)
}

pub(crate) async fn read(
    State(sim): State<Arc<Sim>>,
    Path(key): Path<String>,
) -> Result<Json<Charge>, Problem> {
    let behaviour = up(&sim)?;
    let charge = sim.book().charge(&key).ok_or_else(Problem::not_found)?;
    told(&behaviour, charge)
}

pub(crate) async fn cancel(
    State(sim): State<Arc<Sim>>,
    Path(key): Path<String>,
) -> Result<Json<Charge>, Problem> {
    let behaviour = up(&sim)?;
    let key = checked_key(&key)?;
    let charge = sim.book().cancel(&key).ok_or_else(Problem::full)?;
    told(&behaviour, charge)
}
