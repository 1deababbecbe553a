//! The provider's API. An outcome (captured, declined, canceled) is a 200 with its status; an
//! error is a problem with a `code`.

mod charges;
mod control;
mod refunds;

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, rejection::JsonRejection},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use platform::Shutdown;
use serde::Serialize;

use crate::{Behaviour, Sim};

const BODY_MAX: usize = 64 * 1024;
const KEY_MAX: usize = 255;

pub(crate) fn router(sim: Arc<Sim>) -> Router {
    Router::new()
        .route("/v1/charges", post(charges::create))
        .route("/v1/charges/{key}", get(charges::read))
        .route("/v1/charges/{key}/cancel", post(charges::cancel))
        .route("/v1/refunds", post(refunds::create))
        .route("/v1/refunds/{key}", get(refunds::read))
        .route("/v1/journal", get(control::journal))
        .route(
            "/v1/behaviour",
            get(control::behaviour).put(control::change),
        )
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(sim)
}

/// An error as it is answered.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
}

#[derive(Serialize)]
struct Body<'a> {
    status: u16,
    code: &'a str,
    detail: &'a str,
}

impl Problem {
    fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status,
            code,
            detail: detail.into(),
        }
    }

    fn in_flight() -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "in-flight",
            "a request with this key is being executed",
        )
    }

    fn key_reused() -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "key-reused",
            "the key has another body",
        )
    }

    fn full() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "book-full",
            "no room for a new key",
        )
    }

    fn late() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "late",
            "nothing is said about this key yet",
        )
    }

    fn not_found() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "not-found",
            "this key was never seen",
        )
    }

    /// The task that executed the request ended without an answer.
    fn lost() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "the execution was lost",
        )
    }
}

impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Self {
        Self::new(rejection.status(), "malformed", rejection.body_text())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = Body {
            status: self.status.as_u16(),
            code: self.code,
            detail: &self.detail,
        };
        (
            self.status,
            [(header::CONTENT_TYPE, "application/problem+json")],
            Json(body),
        )
            .into_response()
    }
}

/// The behaviour at this moment; a provider that is down answers nothing else.
fn up(sim: &Sim) -> Result<Behaviour, Problem> {
    let behaviour = sim.behaviour();
    if behaviour.down {
        return Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "down",
            "switched off",
        ));
    }
    Ok(behaviour)
}

fn idempotency_key(headers: &HeaderMap) -> Result<String, Problem> {
    let key = headers
        .get("idempotency-key")
        .and_then(|value| value.to_str().ok())
        .unwrap_or("");
    checked_key(key)
}

fn checked_key(key: &str) -> Result<String, Problem> {
    if key.is_empty() || key.len() > KEY_MAX || !key.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "idempotency-key-required",
            "the key must be 1 to 255 visible ASCII characters",
        ));
    }
    Ok(key.to_owned())
}

/// Waits, but not longer than until shutdown begins.
async fn pause(shutdown: &Shutdown, time: Duration) {
    if time.is_zero() {
        return;
    }
    tokio::select! {
        () = shutdown.begun() => {}
        () = tokio::time::sleep(time) => {}
    }
}
