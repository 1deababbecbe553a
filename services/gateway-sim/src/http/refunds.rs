//! Refunds: create, read.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Path, State, rejection::JsonRejection},
    http::{HeaderMap, StatusCode},
};
use platform::clock;

use super::{Problem, idempotency_key, pause, up};
use crate::{
    Behaviour, Sim,
    book::{Begun, Refund, RefundRefusal, RefundRequest},
};

pub(crate) async fn create(
    State(sim): State<Arc<Sim>>,
    headers: HeaderMap,
    body: Result<Json<RefundRequest>, JsonRejection>,
) -> Result<Json<Refund>, Problem> {
    let behaviour = up(&sim)?;
    let key = idempotency_key(&headers)?;
    let Json(request) = body?;
    let begun = sim.book().begin_refund(&key, &request);
    match begun {
        Begun::Done(refund) => Ok(Json(refund)),
        Begun::InFlight => Err(Problem::in_flight()),
        Begun::Reused => Err(Problem::key_reused()),
        Begun::Full => Err(Problem::full()),
        Begun::Fresh => {
            let task = execute(Arc::clone(&sim), behaviour, key);
            let refund = sim
                .shutdown
                .spawn(task)
                .await
                .map_err(|_| Problem::lost())?;
            refund.map(Json).map_err(refused)
        }
    }
}

async fn execute(
    sim: Arc<Sim>,
    behaviour: Behaviour,
    key: String,
) -> Result<Refund, RefundRefusal> {
    pause(&sim.shutdown, behaviour.latency(&key)).await;
    let refund = sim.book().execute_refund(&key, clock::now())?;
    if let Some(webhooks) = &sim.webhooks {
        webhooks.notify(&behaviour, "refund.succeeded", &refund);
    }
    if behaviour.hangs(&key) {
        pause(&sim.shutdown, Duration::from_millis(behaviour.hang_ms)).await;
    }
    Ok(refund)
}

fn refused(refusal: RefundRefusal) -> Problem {
    match refusal {
        RefundRefusal::UnknownCharge => Problem::new(
            StatusCode::NOT_FOUND,
            "unknown-charge",
            "no charge has this key",
        ),
        RefundRefusal::NotCaptured => Problem::new(
            StatusCode::CONFLICT,
            "not-captured",
            "the charge took no money",
        ),
        RefundRefusal::ExceedsCaptured => Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "exceeds-captured",
            "more than was captured and is not refunded yet",
        ),
    }
}

pub(crate) async fn read(
    State(sim): State<Arc<Sim>>,
    Path(key): Path<String>,
) -> Result<Json<Refund>, Problem> {
    up(&sim)?;
    sim.book()
        .refund(&key)
        .map(Json)
        .ok_or_else(Problem::not_found)
}
