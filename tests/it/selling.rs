//! No unit is sold twice and none is left over, whoever asks, wherever, in which order.

use futures::future::join_all;
use http::StatusCode;
use serde_json::json;
use tests::{Options, World, api, wait_for};

/// Places `count` orders of one unit at once, spread over all replicas; gives the statuses.
async fn rush(world: &World, sku: &str, count: usize) -> Vec<StatusCode> {
    let shops = world.shops();
    let orders = (0..count).map(|number| {
        let shop = shops[number % shops.len()].clone();
        let body = api::order(&format!("c-{number}"), &[(sku, 1)]);
        let key = format!("rush-{sku}-{number}");
        async move { shop.decide(&key, &body).await.status }
    });
    join_all(orders).await
}

fn count(statuses: &[StatusCode], wanted: u16) -> usize {
    statuses
        .iter()
        .filter(|status| status.as_u16() == wanted)
        .count()
}

/// Units that the gate would let through.
async fn left_at_gate(world: &World, sku: &str) -> Option<i64> {
    let snapshot = world.gate_client().snapshot(domain::Shard(0)).await.ok()?;
    let (_, row) = snapshot
        .gates
        .into_iter()
        .find(|(known, _)| known.as_str() == sku)?;
    Some(row.limit - row.held)
}

/// Twice as many orders as units, all at once.
async fn sells_exactly_what_there_is(world: World, sku: &str) {
    world.operator().put_sku(sku, 100, &json!({})).await;
    let statuses = rush(&world, sku, 200).await;
    assert_eq!(
        (count(&statuses, 201), count(&statuses, 410)),
        (100, 100),
        "{statuses:?}"
    );
    world.settled().await;
    let stock = world.operator().get(&format!("/v1/skus/{sku}")).await;
    assert_eq!(
        (&stock["available"], &stock["sold"]),
        (&json!(0), &json!(100)),
        "{stock}"
    );
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_orders_for_a_hundred_units_sell_exactly_a_hundred() {
    sells_exactly_what_there_is(World::start().await, "RUSH").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_of_the_order_service_sell_exactly_what_there_is() {
    let world = World::with(Options {
        order_replicas: Some(2),
        ..Options::default()
    })
    .await;
    sells_exactly_what_there_is(world, "TWO").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn opposite_pairs_of_the_last_units_have_one_winner_and_the_loser_holds_nothing() {
    let world = World::with(Options {
        order_replicas: Some(2),
        ..Options::default()
    })
    .await;
    for round in 0..10 {
        let (a, b) = (format!("A-{round}"), format!("B-{round}"));
        world.operator().put_sku(&a, 1, &json!({})).await;
        world.operator().put_sku(&b, 1, &json!({})).await;
        let shops = world.shops();
        let orders = (0..20).map(|number| {
            let shop = shops[number % shops.len()].clone();
            let lines: [(&str, i64); 2] = if number % 2 == 0 {
                [(&a, 1), (&b, 1)]
            } else {
                [(&b, 1), (&a, 1)]
            };
            let body = api::order(&format!("c-{number}"), &lines);
            let key = format!("pair-{round}-{number}");
            async move { shop.decide(&key, &body).await.status }
        });
        let statuses = join_all(orders).await;
        assert_eq!(
            (count(&statuses, 201), count(&statuses, 410)),
            (1, 19),
            "{statuses:?}"
        );
        for sku in [&a, &b] {
            let stock = world.operator().get(&format!("/v1/skus/{sku}")).await;
            assert_eq!(stock["available"], 0, "{stock}");
        }
    }
    world.settled().await;
    // The losers left neither an order nor a request to pay.
    assert_eq!(world.count("select count(*) from orders").await, 10);
    assert_eq!(world.count("select count(*) from payments").await, 10);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_lacks_one_of_its_lines_takes_none() {
    let world = World::start().await;
    world.operator().put_sku("FULL", 5, &json!({})).await;
    world.operator().put_sku("EMPTY", 0, &json!({})).await;
    let shop = world.shop();
    let orders = (0..50).map(|number| {
        let shop = shop.clone();
        async move {
            let body = api::order(&format!("c-{number}"), &[("FULL", 2), ("EMPTY", 1)]);
            shop.decide(&format!("part-{number}"), &body).await.status
        }
    });
    let statuses = join_all(orders).await;
    assert_eq!(count(&statuses, 410), 50, "{statuses:?}");
    assert_eq!(world.operator().get("/v1/skus/FULL").await["available"], 5);
    assert_eq!(world.count("select count(*) from orders").await, 0);
    let events = world.count("select count(*) from outbox where type like 'ORDER%'");
    assert_eq!(events.await, 0, "no event");
    world.consistent().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_lines_of_one_sku_are_summed_before_they_are_judged() {
    let world = World::start().await;
    world.operator().put_sku("SUM", 5, &json!({})).await;
    let six = api::order("c-1", &[("SUM", 3), ("SUM", 3)]);
    // A bug here is a 503 that stays.
    let bound = std::time::Duration::from_secs(15);
    let refused = world.shop().decide_within(bound, "six", &six).await;
    assert_eq!(refused.status, 410);
    assert_eq!(world.operator().get("/v1/skus/SUM").await["available"], 5);
    let five = api::order("c-1", &[("SUM", 2), ("SUM", 3)]);
    let answer = world.shop().decide("five", &five).await;
    api::accepted(&answer);
    assert_eq!(answer.json()["lines"][0]["quantity"], 5);
    world.settled().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_customer_never_has_more_than_the_limit() {
    let world = World::with(Options {
        order_replicas: Some(2),
        ..Options::default()
    })
    .await;
    world
        .operator()
        .put_sku("LIMITED", 50, &json!({ "per_customer_limit": 2 }))
        .await;
    let shops = world.shops();
    let orders = (0..40).map(|number| {
        let shop = shops[number % 2].clone();
        async move {
            let body = api::order("eager", &[("LIMITED", 1)]);
            shop.decide(&format!("eager-{number}"), &body).await.status
        }
    });
    let statuses = join_all(orders).await;
    assert_eq!(
        (count(&statuses, 201), count(&statuses, 409)),
        (2, 38),
        "{statuses:?}"
    );
    let other = world
        .shop()
        .decide("other", &api::order("modest", &[("LIMITED", 2)]))
        .await;
    api::accepted(&other);
    world.settled().await;
    world.end().await;
}

/// A refusal stores nothing (P1), no counter of the buyer's units either. The gate knows no
/// currencies, so whoever asks for two is refused by the accept, after it has locked the buyers.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_buyer_of_a_limited_sku_leaves_no_row_and_an_owner_keeps_his() {
    let world = World::with(Options {
        order_replicas: Some(2),
        without_payment: true,
        ..Options::default()
    })
    .await;
    let (operator, shops) = (world.operator(), world.shops());
    let limit = json!({ "per_customer_limit": 9 });
    operator.put_sku("ROWS", 1_000, &limit).await;
    let dollars = json!({ "unit_price": { "amount_minor": 100, "currency": "USD" } });
    operator.put_sku("DOLLARS", 1_000, &dollars).await;
    let refused = |customer: &str| api::order(customer, &[("ROWS", 1), ("DOLLARS", 1)]);
    let answer = shops[0].decide("nobody", &refused("nobody")).await;
    assert_eq!(answer.status, 422, "{}", answer.json());
    assert_eq!(world.count("select count(*) from buyer_units").await, 0);

    let one = api::order("owner", &[("ROWS", 1)]);
    api::accepted(&shops[0].decide("owner", &one).await);
    let answer = shops[0].decide("owner-too", &refused("owner")).await;
    assert_eq!(answer.status, 422, "{}", answer.json());
    let units = world.count("select sum(units)::bigint from buyer_units");
    assert_eq!(units.await, 1);

    // New buyers who are refused and accepted at the same moment, by either service.
    let both = join_all((0..80).map(|number| {
        let (shop, buyer) = (shops[number % 2].clone(), format!("new-{}", number / 4));
        let body = match number % 4 {
            0 | 3 => refused(&buyer),
            _ => api::order(&buyer, &[("ROWS", 1)]),
        };
        async move { shop.decide(&format!("new-{number}"), &body).await.status }
    }))
    .await;
    assert_eq!((count(&both, 201), count(&both, 422)), (40, 40), "{both:?}");
    let rows = "select count(*) from buyer_units where units = 2";
    assert_eq!(world.count(rows).await, 20);
    assert_eq!(world.count("select count(*) from buyer_units").await, 21);
    world.consistent().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_that_is_not_open_or_over_sells_nothing() {
    let world = World::start().await;
    let later = json!({ "opens_at": "2099-01-01T00:00:00Z" });
    world.operator().put_sku("LATER", 5, &later).await;
    let over = json!({ "opens_at": "2020-01-01T00:00:00Z", "closes_at": "2020-01-02T00:00:00Z" });
    world.operator().put_sku("OVER", 5, &over).await;
    let answer = world
        .shop()
        .decide("later", &api::order("c", &[("LATER", 1)]))
        .await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["code"].as_str()),
        (403, Some("sale-not-open"))
    );
    assert!(answer.headers.contains_key("retry-after"));
    assert_eq!(answer.json()["opens_at"], "2099-01-01T00:00:00Z");
    let answer = world
        .shop()
        .decide("over", &api::order("c", &[("OVER", 1)]))
        .await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["code"].as_str()),
        (410, Some("sale-over"))
    );
    world.consistent().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restock_is_sold_once_and_its_repeat_adds_nothing() {
    let world = World::start().await;
    world.operator().put_sku("MORE", 1, &json!({})).await;
    api::accepted(
        &world
            .shop()
            .decide("one", &api::order("c-1", &[("MORE", 1)]))
            .await,
    );
    assert_eq!(
        world
            .shop()
            .decide("two", &api::order("c-2", &[("MORE", 1)]))
            .await
            .status,
        410
    );
    let operator = world.operator();
    let path = "/v1/skus/MORE/adjustments";
    let body = json!({ "delta": 2, "reason": "restock" });
    for _ in 0..3 {
        let answer = operator
            .ask(http::Method::POST, path, Some("restock-1"), Some(&body))
            .await;
        assert_eq!(
            answer.status,
            201,
            "{}",
            String::from_utf8_lossy(&answer.body)
        );
    }
    // The gate is told a moment later; until then it may refuse.
    wait_for("the gate to have both units", || async {
        (left_at_gate(&world, "MORE").await? == 2).then_some(())
    })
    .await;
    let statuses = rush(&world, "MORE", 10).await;
    assert_eq!(
        (count(&statuses, 201), count(&statuses, 410)),
        (2, 8),
        "{statuses:?}"
    );
    let below = json!({ "delta": -1, "reason": "broken" });
    let answer = operator
        .ask(http::Method::POST, path, Some("below"), Some(&below))
        .await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["code"].as_str()),
        (409, Some("below-committed"))
    );
    world.settled().await;
    world.end().await;
}
