//! The operations port: `/livez`, `/readyz`, `/metrics`, and serving HTTP until shutdown.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use serde::Serialize;
use tokio::net::TcpListener;

use crate::{Shutdown, config::Listen, telemetry, watchdog};

/// Why a process is not ready: named conditions, each ready or not with a word why.
#[derive(Debug, Clone, Default)]
pub struct Ops {
    conditions: Arc<Mutex<BTreeMap<&'static str, Condition>>>,
}

#[derive(Debug, Clone, Serialize)]
struct Condition {
    ready: bool,
    detail: String,
}

#[derive(Serialize)]
struct Report {
    ready: bool,
    conditions: BTreeMap<&'static str, Condition>,
}

impl Ops {
    /// No conditions: ready.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a condition; the process is ready while all are.
    pub fn set(&self, name: &'static str, ready: bool, detail: impl Into<String>) {
        let condition = Condition {
            ready,
            detail: detail.into(),
        };
        self.conditions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name, condition);
    }

    /// Whether all conditions are ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.report().ready
    }

    fn report(&self) -> Report {
        let conditions = self
            .conditions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        Report {
            ready: conditions.values().all(|c| c.ready),
            conditions,
        }
    }

    /// The routes of the operations port.
    pub fn router(&self) -> Router {
        let router = Router::new()
            .route("/livez", get(livez))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics));
        #[cfg(feature = "failpoints")]
        let router = router.route("/failpoints", get(failpoints).post(set_failpoints));
        router.with_state(self.clone())
    }
}

async fn livez() -> (StatusCode, &'static str) {
    if watchdog::is_live() {
        (StatusCode::OK, "ok")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the runtime is blocked")
    }
}

async fn readyz(State(ops): State<Ops>) -> impl IntoResponse {
    let report = ops.report();
    let status = if report.ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(report))
}

async fn metrics() -> impl IntoResponse {
    (
        [(header::CONTENT_TYPE, "text/plain; version=0.0.4")],
        telemetry::render_metrics(),
    )
}

/// What was reached and what bit.
#[cfg(feature = "failpoints")]
async fn failpoints() -> impl IntoResponse {
    Json(crate::failpoints::counts())
}

/// Takes a setting as in `HOLDFAST_FAILPOINTS`; says what was reached and what bit so far.
#[cfg(feature = "failpoints")]
async fn set_failpoints(setting: String) -> impl IntoResponse {
    match crate::failpoints::set(&setting) {
        Ok(()) => Json(crate::failpoints::counts()).into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    }
}

/// Serves `router` until shutdown begins, then finishes the requests in flight, for at most
/// 5 seconds.
///
/// # Errors
/// The address can't be bound.
pub async fn serve(listen: Listen, router: Router, shutdown: Shutdown) -> std::io::Result<()> {
    let listener = match listen {
        Listen::Address(address) => TcpListener::bind(address).await?,
        Listen::Bound(listener) => {
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener)?
        }
    };
    tracing::info!(address = %listener.local_addr()?, "listening");
    let begun = shutdown.clone();
    let server = axum::serve(
        axum::serve::ListenerExt::tap_io(listener, |stream| {
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "nodelay could not be set");
            }
        }),
        router,
    )
    .with_graceful_shutdown(async move { begun.begun().await });
    let cut = async {
        shutdown.begun().await;
        tokio::time::sleep(Duration::from_secs(5)).await;
    };
    tokio::select! {
        served = server => served,
        () = cut => Ok(()),
    }
}
