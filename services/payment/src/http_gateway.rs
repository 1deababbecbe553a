//! The provider over HTTP: connections are kept, every wait is bounded, every answer is checked
//! (amount, currency, key).

use std::time::Duration;

use bytes::Bytes;
use contracts::RefundKey;
use http::{Method, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::de::DeserializeOwned;

use crate::{
    gateway::{
        Answer, Charge, GatewayError, JournalPage, NewCharge, NewRefund, PaymentGateway,
        RefundOutcome,
    },
    wire::{WireCharge, WireJournal, WireProblem, WireRefund, slug},
};

const ANSWER_MAX: usize = 64 * 1024;
/// The same of a page of the journal.
const JOURNAL_MAX: usize = 2 * 1024 * 1024;

/// The address is not one that this client can call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("GATEWAY_URL must be an http address without query, for example http://127.0.0.1:8090")]
pub struct InvalidGatewayUrl;

/// The client.
#[derive(Debug, Clone)]
pub struct HttpGateway {
    client: Client<HttpConnector, Full<Bytes>>,
    base: String,
    timeout: Duration,
}

impl HttpGateway {
    /// A client of the provider at `url` that waits at most `timeout` for an answer and keeps at
    /// most `connections` idle.
    ///
    /// # Errors
    /// [`InvalidGatewayUrl`].
    pub fn new(
        url: &str,
        timeout: Duration,
        connections: usize,
    ) -> Result<Self, InvalidGatewayUrl> {
        let parsed: Uri = url.parse().map_err(|_| InvalidGatewayUrl)?;
        if parsed.scheme_str() != Some("http")
            || parsed.host().is_none()
            || parsed.query().is_some()
        {
            return Err(InvalidGatewayUrl);
        }
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(timeout.min(Duration::from_secs(1))));
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(connections)
            .pool_idle_timeout(Duration::from_secs(30))
            .build(connector);
        Ok(Self {
            client,
            base: url.trim_end_matches('/').to_owned(),
            timeout,
        })
    }

    async fn call(
        &self,
        method: Method,
        path: String,
        key: Option<&str>,
        body: String,
    ) -> Answer<(StatusCode, Bytes)> {
        let mut request = http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(http::header::CONTENT_TYPE, "application/json");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let request = request
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| GatewayError::Unreachable(Box::new(error)))?;
        self.within(request, ANSWER_MAX).await
    }

    async fn within(
        &self,
        request: http::Request<Full<Bytes>>,
        most: usize,
    ) -> Answer<(StatusCode, Bytes)> {
        tokio::time::timeout(self.timeout, self.exchange(request, most))
            .await
            .map_err(|_| GatewayError::TimedOut)?
    }

    async fn exchange(
        &self,
        request: http::Request<Full<Bytes>>,
        most: usize,
    ) -> Answer<(StatusCode, Bytes)> {
        let response = self
            .client
            .request(request)
            .await
            .map_err(|error| GatewayError::Unreachable(Box::new(error)))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), most)
            .collect()
            .await
            .map_err(GatewayError::Unreachable)?;
        Ok((status, body.to_bytes()))
    }
}

/// A key as part of a query.
fn encoded(key: &str) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(key.len());
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            text.push(char::from(byte));
        } else {
            // Writing to a string can't fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// The answer of a 200; a 404 is `None` where the question allows it.
fn read<T: DeserializeOwned>(
    status: StatusCode,
    body: &[u8],
    may_be_unknown: bool,
) -> Answer<Option<T>> {
    if status == StatusCode::OK {
        return serde_json::from_slice(body)
            .map(Some)
            .map_err(|_| GatewayError::InvalidAnswer("the body is not what the contract says"));
    }
    let code = || {
        let problem: WireProblem = serde_json::from_slice(body).unwrap_or_default();
        slug(Some(&problem.code))
    };
    match status {
        StatusCode::NOT_FOUND if may_be_unknown && code() == "not-found" => Ok(None),
        StatusCode::CONFLICT if code() == "in-flight" => Err(GatewayError::InFlight),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => {
            Err(GatewayError::Unavailable {
                status: status.as_u16(),
            })
        }
        _ if status.is_server_error() => Err(GatewayError::Unavailable {
            status: status.as_u16(),
        }),
        _ => Err(GatewayError::Refused {
            status: status.as_u16(),
            code: code(),
        }),
    }
}

fn present<T>(answer: Option<T>) -> Answer<T> {
    answer.ok_or(GatewayError::InvalidAnswer(
        "nothing where something must be",
    ))
}

fn charge_of(key: &str, wire: WireCharge) -> Answer<Charge> {
    let charge = wire.check()?;
    if charge.key == key {
        Ok(charge)
    } else {
        Err(GatewayError::InvalidAnswer("the answer has another key"))
    }
}

fn refund_of(key: &RefundKey, wire: WireRefund) -> Answer<RefundOutcome> {
    if wire.key == *key {
        wire.check()
    } else {
        Err(GatewayError::InvalidAnswer("the answer has another key"))
    }
}

/// Counts a call by its result.
fn count<T>(call: &'static str, answer: Answer<T>) -> Answer<T> {
    let result = answer.as_ref().map_or_else(GatewayError::label, |_| "ok");
    metrics::counter!("gateway_calls_total", "call" => call, "result" => result).increment(1);
    answer
}

impl PaymentGateway for HttpGateway {
    async fn charge(&self, charge: &NewCharge) -> Answer<Charge> {
        let body = serde_json::json!({
            "reference": charge.reference,
            "order_id": charge.order_id,
            "amount": charge.amount,
            "method": charge.method,
        });
        let answer = self
            .call(
                Method::POST,
                "/v1/charges".to_owned(),
                Some(&charge.key),
                body.to_string(),
            )
            .await
            .and_then(|(status, body)| read(status, &body, false))
            .and_then(present)
            .and_then(|wire| charge_of(&charge.key, wire));
        count("charge", answer)
    }

    async fn find_charge(&self, key: &str) -> Answer<Option<Charge>> {
        let answer = self
            .call(
                Method::GET,
                format!("/v1/charges/{key}"),
                None,
                String::new(),
            )
            .await
            .and_then(|(status, body)| read(status, &body, true))
            .and_then(|wire| wire.map(|wire| charge_of(key, wire)).transpose());
        count("find-charge", answer)
    }

    async fn cancel_charge(&self, key: &str) -> Answer<Charge> {
        let answer = self
            .call(
                Method::POST,
                format!("/v1/charges/{key}/cancel"),
                None,
                String::new(),
            )
            .await
            .and_then(|(status, body)| read(status, &body, false))
            .and_then(present)
            .and_then(|wire| charge_of(key, wire));
        count("cancel-charge", answer)
    }

    async fn journal(&self, after: &str, limit: usize) -> Answer<JournalPage> {
        let uri = format!(
            "{}/v1/journal?limit={limit}&after={}",
            self.base,
            encoded(after)
        );
        let answer = match http::Request::get(uri).body(Full::default()) {
            Ok(request) => self.within(request, JOURNAL_MAX).await,
            Err(error) => Err(GatewayError::Unreachable(Box::new(error))),
        };
        let page = answer
            .and_then(|(status, body)| read(status, &body, false))
            .and_then(present)
            .and_then(WireJournal::check);
        count("journal", page)
    }

    async fn refund(&self, refund: &NewRefund) -> Answer<RefundOutcome> {
        let body = serde_json::json!({ "charge_key": refund.charge_key, "amount": refund.amount });
        let answer = self
            .call(
                Method::POST,
                "/v1/refunds".to_owned(),
                Some(refund.key.as_str()),
                body.to_string(),
            )
            .await
            .and_then(|(status, body)| read(status, &body, false))
            .and_then(present)
            .and_then(|wire| refund_of(&refund.key, wire));
        // What the provider can never execute is an outcome, and not our fault.
        let answer = match answer {
            Err(GatewayError::Refused { code, .. })
                if matches!(
                    &*code,
                    "unknown-charge" | "not-captured" | "exceeds-captured"
                ) =>
            {
                Ok(RefundOutcome::Refused { reason_code: code })
            }
            other => other,
        };
        count("refund", answer)
    }

    async fn find_refund(&self, key: &RefundKey) -> Answer<Option<RefundOutcome>> {
        let answer = self
            .call(
                Method::GET,
                format!("/v1/refunds/{key}"),
                None,
                String::new(),
            )
            .await
            .and_then(|(status, body)| read(status, &body, true))
            .and_then(|wire| wire.map(|wire| refund_of(key, wire)).transpose());
        count("find-refund", answer)
    }
}
