//! Requests with a bound on each answer.

use std::time::Duration;

use bytes::Bytes;
use cli::http_client::{Answer as Raw, HttpClient};
use http::Method;
use serde_json::Value;

/// How long a sane client waits for an answer.
pub const WITHIN: Duration = Duration::from_secs(4);

/// One connection, made again when it breaks.
pub struct Http {
    url: String,
    key: String,
    client: HttpClient,
}

/// An answer.
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Whether it is marked as a repeat.
    pub replayed: bool,
    /// What the server asks to wait.
    pub retry_after: Option<Duration>,
    /// Its body.
    pub body: Bytes,
}

impl Answer {
    /// As JSON, `Null` when it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{} {}", self.status, String::from_utf8_lossy(&self.body))
    }
}

impl Http {
    /// A client of a server.
    ///
    /// # Errors
    /// The URL is none.
    pub fn new(url: &str, key: &str) -> anyhow::Result<Self> {
        Ok(Self {
            url: url.to_owned(),
            key: key.to_owned(),
            client: HttpClient::new(url, Some(key))?,
        })
    }

    /// Sends one request and waits for at most [`WITHIN`].
    ///
    /// # Errors
    /// No answer: the outcome is unknown.
    pub async fn send(
        &mut self,
        method: Method,
        path: &str,
        idempotency_key: Option<&str>,
        body: Option<&Value>,
    ) -> anyhow::Result<Answer> {
        let body = body.map(|body| Bytes::from(body.to_string()));
        self.send_within(WITHIN, method, path, idempotency_key, body)
            .await
    }

    /// The same with a bound of its own; the connection is dropped in the middle when it is over.
    ///
    /// # Errors
    /// As [`Http::send`].
    pub async fn send_within(
        &mut self,
        within: Duration,
        method: Method,
        path: &str,
        idempotency_key: Option<&str>,
        body: Option<Bytes>,
    ) -> anyhow::Result<Answer> {
        let sent = self.client.send(method, path, idempotency_key, body);
        match tokio::time::timeout(within, sent).await {
            Ok(answer) => answer.map(Answer::from),
            Err(_) => {
                self.client = HttpClient::new(&self.url, Some(&self.key))?;
                anyhow::bail!("no answer within {within:?}")
            }
        }
    }
}

impl From<Raw> for Answer {
    fn from(raw: Raw) -> Self {
        Self {
            status: raw.status.as_u16(),
            replayed: raw.replayed(),
            retry_after: raw.retry_after(),
            body: raw.body,
        }
    }
}
