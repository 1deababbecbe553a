use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::Full;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use payment::charge_payments::{Work, gateway_key};
use platform::{Shutdown, clock, config::Listen};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::world::World;

struct Hook {
    url: String,
    shutdown: Shutdown,
}

impl Drop for Hook {
    fn drop(&mut self) {
        self.shutdown.begin();
    }
}

fn sign(secret: &str, at: i64, body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(format!("{at}.").as_bytes());
    mac.update(body);
    format!("t={at},v1={}", hex::encode(mac.finalize().into_bytes()))
}

impl Hook {
    fn of(world: &World) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/webhooks/gateway", listener.local_addr().unwrap());
        let shutdown = Shutdown::new();
        let router = payment::http::router(world.recorder.clone(), "s3cret".into());
        tokio::spawn(platform::serve(
            Listen::Bound(listener),
            router,
            shutdown.clone(),
        ));
        Self { url, shutdown }
    }

    async fn post(&self, signature: Option<String>, body: Vec<u8>) -> u16 {
        let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
        let mut request = http::Request::post(&self.url);
        if let Some(signature) = signature {
            request = request.header("Holdfast-Signature", signature);
        }
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        client.request(request).await.unwrap().status().as_u16()
    }

    async fn signed(&self, body: &Value) -> u16 {
        let body = body.to_string().into_bytes();
        self.post(Some(sign("s3cret", clock::now().timestamp(), &body)), body)
            .await
    }
}

fn succeeded(key: &str, order: &str) -> Value {
    json!({"id": "evt_1", "type": "charge.succeeded", "created_at": clock::now(), "data": {
        "key": key, "status": "succeeded", "order_id": order, "executed_at": clock::now(),
        "amount": {"amount_minor": 1000, "currency": "KRW"},
        "captured": {"amount_minor": 1000, "currency": "KRW"}, "method": "card",
    }})
}

#[tokio::test]
async fn a_webhook_that_tells_what_is_known_holds_no_answer_up() {
    let world = World::new().await;
    let hook = Hook::of(&world);
    let known = world.order();
    let id = world.paid(known).await.parse().unwrap();
    let mut tx = world.store.begin().await.unwrap();
    store::payments::lock(&mut tx, std::slice::from_ref(&id))
        .await
        .unwrap();
    let body = succeeded(&gateway_key(known), &known.to_string());
    assert_eq!(hook.signed(&body).await, 202);
    // One after the other: all of that takes longer than a webhook is kept.
    for _ in 0..5 {
        let other = world.order();
        world.deliver(vec![Work::Reserved(other)]).await;
        world.wait_state(other, "COMPLETED").await;
        // It is still held.
        store::payments::lock(&mut tx, std::slice::from_ref(&id))
            .await
            .unwrap();
    }
    tx.rollback().await.unwrap();
    assert_eq!(world.events("PAYMENT_COMPLETED").len(), 6);
}

#[tokio::test]
async fn a_webhook_that_comes_five_times_completes_the_payment_once() {
    let world = World::new().await;
    let hook = Hook::of(&world);
    let order = world.order();
    world.deliver_and_die(vec![Work::Reserved(order)]).await;
    let body = succeeded(&gateway_key(order), &order.to_string());
    for _ in 0..5 {
        assert_eq!(hook.signed(&body).await, 202);
    }
    world.wait_state(order, "COMPLETED").await;
    assert_eq!(hook.signed(&body).await, 202);
    // The same way again, waited for: the ones before are through.
    let nobody = payment::record_results::News::ChargeUnknown {
        key: "x".into(),
        attempts: 0,
    };
    assert!(world.recorder.record(nobody).await);
    assert_eq!(world.events("PAYMENT_COMPLETED").len(), 1);
}

#[tokio::test]
async fn a_webhook_that_is_not_signed_by_the_gateway_changes_nothing() {
    let world = World::new().await;
    let hook = Hook::of(&world);
    let order = world.order();
    world.deliver_and_die(vec![Work::Reserved(order)]).await;
    let body = succeeded(&gateway_key(order), &order.to_string())
        .to_string()
        .into_bytes();
    let now = clock::now().timestamp();
    for signature in [
        None,
        Some("garbage".to_owned()),
        Some(sign("wrong", now, &body)),
        Some(sign("s3cret", now - 301, &body)),
        Some(sign("s3cret", now, b"another body")),
    ] {
        assert_eq!(hook.post(signature, body.clone()).await, 401);
    }
    let nobody = payment::record_results::News::ChargeUnknown {
        key: "x".into(),
        attempts: 0,
    };
    assert!(world.recorder.record(nobody).await);
    assert_eq!(world.state(order), "PENDING");
}

#[tokio::test]
async fn bad_and_foreign_webhooks_are_answered_and_harmless() {
    let world = World::new().await;
    let hook = Hook::of(&world);
    let order = world.order();
    assert_eq!(
        hook.signed(&succeeded("order-of-nobody", &order.to_string()))
            .await,
        202
    );
    assert_eq!(
        hook.signed(&json!({"type": "payout.paid", "data": {}}))
            .await,
        202
    );
    assert_eq!(
        hook.signed(&json!({"type": "charge.succeeded", "data": {"key": 1}}))
            .await,
        400
    );
    assert_eq!(hook.signed(&json!("x".repeat(70_000))).await, 413);
    assert_eq!(world.sql("select count(*) from payments"), "0");
    assert_eq!(world.sql("select count(*) from outbox"), "0");
}
