//! The edge without any server behind it: whatever is wrong with a request is said as a problem,
//! and nothing that is sent makes a 5xx. What is right is refused as unavailable here.

use std::sync::Arc;

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Method, Request, Response, StatusCode, header},
};
use platform::{Ops, Shutdown};
use serde_json::Value;
use tower::ServiceExt;

use super::{App, api, problem::PROBLEM_JSON, router};
use crate::service::app_without_servers;

const SHOP: &str = "Bearer development-shop-key";
const OPERATOR: &str = "Bearer development-operator-key";
const JSON: &str = "application/json";
const ORDER: &str =
    r#"{"customer_id":"c-1","lines":[{"sku":"A","quantity":1}],"payment_method":"card"}"#;
const SKU: &str = r#"{"on_hand":1,"unit_price":{"amount_minor":1,"currency":"KRW"}}"#;

fn edge() -> Router {
    let app: App = app_without_servers(&Shutdown::new());
    router(Arc::new(app), &Ops::new())
}

fn request(method: Method, path: &str, key: &str, body: impl Into<Body>) -> Request<Body> {
    Request::builder()
        .method(method)
        .uri(path)
        .header(header::AUTHORIZATION, key)
        .header(header::CONTENT_TYPE, JSON)
        .header("idempotency-key", "k")
        .body(body.into())
        .unwrap()
}

async fn answer(edge: &Router, request: Request<Body>) -> (Response<()>, Value) {
    let (parts, body) = edge.clone().oneshot(request).await.unwrap().into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    (
        Response::from_parts(parts, ()),
        serde_json::from_slice(&body).unwrap_or(Value::Null),
    )
}

async fn code(edge: &Router, request: Request<Body>) -> (u16, String) {
    let (response, body) = answer(edge, request).await;
    assert_eq!(
        response.headers()[header::CONTENT_TYPE],
        PROBLEM_JSON,
        "{body}"
    );
    assert_eq!(body["status"], response.status().as_u16());
    assert_eq!(body["trace_id"].as_str().map(str::len), Some(32), "{body}");
    (
        response.status().as_u16(),
        body["code"].as_str().unwrap_or_default().to_owned(),
    )
}

type Case = (Request<Body>, u16, &'static str);

const ID: &str = "/v1/orders/01a228d5-f57a-76d9-a51a-9270c61ce354";

fn post(path: &str, key: &str, body: &str) -> Request<Body> {
    request(Method::POST, path, key, body.to_owned())
}

fn put(path: &str, key: &str, body: &str) -> Request<Body> {
    request(Method::PUT, path, key, body.to_owned())
}

fn get(path: &str) -> Request<Body> {
    request(Method::GET, path, SHOP, "")
}

fn bad_orders() -> Vec<Case> {
    let huge = " ".repeat(20_000);
    let deep = "[".repeat(10_000);
    let cancel = format!("{ID}/cancel");
    vec![
        (post("/v1/orders", "", ORDER), 401, "unauthorized"),
        (
            post("/v1/orders", "Bearer nobody", ORDER),
            401,
            "unauthorized",
        ),
        (post("/v1/orders", OPERATOR, ORDER), 403, "forbidden"),
        (post("/v1/orders", SHOP, ""), 400, "malformed"),
        (post("/v1/orders", SHOP, "{"), 400, "malformed"),
        (post("/v1/orders", SHOP, &deep), 400, "malformed"),
        (post("/v1/orders", SHOP, "null"), 422, "invalid"),
        (post("/v1/orders", SHOP, "{}"), 422, "invalid"),
        (post("/v1/orders", SHOP, &huge), 413, "too-large"),
        (post(&cancel, SHOP, ""), 400, "malformed"),
        (post(&cancel, SHOP, "{}"), 422, "invalid"),
        (
            post("/v1/orders/7/cancel", SHOP, r#"{"reason":"x"}"#),
            404,
            "not-found",
        ),
    ]
}

fn bad_skus() -> Vec<Case> {
    let huge = " ".repeat(2_000);
    let adjust = r#"{"delta":1,"reason":"x"}"#;
    let nothing = r#"{"delta":0,"reason":"x"}"#;
    vec![
        (put("/v1/skus/A", SHOP, SKU), 403, "forbidden"),
        (put("/v1/skus/a", OPERATOR, SKU), 422, "invalid"),
        (put("/v1/skus/A", OPERATOR, "{}"), 422, "invalid"),
        (put("/v1/skus/A", OPERATOR, &huge), 413, "too-large"),
        (
            post("/v1/skus/A/adjustments", SHOP, adjust),
            403,
            "forbidden",
        ),
        (
            post("/v1/skus/A/adjustments", OPERATOR, nothing),
            422,
            "invalid",
        ),
        (
            post("/v1/skus/a/adjustments", OPERATOR, adjust),
            422,
            "unknown-sku",
        ),
        (get("/v1/skus/a"), 404, "not-found"),
        (
            request(Method::PATCH, "/v1/skus/A", OPERATOR, ""),
            405,
            "method-not-allowed",
        ),
    ]
}

fn bad_reads() -> Vec<Case> {
    vec![
        (get("/v1/orders/7"), 404, "not-found"),
        (get("/v1/orders/%ff"), 404, "not-found"),
        (get(&format!("{ID}?wait=31")), 422, "invalid"),
        (get(&format!("{ID}?wait=-1")), 422, "invalid"),
        (get(&format!("{ID}?wait=1&wait=2")), 422, "invalid"),
        (get(&format!("{ID}?color=red")), 422, "invalid"),
        (get("/v1/orders?limit=101"), 422, "invalid"),
        (get("/v1/orders?status=LOST"), 422, "invalid"),
        (get("/v1/orders?customer_id=%00"), 422, "invalid"),
        (get("/v1/orders?starting_after=7"), 422, "invalid"),
        (get("/v2"), 404, "not-found"),
        (
            request(Method::DELETE, "/v1/orders", SHOP, ""),
            405,
            "method-not-allowed",
        ),
    ]
}

#[tokio::test]
async fn every_bad_request_is_a_problem_of_its_own() {
    let edge = edge();
    for (request, status, slug) in bad_orders()
        .into_iter()
        .chain(bad_skus())
        .chain(bad_reads())
    {
        let what = format!("{} {}", request.method(), request.uri());
        assert_eq!(
            code(&edge, request).await,
            (status, slug.to_owned()),
            "{what}"
        );
    }
}

#[tokio::test]
async fn a_connection_whose_body_is_not_read_is_said_to_end() {
    let huge = " ".repeat(20_000);
    let too_large = request(Method::POST, "/v1/orders", SHOP, huge);
    let answer = edge().oneshot(too_large).await.unwrap();
    assert_eq!(answer.status(), 413);
    assert_eq!(answer.headers()[header::CONNECTION], "close");
    let malformed = request(Method::POST, "/v1/orders", SHOP, "{");
    let answer = edge().oneshot(malformed).await.unwrap();
    assert!(!answer.headers().contains_key(header::CONNECTION));
}

#[tokio::test]
async fn headers_are_required_as_the_contract_says() {
    let edge = edge();
    for value in ["text/plain", "application/x-www-form-urlencoded", ""] {
        let mut wrong = request(Method::POST, "/v1/orders", SHOP, ORDER);
        wrong
            .headers_mut()
            .insert(header::CONTENT_TYPE, value.parse().unwrap());
        assert_eq!(
            code(&edge, wrong).await,
            (415, "unsupported-media-type".to_owned())
        );
    }
    for value in ["", "\"", "\"a\"b"] {
        let mut wrong = request(Method::POST, "/v1/orders", SHOP, ORDER);
        wrong
            .headers_mut()
            .insert("idempotency-key", value.parse().unwrap());
        assert_eq!(
            code(&edge, wrong).await,
            (400, "idempotency-key-required".to_owned())
        );
    }
    let mut none = request(Method::POST, "/v1/orders", SHOP, ORDER);
    none.headers_mut().remove("idempotency-key");
    assert_eq!(
        code(&edge, none).await,
        (400, "idempotency-key-required".to_owned())
    );
    let mut two = request(Method::POST, "/v1/orders", SHOP, ORDER);
    two.headers_mut()
        .append("idempotency-key", "other".parse().unwrap());
    assert_eq!(
        code(&edge, two).await,
        (400, "idempotency-key-required".to_owned())
    );
}

#[tokio::test]
async fn a_trace_is_carried_into_the_problem() {
    let edge = edge();
    let mut traced = request(Method::POST, "/v1/orders", SHOP, "{}");
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    traced
        .headers_mut()
        .insert("traceparent", traceparent.parse().unwrap());
    let (response, body) = answer(&edge, traced).await;
    assert_eq!(body["trace_id"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(response.headers()["traceparent"], traceparent);
}

#[tokio::test]
async fn without_postgresql_an_order_is_unavailable_and_never_sold_out() {
    let (response, body) = answer(&edge(), request(Method::POST, "/v1/orders", SHOP, ORDER)).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(body["code"], "unavailable");
    assert_eq!(body["retryable"], true);
    assert!(response.headers().contains_key(header::RETRY_AFTER));
}

#[test]
fn the_document_has_every_route_and_its_bodies_are_those_that_are_read() {
    let (_, document) = api().split_for_parts();
    let document = serde_json::to_value(&document).unwrap();
    let paths: Vec<&String> = document["paths"].as_object().unwrap().keys().collect();
    assert_eq!(
        paths,
        [
            "/v1/orders",
            "/v1/orders/{id}",
            "/v1/orders/{id}/cancel",
            "/v1/orders/{id}/timeline",
            "/v1/skus/{sku}",
            "/v1/skus/{sku}/adjustments",
        ]
    );
    let fields = |schema: &str| -> Vec<String> {
        let schema = &document["components"]["schemas"][schema];
        assert_eq!(schema["additionalProperties"], false, "{schema}");
        schema["properties"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect()
    };
    assert_eq!(
        fields("PlaceOrder"),
        ["customer_id", "lines", "payment_method"]
    );
    assert_eq!(fields("PlaceOrderLine"), ["quantity", "sku"]);
    assert_eq!(fields("CancelOrder"), ["reason"]);
    assert_eq!(fields("AdjustStock"), ["delta", "reason"]);
    assert_eq!(
        fields("PutSku"),
        [
            "closes_at",
            "on_hand",
            "opens_at",
            "per_customer_limit",
            "reservation_ttl_seconds",
            "unit_price",
            "waiting_room",
        ]
    );
}
