//! The provider over real HTTP, in this process, on a port of its own.
#![expect(
    clippy::unwrap_used,
    reason = "a test that can't go on should say where"
)]

use std::{sync::Arc, time::Duration};

use axum::{Router, http::HeaderMap, routing::post};
use bytes::Bytes;
use clap::Parser;
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use platform::Shutdown;
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinHandle};

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    config: gateway_sim::Config,
}

struct Gateway {
    client: Client<HttpConnector, Full<Bytes>>,
    url: String,
    shutdown: Shutdown,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.shutdown.begin();
    }
}

impl Gateway {
    fn start(flags: &[&str]) -> Arc<Self> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let quick: &[&str] = if flags.contains(&"--gateway-latency-ms") {
            &[]
        } else {
            &["--gateway-latency-ms", "0"]
        };
        let flags = ["gateway"].iter().chain(quick).chain(flags);
        let mut config = Flags::try_parse_from(flags).unwrap().config;
        config.gateway_listener = Some(listener);
        let shutdown = Shutdown::new();
        tokio::spawn(gateway_sim::run(config, shutdown.clone()));
        let client = Client::builder(TokioExecutor::new()).build_http();
        Arc::new(Self {
            client,
            url,
            shutdown,
        })
    }

    async fn call(&self, method: &str, path: &str, key: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let request = http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header("content-type", "application/json")
            .header("idempotency-key", key)
            .body(Full::new(Bytes::from(body)))
            .unwrap();
        let response = self.client.request(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    async fn charge(&self, key: &str, body: &Value) -> (u16, Value) {
        self.call("POST", "/v1/charges", key, body).await
    }

    async fn refund(&self, key: &str, charge: &str, amount: i64) -> (u16, Value) {
        let body =
            json!({"charge_key": charge, "amount": {"amount_minor": amount, "currency": "KRW"}});
        self.call("POST", "/v1/refunds", key, &body).await
    }

    async fn tune(&self, change: Value) {
        let (status, _) = self.call("PUT", "/v1/behaviour", "", &change).await;
        assert_eq!(status, 200);
    }

    /// Waits until the charge `k` has a status.
    async fn until_status(&self, status: &str) {
        let reached = async {
            while self.call("GET", "/v1/charges/k", "", &Value::Null).await.1["status"] != status {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let reached = tokio::time::timeout(Duration::from_secs(60), reached).await;
        assert!(reached.is_ok(), "the charge is never {status}");
    }

    async fn journal(&self) -> Value {
        self.call("GET", "/v1/journal", "", &Value::Null).await.1
    }
}

/// The charge `k` of 100 won, sent and not waited for.
fn charging(gateway: &Arc<Gateway>) -> JoinHandle<(u16, Value)> {
    let gateway = Arc::clone(gateway);
    tokio::spawn(async move { gateway.charge("k", &order(100, "card")).await })
}

fn order(amount: i64, method: &str) -> Value {
    json!({
        "order_id": "01890a5d-ac96-774b-bcce-b302099a8057",
        "reference": "p-1",
        "amount": {"amount_minor": amount, "currency": "KRW"},
        "method": method,
    })
}

#[tokio::test]
async fn one_key_captures_once_however_often_it_is_sent_at_once() {
    let gateway = Gateway::start(&["--gateway-jitter-ms", "20"]);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let gateway = Arc::clone(&gateway);
        calls.spawn(async move { gateway.charge("k", &order(100, "card")).await });
    }
    for (status, body) in calls.join_all().await {
        assert!(
            status == 200 && body["status"] == "succeeded" || status == 409,
            "{status} {body}"
        );
    }
    let (status, body) = gateway.charge("k", &order(100, "card")).await;
    assert_eq!(
        (status, &body["captured"]["amount_minor"]),
        (200, &json!(100))
    );
    let journal = gateway.journal().await;
    assert_eq!(journal["totals"]["captures"], 1);
    assert_eq!(journal["data"][0]["captures"], 1);
    assert_eq!(journal["data"][0]["requests"], 51);
}

#[tokio::test]
async fn a_key_with_another_body_is_refused() {
    let gateway = Gateway::start(&[]);
    gateway.charge("k", &order(100, "card")).await;
    let (status, body) = gateway.charge("k", &order(101, "card")).await;
    assert_eq!((status, &body["code"]), (422, &json!("key-reused")));
}

#[tokio::test]
async fn a_key_that_was_canceled_before_it_was_seen_never_captures() {
    let gateway = Gateway::start(&[]);
    assert_eq!(
        gateway
            .call("GET", "/v1/charges/k", "", &Value::Null)
            .await
            .0,
        404
    );
    let (_, canceled) = gateway
        .call("POST", "/v1/charges/k/cancel", "", &Value::Null)
        .await;
    assert_eq!(canceled["status"], "canceled");
    let (status, late) = gateway.charge("k", &order(100, "card")).await;
    assert_eq!((status, &late["status"]), (200, &json!("canceled")));
    assert_eq!(gateway.journal().await["totals"]["captures"], 0);
}

#[tokio::test]
async fn a_captured_charge_cannot_be_canceled() {
    let gateway = Gateway::start(&[]);
    gateway.charge("k", &order(100, "card")).await;
    let (_, body) = gateway
        .call("POST", "/v1/charges/k/cancel", "", &Value::Null)
        .await;
    assert_eq!(body["status"], "succeeded");
}

#[tokio::test]
async fn a_charge_that_is_canceled_while_it_is_executed_takes_nothing() {
    let gateway = Gateway::start(&["--gateway-latency-ms", "3000"]);
    let charging = charging(&gateway);
    gateway.until_status("pending").await;
    gateway
        .call("POST", "/v1/charges/k/cancel", "", &Value::Null)
        .await;
    assert_eq!(charging.await.unwrap().1["status"], "canceled");
    assert_eq!(gateway.journal().await["totals"]["captures"], 0);
}

#[tokio::test]
async fn a_caller_that_hangs_up_does_not_stop_the_execution() {
    let gateway = Gateway::start(&["--gateway-latency-ms", "3000"]);
    let charging = charging(&gateway);
    gateway.until_status("pending").await;
    charging.abort();
    assert!(charging.await.is_err_and(|error| error.is_cancelled()));
    gateway.until_status("succeeded").await;
}

#[tokio::test]
async fn a_withheld_answer_was_executed_and_the_same_key_tells_so() {
    let gateway = Gateway::start(&["--gateway-hang-rate", "1"]);
    let mut first = charging(&gateway);
    gateway.until_status("succeeded").await;
    let answered = tokio::time::timeout(Duration::from_millis(200), &mut first).await;
    assert!(answered.is_err());
    first.abort();
    let (_, again) = gateway.charge("k", &order(100, "card")).await;
    assert_eq!(again["status"], "succeeded");
    assert_eq!(gateway.journal().await["totals"]["captures"], 1);
}

#[tokio::test]
async fn refunds_never_exceed_what_was_captured() {
    let gateway = Gateway::start(&[]);
    gateway.charge("k", &order(100, "card")).await;
    assert_eq!(gateway.refund("r0", "nobody", 1).await.0, 404);
    assert_eq!(gateway.refund("r1", "k", 101).await.0, 422);
    assert_eq!(
        gateway.refund("r1", "k", 100).await.1["status"],
        "succeeded"
    );
    assert_eq!(
        gateway.refund("r1", "k", 100).await.1["status"],
        "succeeded"
    );
    assert_eq!(gateway.refund("r1", "k", 99).await.1["code"], "key-reused");
    assert_eq!(
        gateway.refund("r2", "k", 1).await.1["code"],
        "exceeds-captured"
    );
    let journal = gateway.journal().await;
    assert_eq!(journal["totals"]["refunds"], 1);
    assert_eq!(journal["data"][0]["refunded_minor"], 100);
}

#[tokio::test]
async fn declines_follow_the_seed_and_the_rules() {
    let gateway = Gateway::start(&["--gateway-decline-rate", "0.3", "--gateway-seed", "7"]);
    let mut declined = 0;
    for n in 0..400 {
        let (_, body) = gateway.charge(&format!("k{n}"), &order(100, "card")).await;
        declined += u32::from(body["status"] == "declined");
    }
    assert!(
        (80..=160).contains(&declined),
        "{declined} of 400 at a rate of 0.3"
    );
    gateway
        .tune(json!({"decline_rate": 1.0, "rules": [
            {"method": "card-ok", "outcome": "approve"},
            {"method": "card-later", "outcome": "decline_not_final"},
            {"amount_minor": 13, "outcome": "wrong_amount"},
        ]}))
        .await;
    assert_eq!(
        gateway.charge("a", &order(1, "card-ok")).await.1["status"],
        "succeeded"
    );
    assert_eq!(
        gateway.charge("b", &order(1, "card-later")).await.1["final"],
        false
    );
    assert_eq!(
        gateway.charge("c", &order(1, "card")).await.1["final"],
        true
    );
    assert_eq!(
        gateway.charge("d", &order(13, "card")).await.1["captured"]["amount_minor"],
        14
    );
}

#[tokio::test]
async fn what_is_malformed_is_refused_and_changes_nothing() {
    let gateway = Gateway::start(&[]);
    assert_eq!(gateway.charge("", &order(1, "card")).await.0, 400);
    assert_eq!(gateway.charge("k", &order(-1, "card")).await.0, 422);
    assert_eq!(gateway.charge("k", &json!({"amount": 1})).await.0, 422);
    assert_eq!(gateway.charge("k", &Value::Null).await.0, 400);
    let (status, _) = gateway
        .call("PUT", "/v1/behaviour", "", &json!({"decline_rate": 1.5}))
        .await;
    assert_eq!(status, 422);
    assert_eq!(
        gateway
            .call("PUT", "/v1/behaviour", "", &json!({"x": 1}))
            .await
            .0,
        422
    );
    assert_eq!(gateway.journal().await["data"], json!([]));
}

#[tokio::test]
async fn a_provider_that_is_down_executes_nothing() {
    let gateway = Gateway::start(&["--gateway-down", "true"]);
    assert_eq!(gateway.charge("k", &order(1, "card")).await.0, 503);
    assert_eq!(
        gateway
            .call("POST", "/v1/charges/k/cancel", "", &Value::Null)
            .await
            .0,
        503
    );
    gateway.tune(json!({"down": false})).await;
    assert_eq!(
        gateway
            .call("GET", "/v1/charges/k", "", &Value::Null)
            .await
            .0,
        404
    );
}

#[tokio::test]
async fn a_full_book_refuses_new_keys_and_forgets_none() {
    let gateway = Gateway::start(&["--max-entries", "1"]);
    assert_eq!(gateway.charge("k1", &order(1, "card")).await.0, 200);
    assert_eq!(gateway.charge("k2", &order(1, "card")).await.0, 503);
    assert_eq!(gateway.charge("k1", &order(1, "card")).await.0, 200);
}

#[tokio::test]
async fn webhooks_are_signed_and_repeated_and_sent_again_until_they_are_taken() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let receiver = Router::new().route(
        "/hook",
        post(move |headers: HeaderMap, body: Bytes| {
            let refused = tell.is_closed() || tell.send((headers, body)).is_err();
            async move {
                if refused {
                    http::StatusCode::GONE
                } else {
                    http::StatusCode::OK
                }
            }
        }),
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hook = format!("http://{}/hook", listener.local_addr().unwrap());
    let gateway = Gateway::start(&[
        "--webhook-url",
        &hook,
        "--webhook-secret",
        "s3cret",
        "--gateway-webhook-duplicates",
        "2",
    ]);
    gateway.charge("k", &order(1, "card")).await;
    // Nobody accepted until now: the first attempts wait in the listener's queue.
    tokio::spawn(async move { axum::serve(listener, receiver).await });
    let mut ids = std::collections::BTreeSet::new();
    for _ in 0..3 {
        let (headers, body) = told.recv().await.unwrap();
        let signature = headers["holdfast-signature"].to_str().unwrap();
        let at = signature
            .strip_prefix("t=")
            .unwrap()
            .split(',')
            .next()
            .unwrap();
        let expected = gateway_sim::signature::sign("s3cret", at.parse().unwrap(), &body);
        assert_eq!(signature, expected);
        let notice: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(notice["type"], "charge.succeeded");
        assert_eq!(notice["data"]["key"], "k");
        ids.insert(notice["id"].to_string());
    }
    assert_eq!(ids.len(), 1, "the repeats of a webhook carry its id");
}
