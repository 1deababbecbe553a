//! Class F, and what is promised when a service goes away in mid-sale: nothing is passed over and
//! nothing happens twice.

use std::time::Duration;

use contracts::Topic;
use serde_json::json;
use tests::{World, api, wait_for};

use super::place_many;

/// Places orders one after the other until told to stop; gives how many were accepted.
async fn sell(world: &World, sku: &'static str, orders: std::ops::Range<usize>) {
    let shop = world.shop();
    for number in orders {
        let body = api::order(&format!("c-{number}"), &[(sku, 1)]);
        api::accepted(&shop.decide(&format!("sell-{number}"), &body).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn services_that_stop_and_start_under_load_end_in_time_and_double_nothing() {
    let mut world = World::start().await;
    world.operator().put_sku("ROLL", 400, &json!({})).await;
    for round in 0..3 {
        let begin = round * 100;
        let (stock, payment) = (world.stock.take(), world.payment.take());
        let stop = async {
            for service in [stock, payment].into_iter().flatten() {
                let begun = platform::clock::monotonic();
                service.stop().await;
                let took = begun.elapsed();
                assert!(took < Duration::from_secs(10), "stopping took {took:?}");
            }
        };
        tokio::join!(stop, sell(&world, "ROLL", begin..begin + 50));
        world.start_stock();
        world.start_payment();
        sell(&world, "ROLL", begin + 50..begin + 100).await;
        world.ready().await;
    }
    world.settled().await;
    let stock = world.operator().get("/v1/skus/ROLL").await;
    assert_eq!(
        (&stock["sold"], &stock["held"]),
        (&json!(300), &json!(0)),
        "{stock}"
    );
    let journal = world.gateway().get("/v1/journal").await;
    assert_eq!(journal["totals"]["captures"], 300, "{}", journal["totals"]);
    assert_eq!(world.count("select count(*) from dead_letters").await, 0);
    world.end().await;
}

/// A send that nobody waited for is lost with the process.
#[tokio::test(flavor = "multi_thread")]
async fn orders_acknowledged_just_before_a_crash_all_reach_the_broker() {
    let mut world = World::start().await;
    world.operator().put_sku("CRASH", 300, &json!({})).await;
    let mut ids = Vec::new();
    for life in 0..3 {
        ids.extend(place_many(&world, "CRASH", &format!("crash-{life}"), 60).await);
        world.order.remove(0).kill();
        world.start_order();
        world.ready().await;
    }
    world.settled().await;
    let told = wait_for("each order's event", || async {
        let records = world.kafka.records(Topic::Orders).await;
        let told: std::collections::BTreeSet<String> = records
            .iter()
            .filter(|record| record.header("ce_type") == Some("ORDER_RESERVED"))
            .filter_map(|record| String::from_utf8(record.key.clone()?).ok())
            .collect();
        (told.len() >= ids.len()).then_some(told)
    })
    .await;
    assert!(ids.iter().all(|id| told.contains(id)));
    assert_eq!(told.len(), 180);
    assert_eq!(
        world
            .count("select count(*) from orders where status = 'CONFIRMED'")
            .await,
        180
    );
    world.end().await;
}

/// The provider has taken the money and does not answer while the time of the orders ends: no
/// answer is no refusal, and the money is not forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn no_answer_from_the_provider_at_the_deadline_is_no_refusal() {
    let world = World::start().await;
    world.operator().put_sku("PSP", 5, &json!({})).await;
    let price = json!({ "unit_price": { "amount_minor": 1, "currency": "KRW" } });
    world.operator().put_sku("WITNESS", 1, &price).await;
    // All charges are executed and unanswered, but the witness's, which may be tried again.
    let behaviour = json!({
        "hang_rate": 1.0,
        "hang_ms": 30_000,
        "rules": [{ "amount_minor": 1, "outcome": "decline_not_final" }],
    });
    let gateway = world.gateway();
    let answer = gateway
        .send(http::Method::PUT, "/v1/behaviour", None, Some(&behaviour))
        .await;
    assert_eq!(answer.status, 200);
    let orders = place_many(&world, "PSP", "psp", 5).await;
    let witness = super::place(&world.shop(), "witness", "w", "WITNESS").await;
    wait_for("every charge to be under way", || async {
        let journal = gateway.get("/v1/journal").await;
        let failed = format!(
            "select count(*) from payments where order_id = '{witness}' and state = 'FAILED'"
        );
        let under_way = journal["totals"]["captures"] == 5 && world.count(&failed).await == 1;
        under_way.then_some(())
    })
    .await;
    super::make_due(&world).await;
    // When the witness has expired, expiry has looked at all of them.
    world.until(&witness, "EXPIRED").await;
    for order in &orders {
        world.until(order, "CONFIRMED").await;
    }
    let journal = gateway.get("/v1/journal").await;
    assert_eq!(journal["totals"]["captures"], 5, "{}", journal["totals"]);
    assert_eq!(world.count("select count(*) from refunds").await, 0);
    world.settled().await;
    world.end().await;
}
