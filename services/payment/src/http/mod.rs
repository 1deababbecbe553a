//! What payment serves: the gateway's webhooks. The only place of this service that names an HTTP
//! status.

mod webhooks;

use std::sync::Arc;

use axum::{Router, extract::DefaultBodyLimit, routing::post};
use secrecy::SecretString;

use crate::record_results::Recorder;

/// The greatest webhook in bytes.
const BODY_MAX: usize = 64 * 1024;

#[derive(Debug)]
struct Receiver {
    recorder: Recorder,
    secret: SecretString,
}

/// `POST /webhooks/gateway`.
pub fn router(recorder: Recorder, secret: SecretString) -> Router {
    Router::new()
        .route("/webhooks/gateway", post(webhooks::receive))
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(Arc::new(Receiver { recorder, secret }))
}
