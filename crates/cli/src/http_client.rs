//! A small HTTP client for our own commands: one keep-alive connection, made again when it breaks.
//! Nothing is retried here: whoever sends decides.

use std::time::Duration;

use anyhow::{Context, anyhow};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::exit::Unreachable;

/// How long one answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(35);

/// One connection to one server.
pub struct HttpClient {
    authority: String,
    key: Option<String>,
    sender: Option<SendRequest<Full<Bytes>>>,
}

/// An answer, read whole.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

impl Answer {
    /// The body as JSON, `Null` when it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// Whether the answer is a replay of an earlier one.
    #[must_use]
    pub fn replayed(&self) -> bool {
        self.headers
            .get("idempotency-replayed")
            .is_some_and(|value| value == "true")
    }

    /// What the server asks to wait before the next try.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let seconds = self
            .headers
            .get(header::RETRY_AFTER)?
            .to_str()
            .ok()?
            .parse()
            .ok()?;
        Some(Duration::from_secs(seconds))
    }
}

impl HttpClient {
    /// A client of the server at `url` (`http://host:port`); connects with the first request.
    ///
    /// # Errors
    /// The URL has no host, or is not plain HTTP.
    pub fn new(url: &str, key: Option<&str>) -> anyhow::Result<Self> {
        let uri: Uri = url.parse().with_context(|| format!("{url} is not a URL"))?;
        anyhow::ensure!(
            uri.scheme_str() == Some("http"),
            "{url} must begin with http://"
        );
        let host = uri.host().with_context(|| format!("{url} has no host"))?;
        let authority = format!("{host}:{}", uri.port_u16().unwrap_or(80));
        Ok(Self {
            authority,
            key: key.map(str::to_owned),
            sender: None,
        })
    }

    /// Sends one request and reads its answer.
    ///
    /// # Errors
    /// The server can't be reached, or the connection broke: whether the request was handled is
    /// then unknown.
    pub async fn send(
        &mut self,
        method: Method,
        path: &str,
        idempotency_key: Option<&str>,
        body: Option<Bytes>,
    ) -> anyhow::Result<Answer> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, &self.authority)
            .header(header::ACCEPT, "application/json");
        if let Some(key) = &self.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        if let Some(key) = idempotency_key {
            request = request.header("idempotency-key", key);
        }
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(body.unwrap_or_default()))?;
        match tokio::time::timeout(ANSWER_WITHIN, self.exchange(request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                self.sender = None;
                Err(error)
            }
            Err(_) => {
                self.sender = None;
                Err(anyhow!(
                    "no answer from {} within {ANSWER_WITHIN:?}",
                    self.authority
                ))
            }
        }
    }

    async fn exchange(&mut self, request: Request<Full<Bytes>>) -> anyhow::Result<Answer> {
        let ready = match &mut self.sender {
            Some(sender) => sender.ready().await.is_ok(),
            None => false,
        };
        if !ready {
            self.sender = Some(self.connect().await?);
        }
        let sender = self.sender.as_mut().context("just connected")?;
        let response = sender.send_request(request).await?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Answer {
            status: parts.status,
            headers: parts.headers,
            body,
        })
    }

    async fn connect(&self) -> anyhow::Result<SendRequest<Full<Bytes>>> {
        let stream = TcpStream::connect(&self.authority).await.map_err(|error| {
            let unreachable = Unreachable {
                server: self.authority.clone(),
                said: error.to_string(),
            };
            anyhow::Error::from(error).context(unreachable)
        })?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended");
            }
        });
        Ok(sender)
    }
}
