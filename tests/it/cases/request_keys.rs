//! Class D: a key belongs to its shop, its route and its body.

use bytes::Bytes;
use http::Method;
use serde_json::json;
use tests::{Api, World, api, wait_for, world::SHOP_KEY};

use super::place;

const OTHER_KEY: &str = "other-shop-key-0123456789";

/// A system with a second shop, which has an order service of its own.
async fn two_shops() -> (World, Api, Api) {
    let mut world = World::start().await;
    world.start_order_with(&["--shop", "other", "--api-key", OTHER_KEY]);
    world.ready().await;
    let (ours, theirs) = (world.shop(), Api::new(&world.order[1].url, OTHER_KEY));
    (world, ours, theirs)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_in_two_shops_and_on_two_routes_is_three_requests() {
    let (world, ours, theirs) = two_shops().await;
    world.operator().put_sku("SHARED", 10, &json!({})).await;
    let body = api::order("c-1", &[("SHARED", 1)]);
    let first = ours.decide("k", &body).await;
    let second = theirs.decide("k", &body).await;
    assert_ne!(api::accepted(&first), api::accepted(&second));
    assert!(!second.replayed());
    // Another body under the same key is nobody's business but the shop's own.
    let more = api::order("c-1", &[("SHARED", 2)]);
    for shop in [&ours, &theirs] {
        let answer = shop.decide("k", &more).await;
        let code = answer.json()["code"].clone();
        assert_eq!((answer.status.as_u16(), code), (422, json!("key-reused")));
    }
    let restock = json!({ "delta": 1, "reason": "restock" });
    let path = "/v1/skus/SHARED/adjustments";
    let adjusted = world
        .operator()
        .ask(Method::POST, path, Some("k"), Some(&restock))
        .await;
    assert_eq!(adjusted.status, 201);
    assert_eq!(
        api::accepted(&ours.decide("k", &body).await),
        api::accepted(&first)
    );
    assert_eq!(world.count("select count(*) from orders").await, 2);
    let stock = world.operator().get("/v1/skus/SHARED").await;
    assert_eq!(stock["on_hand"], 11, "{stock}");
    world.settled().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_meaning_in_another_spelling_is_a_replay_and_a_bad_key_is_none() {
    let world = World::start().await;
    world.operator().put_sku("SPELL", 10, &json!({})).await;
    let shop = world.shop();
    let send = |key: String, body: &'static str| {
        let shop = shop.clone();
        async move {
            wait_for("a definite answer", || async {
                let body = Some(Bytes::from_static(body.as_bytes()));
                match shop
                    .try_send(Method::POST, "/v1/orders", Some(&key), body)
                    .await
                {
                    Ok(answer) => (answer.status != 503).then_some(answer),
                    Err(error) => panic!("{error:#}"),
                }
            })
            .await
        }
    };
    let plain =
        r#"{"customer_id":"c","lines":[{"sku":"SPELL","quantity":2}],"payment_method":"card"}"#;
    let spelled =
        "{ \"payment_method\" : \"card\",\n \"lines\": [ {\"quantity\":1, \"sku\":\"SPELL\"},
        {\"sku\":\"SPELL\",\"quantity\":1} ],\t\"customer_id\":\"c\" }";
    let first = send("spelled".into(), plain).await;
    let again = send("spelled".into(), spelled).await;
    assert_eq!(api::accepted(&again), api::accepted(&first));
    assert!(again.replayed());
    assert_eq!(again.body, first.body);
    for key in [String::new(), " ".to_owned(), "k".repeat(300)] {
        let answer = send(key.clone(), plain).await;
        let code = answer.json()["code"].clone();
        assert_eq!(
            (answer.status.as_u16(), code),
            (400, json!("idempotency-key-required")),
            "{key:?}"
        );
    }
    assert_eq!(world.count("select count(*) from orders").await, 1);
    world.settled().await;
    assert_eq!(world.operator().get("/v1/skus/SPELL").await["sold"], 2);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_shop_can_neither_read_nor_cancel_an_order_nor_tell_that_it_is_there() {
    let (world, ours, theirs) = two_shops().await;
    world
        .operator()
        .put_sku("OWNED", 10, &json!({ "reservation_ttl_seconds": 600 }))
        .await;
    let order = place(&ours, "mine", "c-1", "OWNED").await;
    world.until(&order, "CONFIRMED").await;
    let unknown = contracts::OrderId::generate().to_string();
    let reason = json!({ "reason": "not mine" });
    let nobody = Api::new(&world.order[0].url, "");
    let stolen = Api::new(&world.order[1].url, SHOP_KEY);
    for (method, end) in [
        (Method::GET, ""),
        (Method::GET, "/timeline"),
        (Method::POST, "/cancel"),
    ] {
        let body = (method == Method::POST).then_some(&reason);
        let ask = |who: &Api, order: &str| {
            let (who, path) = (who.clone(), format!("/v1/orders/{order}{end}"));
            let method = method.clone();
            async move {
                let answer = who.ask(method, &path, None, body).await;
                let mut problem = answer.json();
                problem["trace_id"].take();
                (answer.status.as_u16(), problem)
            }
        };
        let foreign = ask(&theirs, &order).await;
        assert_eq!(foreign.0, 404, "{method} {end}: {}", foreign.1);
        assert_eq!(foreign, ask(&theirs, &unknown).await, "{method} {end}");
        for who in [&nobody, &stolen] {
            assert_eq!(ask(who, &order).await.0, 401, "{method} {end}");
        }
    }
    let theirs_listed = theirs.get("/v1/orders?customer_id=c-1").await;
    assert_eq!(theirs_listed["data"], json!([]), "{theirs_listed}");
    // Guessing finds nothing: ids carry 74 random bits and are not sequential.
    for _ in 0..100 {
        let path = format!("/v1/orders/{}/cancel", contracts::OrderId::generate());
        let answer = ours.ask(Method::POST, &path, None, Some(&reason)).await;
        assert_eq!(answer.status, 404);
    }
    assert_eq!(world.until(&order, "CONFIRMED").await["version"], 2);
    assert_eq!(world.operator().get("/v1/skus/OWNED").await["sold"], 1);
    world.settled().await;
    world.end().await;
}
