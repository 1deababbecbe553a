//! The public API, as a shop and as an operator.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use cli::http_client::{Answer, HttpClient};
use http::Method;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::{wait::ask_within, wait_for};

/// One caller of one order service; connections are reused, one request each at a time.
#[derive(Clone)]
pub struct Api {
    url: String,
    key: String,
    idle: Arc<Mutex<Vec<HttpClient>>>,
}

impl Api {
    /// A caller with this key.
    #[must_use]
    pub fn new(url: &str, key: &str) -> Self {
        Self {
            url: url.to_owned(),
            key: key.to_owned(),
            idle: Arc::default(),
        }
    }

    /// One request; errors are the connection's.
    ///
    /// # Errors
    /// No answer.
    pub async fn try_send(
        &self,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: Option<Bytes>,
    ) -> anyhow::Result<Answer> {
        let idle = self.idle.lock().await.pop();
        let mut client = match idle {
            Some(client) => client,
            None => HttpClient::new(&self.url, Some(&self.key))?,
        };
        let answer = client.send(method, path, key, body).await?;
        self.idle.lock().await.push(client);
        Ok(answer)
    }

    /// One request that must be answered.
    ///
    /// # Panics
    /// No answer.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: Option<&Value>,
    ) -> Answer {
        let bytes = body.map(|body| Bytes::from(body.to_string()));
        match self.try_send(method, path, key, bytes).await {
            Ok(answer) => answer,
            Err(error) => panic!("{path}: {error:#}"),
        }
    }

    /// `POST /v1/orders`, with the same key again while the answer is 503: a busy machine.
    pub async fn place_until_decided(&self, key: &str, body: &Value) -> Answer {
        crate::wait_for(key, || async {
            let answer = self.place(key, body).await;
            (answer.status != 503).then_some(answer)
        })
        .await
    }

    /// The same request, again while the answer is 503, which took nothing or says itself that the
    /// same request may be sent again: for tests that are about what is decided, on machines that
    /// have too much to do.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: Option<&Value>,
    ) -> Answer {
        wait_for(&format!("{path} to be possible"), || async {
            let answer = self.send(method.clone(), path, key, body).await;
            (answer.status != 503).then_some(answer)
        })
        .await
    }

    /// `POST /v1/orders` with the same key until it is decided: not without an answer, neither 503
    /// nor in flight.
    pub async fn decide(&self, key: &str, body: &Value) -> Answer {
        wait_for("a definite answer", || async {
            let bytes = Some(Bytes::from(body.to_string()));
            let sent = self.try_send(Method::POST, "/v1/orders", Some(key), bytes);
            sent.await.ok().filter(is_decided)
        })
        .await
    }

    /// The same for no longer than this: where an answer that stays 503 is a verdict, too.
    pub async fn decide_within(&self, bound: Duration, key: &str, body: &Value) -> Answer {
        let asked = ask_within(bound, || async {
            let answer = self.place(key, body).await;
            if is_decided(&answer) {
                Ok(answer)
            } else {
                Err(answer)
            }
        });
        match asked.await {
            Ok(answer) | Err(answer) => answer,
        }
    }

    /// `POST /v1/orders`.
    pub async fn place(&self, key: &str, body: &Value) -> Answer {
        self.send(Method::POST, "/v1/orders", Some(key), Some(body))
            .await
    }

    /// `GET`, as JSON.
    ///
    /// # Panics
    /// The answer is not 200.
    pub async fn get(&self, path: &str) -> Value {
        let answer = self.ask(Method::GET, path, None, None).await;
        assert_eq!(
            answer.status,
            200,
            "{path}: {}",
            String::from_utf8_lossy(&answer.body)
        );
        answer.json()
    }

    /// Puts a SKU with stock; more fields of the body override the defaults.
    ///
    /// # Panics
    /// It is refused.
    pub async fn put_sku(&self, sku: &str, on_hand: i64, more: &Value) {
        let mut body = json!({
            "on_hand": on_hand,
            "unit_price": { "amount_minor": 12_900, "currency": "KRW" },
            "per_customer_limit": null,
            "opens_at": null,
            "closes_at": null,
            "reservation_ttl_seconds": 600,
            "waiting_room": "off",
        });
        if let Some(more) = more.as_object() {
            for (name, value) in more {
                body[name] = value.clone();
            }
        }
        let path = format!("/v1/skus/{sku}");
        let answer = self.ask(Method::PUT, &path, None, Some(&body)).await;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(
            matches!(answer.status.as_u16(), 200 | 201),
            "{path}: {} {text}",
            answer.status
        );
    }
}

fn is_decided(answer: &Answer) -> bool {
    let in_flight = answer.status == 409 && answer.json()["code"] == "request-in-flight";
    answer.status != 503 && !in_flight
}

/// The body of an order: (SKU, quantity) lines for a customer.
#[must_use]
pub fn order(customer: &str, lines: &[(&str, i64)]) -> Value {
    let lines: Vec<Value> = lines
        .iter()
        .map(|(sku, quantity)| json!({ "sku": sku, "quantity": quantity }))
        .collect();
    json!({ "customer_id": customer, "lines": lines, "payment_method": "card" })
}

/// The order id of a 201.
///
/// # Panics
/// The answer is not a 201 with an order.
pub fn accepted(answer: &Answer) -> String {
    let text = String::from_utf8_lossy(&answer.body);
    assert_eq!(answer.status, 201, "{text}");
    match answer.json()["order_id"].as_str() {
        Some(id) => id.to_owned(),
        None => panic!("no order_id in {text}"),
    }
}
