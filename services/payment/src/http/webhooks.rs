//! `POST /webhooks/gateway`: 202 taken (also what is known, unknown or not ours: the provider must
//! not send it again), 400 breaks the contract, 401 not believed, 413 too large, 503 send it again.

use std::sync::Arc;

use axum::{
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use platform::clock;
use secrecy::ExposeSecret;

use super::Receiver;
use crate::webhooks::{self, Notice, SIGNATURE};

pub(super) async fn receive(
    State(receiver): State<Arc<Receiver>>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let signature = headers.get(SIGNATURE).and_then(|value| value.to_str().ok());
    let secret = receiver.secret.expose_secret();
    if let Err(disbelief) = webhooks::verify(secret, signature, &body, clock::now()) {
        tracing::warn!(%disbelief, "webhook refused");
        return counted("disbelieved", StatusCode::UNAUTHORIZED);
    }
    match webhooks::read(&body) {
        Notice::News(news) => {
            if receiver.recorder.offer(news) {
                counted("taken", StatusCode::ACCEPTED)
            } else {
                counted("no-room", StatusCode::SERVICE_UNAVAILABLE)
            }
        }
        Notice::Ignored => counted("ignored", StatusCode::ACCEPTED),
        Notice::Malformed => counted("malformed", StatusCode::BAD_REQUEST),
    }
}

fn counted(result: &'static str, status: StatusCode) -> StatusCode {
    metrics::counter!("webhooks_received_total", "result" => result).increment(1);
    status
}
