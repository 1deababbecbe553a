//! Whatever is sent, the answer is a 4xx problem that names the field, and nothing changes.

use bytes::Bytes;
use http::Method;
use serde_json::json;
use tests::{World, api};

/// (what, body, status, code, field)
type Case = (
    &'static str,
    Vec<u8>,
    u16,
    &'static str,
    Option<&'static str>,
);

fn line(quantity: &str) -> Vec<u8> {
    format!(
        r#"{{"customer_id":"c","payment_method":"card","lines":[{{"sku":"BAD","quantity":{quantity}}}]}}"#
    )
    .into_bytes()
}

fn with(field: &str, value: &str) -> Vec<u8> {
    let mut body = json!({ "customer_id": "c", "payment_method": "card",
                           "lines": [{ "sku": "BAD", "quantity": 1 }] });
    body[field] = json!("PLACEHOLDER");
    body.to_string()
        .replace("\"PLACEHOLDER\"", value)
        .into_bytes()
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn cases() -> Vec<Case> {
    let quantities = [
        "0",
        "-1",
        "-5",
        "1001",
        "2147483648",
        "9223372036854775807",
        "9223372036854775808",
        "1e400",
        "1.5",
        "1.0",
        "1e3",
        "\"2\"",
        "null",
        "true",
        "[1]",
        "{}",
    ];
    let mut cases: Vec<Case> = quantities
        .into_iter()
        .map(|quantity| {
            (
                "a quantity",
                line(quantity),
                422,
                "invalid",
                Some("quantity"),
            )
        })
        .collect();
    let many: Vec<_> = (0..10_000)
        .map(|_| json!({ "sku": "BAD", "quantity": 1 }))
        .collect();
    let some: Vec<_> = (0..21)
        .map(|n| json!({ "sku": format!("S-{n}"), "quantity": 1 }))
        .collect();
    let deep = format!("{}1{}", "[".repeat(2_000), "]".repeat(2_000));
    cases.extend([
        ("NaN", line("NaN"), 400, "malformed", None),
        ("an empty body", Vec::new(), 400, "malformed", None),
        (
            "cut off",
            b"{\"customer_id\":".to_vec(),
            400,
            "malformed",
            None,
        ),
        (
            "invalid UTF-8",
            b"{\"customer_id\":\"\xff\xfe\"}".to_vec(),
            400,
            "malformed",
            None,
        ),
        ("an array", b"[]".to_vec(), 422, "invalid", None),
        ("deep nesting", with("lines", &deep), 400, "malformed", None),
        (
            "10,000 lines",
            with("lines", &json!(many).to_string()),
            413,
            "too-large",
            None,
        ),
        (
            "21 lines",
            with("lines", &json!(some).to_string()),
            422,
            "invalid",
            Some("lines"),
        ),
        (
            "no lines",
            with("lines", "[]"),
            422,
            "invalid",
            Some("lines"),
        ),
        (
            "lines null",
            with("lines", "null"),
            422,
            "invalid",
            Some("lines"),
        ),
        (
            "an unknown field",
            with("total", "1"),
            422,
            "invalid",
            Some("total"),
        ),
        (
            "a price from outside",
            with("unit_price", "1"),
            422,
            "invalid",
            Some("unit_price"),
        ),
        (
            "customer null",
            with("customer_id", "null"),
            422,
            "invalid",
            Some("customer_id"),
        ),
        (
            "customer empty",
            with("customer_id", "\"\""),
            422,
            "invalid",
            Some("customer_id"),
        ),
        (
            "control characters",
            with("customer_id", "\"a\\u0000b\""),
            422,
            "invalid",
            Some("customer_id"),
        ),
        (
            "a method of spaces",
            with("payment_method", "\" \""),
            422,
            "invalid",
            Some("payment_method"),
        ),
        (
            "a bad sku",
            with("lines", r#"[{"sku":"bad sku","quantity":1}]"#),
            422,
            "invalid",
            Some("sku"),
        ),
        (
            "a sum over the bound",
            with(
                "lines",
                r#"[{"sku":"BAD","quantity":600},{"sku":"BAD","quantity":600}]"#,
            ),
            422,
            "invalid",
            Some("lines"),
        ),
        (
            "a mixed pair",
            with(
                "lines",
                r#"[{"sku":"BAD","quantity":3},{"sku":"BAD","quantity":-2}]"#,
            ),
            422,
            "invalid",
            Some("quantity"),
        ),
        (
            "a status from outside",
            with("status", "\"CONFIRMED\""),
            422,
            "invalid",
            Some("status"),
        ),
        (
            "an unknown sku",
            with("lines", r#"[{"sku":"NOWHERE","quantity":1}]"#),
            422,
            "unknown-sku",
            None,
        ),
        (
            "a missing field",
            br#"{"lines":[{"sku":"BAD","quantity":1}],"payment_method":"card"}"#.to_vec(),
            422,
            "invalid",
            Some("customer_id"),
        ),
    ]);
    cases
}

#[tokio::test(flavor = "multi_thread")]
async fn every_malformed_order_gets_a_problem_that_names_it_and_changes_nothing() {
    let world = World::start().await;
    world.operator().put_sku("BAD", 100, &json!({})).await;
    let shop = world.shop();
    let mut wrong = Vec::new();
    for (number, (what, body, status, code, field)) in cases().into_iter().enumerate() {
        let key = format!("bad-{number}");
        let shown = String::from_utf8_lossy(&body[..body.len().min(120)]).into_owned();
        let body = Some(Bytes::from(body));
        let answer = match shop
            .try_send(Method::POST, "/v1/orders", Some(&key), body)
            .await
        {
            Ok(answer) => answer,
            Err(error) => panic!("{what}: {error:#}"),
        };
        let problem = answer.json();
        let named = field.is_none_or(|field| problem["errors"].to_string().contains(field));
        let kind = answer
            .headers
            .get("content-type")
            .map(http::HeaderValue::as_bytes);
        if answer.status.as_u16() != status
            || problem["code"] != code
            || !named
            || kind != Some(b"application/problem+json")
            || problem["trace_id"].is_null()
        {
            wrong.push(format!("{what}: {shown} -> {} {problem}", answer.status));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(world.count("select count(*) from orders").await, 0);
    assert_eq!(world.count("select count(*) from idempotency").await, 0);
    assert_eq!(world.operator().get("/v1/skus/BAD").await["available"], 100);
    world.consistent().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "a table")]
async fn keys_callers_and_paths_that_are_wrong_get_their_own_problem() {
    let world = World::start().await;
    world.operator().put_sku("BAD", 100, &json!({})).await;
    let (shop, operator) = (world.shop(), world.operator());
    let body = api::order("c", &[("BAD", 1)]);
    let nobody = tests::Api::new(&world.order[0].url, "no-such-key");
    let long = "k".repeat(256);
    let unknown = contracts::OrderId::generate();
    let adjust = json!({ "delta": 1, "reason": "x" });
    let answers = [
        (
            shop.send(Method::POST, "/v1/orders", None, Some(&body))
                .await,
            400,
            "idempotency-key-required",
        ),
        (
            shop.send(Method::POST, "/v1/orders", Some(&long), Some(&body))
                .await,
            400,
            "idempotency-key-required",
        ),
        (nobody.place("k", &body).await, 401, "unauthorized"),
        (
            shop.send(Method::PUT, "/v1/skus/BAD", None, Some(&json!({})))
                .await,
            403,
            "forbidden",
        ),
        (
            shop.ask(Method::GET, &format!("/v1/orders/{unknown}"), None, None)
                .await,
            404,
            "not-found",
        ),
        (
            shop.send(Method::GET, "/v1/orders/not-an-id", None, None)
                .await,
            404,
            "not-found",
        ),
        (
            shop.send(Method::GET, "/nowhere", None, None).await,
            404,
            "not-found",
        ),
        (
            shop.send(Method::DELETE, "/v1/orders", None, None).await,
            405,
            "method-not-allowed",
        ),
        (
            operator
                .send(
                    Method::POST,
                    "/v1/skus/NOWHERE/adjustments",
                    Some("k"),
                    Some(&adjust),
                )
                .await,
            422,
            "unknown-sku",
        ),
    ];
    for (number, (answer, status, code)) in answers.iter().enumerate() {
        let problem = answer.json();
        assert_eq!(
            (answer.status.as_u16(), problem["code"].as_str()),
            (*status, Some(*code)),
            "{number}: {problem}"
        );
    }
    assert_eq!(world.count("select count(*) from orders").await, 0);
    world.end().await;
}
