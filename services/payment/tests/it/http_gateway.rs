//! The provider's answers are checked like the input of a stranger.

use std::time::Duration;

use axum::{Router, body::Bytes, http::StatusCode};
use contracts::{OrderId, RefundKey};
use payment::{
    gateway::{
        Charge, ChargeOutcome, GatewayError, NewCharge, NewRefund, PaymentGateway, RefundOutcome,
    },
    http_gateway::HttpGateway,
};
use serde_json::{Value, json};

/// Longer than any answer takes that comes.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A provider that gives one answer to everything.
async fn answering(status: u16, body: impl Into<Bytes>) -> HttpGateway {
    let body = body.into();
    let status = StatusCode::from_u16(status).unwrap();
    let router = Router::new().fallback(move || {
        let body = body.clone();
        async move { (status, body) }
    });
    serving(router).await
}

async fn serving(router: Router) -> HttpGateway {
    serving_within(TIMEOUT, router).await
}

async fn serving_within(timeout: Duration, router: Router) -> HttpGateway {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    HttpGateway::new(&url, timeout, 4).unwrap()
}

fn captured(key: &str) -> Value {
    json!({
        "key": key, "status": "succeeded", "order_id": "01890a5d-ac96-774b-bcce-b302099a8057",
        "captured": {"amount_minor": 1000, "currency": "KRW"},
        "executed_at": "2026-01-01T00:00:00Z", "something": "new",
    })
}

fn with(mut body: Value, field: &str, value: Value) -> Value {
    body[field] = value;
    body
}

fn new_charge() -> NewCharge {
    NewCharge {
        key: "k".into(),
        reference: "p-1".parse().unwrap(),
        order_id: OrderId::generate(),
        amount: serde_json::from_value(json!({"amount_minor": 1000, "currency": "KRW"})).unwrap(),
        method: "card".parse().unwrap(),
    }
}

async fn charge(gateway: &HttpGateway) -> Result<Charge, GatewayError> {
    gateway.charge(&new_charge()).await
}

async fn refund(gateway: &HttpGateway) -> Result<RefundOutcome, GatewayError> {
    let amount = new_charge().amount;
    gateway
        .refund(&NewRefund {
            key: "r".parse().unwrap(),
            charge_key: "k".into(),
            amount,
        })
        .await
}

#[tokio::test]
async fn a_capture_is_read_and_what_is_new_in_it_is_ignored() {
    let gateway = answering(200, captured("k").to_string()).await;
    let charge = charge(&gateway).await.unwrap();
    assert!(
        matches!(charge.outcome, ChargeOutcome::Captured { amount, .. } if amount.amount_minor == 1000)
    );
    assert_eq!(gateway.find_charge("k").await.unwrap(), Some(charge));
}

#[tokio::test]
async fn an_answer_that_breaks_the_contract_is_not_believed() {
    let money = |amount: Value| json!({"amount_minor": amount, "currency": "KRW"});
    let bodies = [
        String::new(),
        "null".into(),
        "{".into(),
        "[]".into(),
        captured("another-key").to_string(),
        with(captured("k"), "captured", Value::Null).to_string(),
        with(captured("k"), "captured", money(json!(-1))).to_string(),
        with(captured("k"), "captured", money(json!(1.5))).to_string(),
        with(captured("k"), "captured", money(json!("1000"))).to_string(),
        with(
            captured("k"),
            "captured",
            json!({"amount_minor": 1, "currency": "won"}),
        )
        .to_string(),
        with(captured("k"), "executed_at", Value::Null).to_string(),
        with(captured("k"), "order_id", json!("x")).to_string(),
        with(captured("k"), "status", json!("maybe")).to_string(),
        "\"".repeat(40_000),
    ];
    for body in bodies {
        let gateway = answering(200, body.clone()).await;
        let answer = charge(&gateway).await;
        assert!(
            matches!(answer, Err(GatewayError::InvalidAnswer(_))),
            "{body}: {answer:?}"
        );
    }
    let endless = answering(200, "x".repeat(70_000)).await;
    assert!(charge(&endless).await.is_err());
}

#[tokio::test]
async fn only_the_providers_own_word_means_that_a_key_was_never_seen() {
    let key: RefundKey = "r".parse().unwrap();
    let never = answering(404, r#"{"code":"not-found"}"#).await;
    assert_eq!(never.find_charge("k").await.unwrap(), None);
    assert_eq!(never.find_refund(&key).await.unwrap(), None);
    // A proxy in between, or the wrong address.
    let proxy = answering(404, "<html>not found</html>").await;
    assert!(matches!(
        proxy.find_charge("k").await,
        Err(GatewayError::Refused { .. })
    ));
    assert!(matches!(
        proxy.find_refund(&key).await,
        Err(GatewayError::Refused { .. })
    ));
    assert!(matches!(
        never.cancel_charge("k").await,
        Err(GatewayError::Refused { .. })
    ));
}

#[tokio::test]
async fn failures_are_sorted_into_those_that_pass_and_those_that_people_must_look_at() {
    let cases = [
        (500, "", "unavailable"),
        (503, "{}", "unavailable"),
        (429, "", "unavailable"),
        (409, r#"{"code":"in-flight"}"#, "in-flight"),
        (422, r#"{"code":"key-reused"}"#, "refused"),
        (400, "", "refused"),
        (302, "", "refused"),
    ];
    for (status, body, label) in cases {
        let gateway = answering(status, body).await;
        let error = charge(&gateway).await.unwrap_err();
        assert_eq!(error.label(), label, "{status}");
        assert_eq!(error.is_transient(), label != "refused");
    }
}

#[tokio::test]
async fn a_provider_that_is_silent_or_away_is_not_waited_for() {
    let never = Router::new().fallback(std::future::pending::<()>);
    let silent = serving_within(Duration::from_millis(200), never).await;
    assert!(matches!(charge(&silent).await, Err(GatewayError::TimedOut)));
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", gone.local_addr().unwrap());
    drop(gone);
    let away = HttpGateway::new(&url, TIMEOUT, 4).unwrap();
    assert!(matches!(
        charge(&away).await,
        Err(GatewayError::Unreachable(_))
    ));
}

#[tokio::test]
async fn what_the_provider_can_never_refund_is_an_outcome() {
    for code in ["unknown-charge", "not-captured", "exceeds-captured"] {
        let gateway = answering(422, json!({ "code": code }).to_string()).await;
        let outcome = refund(&gateway).await.unwrap();
        assert_eq!(
            outcome,
            RefundOutcome::Refused {
                reason_code: code.into()
            }
        );
    }
    let odd = answering(422, r#"{"code":"key-reused"}"#).await;
    assert!(refund(&odd).await.is_err());
}

#[test]
fn only_plain_http_addresses_are_taken() {
    for url in [
        "",
        "127.0.0.1:80",
        "https://x",
        "ftp://x",
        "http://",
        "http://x/?a=b",
        "/v1",
    ] {
        assert!(HttpGateway::new(url, TIMEOUT, 4).is_err(), "{url}");
    }
    assert!(HttpGateway::new("http://gateway-sim:8090", TIMEOUT, 4).is_ok());
}

#[tokio::test]
async fn the_journal_is_read_page_by_page_and_a_line_that_is_not_valid_is_left_out() {
    let canceled = json!({"key": "order-b", "status": "canceled"});
    let body = json!({
        "totals": {"captures": 1},
        "data": [
            with(with(captured("order-a"), "reference", json!("p-1")), "method", json!("card")),
            with(captured("order-aa"), "captured", json!(null)),
            canceled,
            {"key": "a b&c"},
        ],
        "has_more": true,
    });
    let router = Router::new().route(
        "/v1/journal",
        axum::routing::get(move |uri: http::Uri| async move {
            let asked = uri.query() == Some("limit=4&after=a%20b%26c");
            let status = if asked {
                StatusCode::OK
            } else {
                StatusCode::IM_A_TEAPOT
            };
            (status, body.to_string())
        }),
    );
    let page = serving(router).await.journal("a b&c", 4).await.unwrap();
    assert_eq!(page.next.as_deref(), Some("a b&c"));
    let [first, second] = &page.entries[..] else {
        panic!("{page:?}");
    };
    assert_eq!(first.charge.key, "order-a");
    assert!(matches!(
        first.charge.outcome,
        ChargeOutcome::Captured { .. }
    ));
    assert_eq!(first.reference, Some("p-1".parse().unwrap()));
    assert_eq!(first.method, Some("card".parse().unwrap()));
    assert_eq!(second.charge.outcome, ChargeOutcome::Canceled);
    assert_eq!((&second.reference, &second.method), (&None, &None));

    let endless = json!({"data": [], "has_more": true}).to_string();
    let refused = answering(200, endless).await.journal("", 4).await;
    assert!(
        matches!(refused, Err(GatewayError::InvalidAnswer(_))),
        "{refused:?}"
    );
}
