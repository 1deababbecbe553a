//! Problem details (RFC 9457): the only place that knows which HTTP status a code has.

use std::borrow::Cow;

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use contracts::{Code, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

use crate::parse::{BodyError, FieldError};

/// The media type of every error.
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// An error answer. It becomes text only at the edge, where the trace id is known.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    code: Code,
    detail: Cow<'static, str>,
    retry_after_seconds: Option<u64>,
    errors: Vec<FieldError>,
    opens_at: Option<Timestamp>,
    state: Option<&'static str>,
    outcome: Option<&'static str>,
}

/// What an error answer looks like.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Problem")]
pub(crate) struct ProblemBody<'a> {
    /// `urn:holdfast:problem:CODE`
    #[serde(rename = "type")]
    #[schema(example = "urn:holdfast:problem:sold-out")]
    kind: String,
    #[schema(example = "Sold out")]
    title: &'static str,
    #[schema(example = 410)]
    status: u16,
    detail: &'a str,
    /// Stable slug
    #[schema(value_type = String, example = "sold-out")]
    code: Code,
    /// Whether the same request may succeed later
    retryable: bool,
    trace_id: &'a str,
    /// Only with `invalid`: every field that breaks a rule
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schema(required = false)]
    errors: &'a [FieldError],
    /// Only with `sale-not-open`
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    opens_at: Option<Timestamp>,
    /// Only with `already-settled`: where the order stands
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    /// Only with `unavailable`: `unknown` when the request may or may not have been carried out;
    /// send the same key again
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
}

impl Problem {
    pub(crate) fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            detail: detail.into(),
            retry_after_seconds: None,
            errors: Vec::new(),
            opens_at: None,
            state: None,
            outcome: None,
        }
    }

    pub(crate) fn not_found() -> Self {
        Self::new(
            Code::NotFound,
            "there is no such thing here, or it is not yours",
        )
    }

    /// A server behind is away, or a queue is full: nothing was taken.
    pub(crate) fn unavailable() -> Self {
        Self::new(
            Code::Unavailable,
            "not possible at this moment; nothing was taken",
        )
        .retry_after(1)
    }

    /// Nobody knows whether the request was carried out.
    pub(crate) fn outcome_unknown() -> Self {
        let mut problem = Self::new(
            Code::Unavailable,
            "the outcome is unknown; send the same request with the same key again",
        )
        .retry_after(1);
        problem.outcome = Some("unknown");
        problem
    }

    pub(crate) fn internal() -> Self {
        Self::new(Code::Internal, "a fault of ours")
    }

    pub(crate) fn invalid(field: impl Into<String>, detail: impl Into<Cow<'static, str>>) -> Self {
        Self::invalid_fields(vec![FieldError {
            field: field.into(),
            detail: detail.into(),
        }])
    }

    fn invalid_fields(errors: Vec<FieldError>) -> Self {
        let mut problem = Self::new(Code::Invalid, "the request breaks a rule; see errors");
        problem.errors = errors;
        problem
    }

    pub(crate) fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_seconds = Some(seconds.max(1));
        self
    }

    pub(crate) fn opens_at(mut self, at: Timestamp) -> Self {
        self.opens_at = Some(at);
        self
    }

    pub(crate) fn state(mut self, state: &'static str) -> Self {
        self.state = Some(state);
        self
    }

    /// The answer with its body.
    pub(crate) fn render(&self, trace_id: &str) -> Response {
        let status = status(self.code);
        let body = ProblemBody {
            kind: format!("urn:holdfast:problem:{}", self.code),
            title: title(self.code),
            status: status.as_u16(),
            detail: &self.detail,
            code: self.code,
            retryable: self.code.retryable(),
            trace_id,
            errors: &self.errors,
            opens_at: self.opens_at,
            state: self.state,
            outcome: self.outcome,
        };
        let body = serde_json::to_vec(&body).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        // The rest of the body is not read, so the connection can't be used again: said, or the next
        // request on it meets its end.
        if self.code == Code::TooLarge {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if self.code == Code::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl IntoResponse for Problem {
    /// A response without body that carries the problem to the edge: see [`super::trace`].
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = status(self.code);
        response.extensions_mut().insert(self);
        response
    }
}

impl From<BodyError> for Problem {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::Malformed(detail) => Self::new(Code::Malformed, detail),
            BodyError::Invalid(errors) => Self::invalid_fields(errors),
        }
    }
}

/// The status of a code.
fn status(code: Code) -> StatusCode {
    match code {
        Code::IdempotencyKeyRequired | Code::Malformed => StatusCode::BAD_REQUEST,
        Code::Unauthorized => StatusCode::UNAUTHORIZED,
        Code::Forbidden | Code::SaleNotOpen => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Code::PurchaseLimit
        | Code::RequestInFlight
        | Code::AlreadySettled
        | Code::BelowCommitted => StatusCode::CONFLICT,
        Code::SoldOut | Code::SaleOver => StatusCode::GONE,
        Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Code::Invalid | Code::UnknownSku | Code::KeyReused => StatusCode::UNPROCESSABLE_ENTITY,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn title(code: Code) -> &'static str {
    match code {
        Code::IdempotencyKeyRequired => "Idempotency-Key required",
        Code::Malformed => "Malformed request",
        Code::Unauthorized => "Unauthorized",
        Code::Forbidden => "Forbidden",
        Code::NotFound => "Not found",
        Code::MethodNotAllowed => "Method not allowed",
        Code::SaleNotOpen => "Sale not open",
        Code::SaleOver => "Sale over",
        Code::PurchaseLimit => "Purchase limit reached",
        Code::RequestInFlight => "Request in flight",
        Code::AlreadySettled => "Already settled",
        Code::BelowCommitted => "Below committed stock",
        Code::SoldOut => "Sold out",
        Code::TooLarge => "Too large",
        Code::UnsupportedMediaType => "Unsupported media type",
        Code::Invalid => "Invalid request",
        Code::UnknownSku => "Unknown SKU",
        Code::KeyReused => "Key reused with another request",
        Code::Unavailable => "Unavailable",
        Code::Internal => "Internal error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn body_of(problem: &Problem) -> (Response, serde_json::Value) {
        let response = problem.render("0af7651916cd43dd8448eb211c80319c");
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let json = serde_json::from_slice(&bytes).unwrap();
        (Response::from_parts(parts, Body::empty()), json)
    }

    #[tokio::test]
    async fn every_code_becomes_a_whole_problem() {
        for &code in Code::ALL {
            let (response, body) = body_of(&Problem::new(code, "why")).await;
            assert_eq!(response.headers()[header::CONTENT_TYPE], PROBLEM_JSON);
            assert_eq!(body["status"], response.status().as_u16());
            assert!(response.status().is_client_error() || response.status().is_server_error());
            assert_eq!(body["code"], code.as_str());
            assert_eq!(body["type"], format!("urn:holdfast:problem:{code}"));
            assert_eq!(body["retryable"], code.retryable());
            assert_eq!(body["detail"], "why");
            assert_eq!(body["trace_id"], "0af7651916cd43dd8448eb211c80319c");
            assert!(
                body["title"]
                    .as_str()
                    .is_some_and(|title| !title.is_empty())
            );
            for absent in ["errors", "opens_at", "state", "outcome"] {
                assert!(body.get(absent).is_none(), "{code}: {absent}");
            }
        }
    }

    #[tokio::test]
    async fn what_a_code_adds_is_in_body_and_headers() {
        let opens_at = chrono::DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let problem = Problem::new(Code::SaleNotOpen, "later")
            .opens_at(opens_at)
            .retry_after(0);
        let (response, body) = body_of(&problem).await;
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        assert_eq!(body["opens_at"], "2027-01-15T08:00:00Z");
        let (_, body) = body_of(&Problem::invalid("lines[0].quantity", "must be more")).await;
        assert_eq!(
            body["errors"],
            serde_json::json!([{"field": "lines[0].quantity", "detail": "must be more"}])
        );
        let (response, body) = body_of(&Problem::outcome_unknown()).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(body["outcome"], "unknown");
    }
}
