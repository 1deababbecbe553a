//! Class O: numbers are never trusted as sent.

use serde_json::json;

use super::{place, wait_until_read};
use crate::upstream::{PRICE, Upstream, upstream};

/// Each wrong amount is recorded, flagged once and goes back; none confirms, and none undoes what
/// the right one did.
#[tokio::test(flavor = "multi_thread")]
async fn no_wrong_amount_confirms_and_each_is_flagged_once() {
    let world = upstream().await;
    world.operator().put_sku("AMOUNT", 10, &json!({})).await;
    let payments = Upstream::new(&world);
    let wrong = [
        (1, "KRW"),
        (PRICE + 1, "KRW"),
        (PRICE, "USD"),
        (0, "KRW"),
        (9_007_199_254_740_991, "KRW"),
    ];
    let mut orders = Vec::new();
    for (number, amount) in wrong.into_iter().enumerate() {
        let order = place(&world.shop(), &format!("a-{number}"), "c", "AMOUNT").await;
        let data = Upstream::completed(&format!("p-{number}"), &order, amount);
        for event in [
            format!("e-{number}"),
            format!("e-{number}"),
            format!("again-{number}"),
        ] {
            let event = (event.as_str(), "PAYMENT_COMPLETED");
            payments.write(None, event, &order, &data).await;
        }
        orders.push(order);
    }
    payments.handled(10).await;
    // What is no amount at all is no news: set aside, whatever order it names.
    for (number, amount) in [json!(-PRICE), json!(12_900.0), json!("12900"), json!(null)]
        .into_iter()
        .enumerate()
    {
        let mut data = Upstream::completed(&format!("n-{number}"), &orders[0], (PRICE, "KRW"));
        data["amount"]["amount_minor"] = amount;
        let event = format!("n-{number}");
        let event = (event.as_str(), "PAYMENT_COMPLETED");
        payments.write(None, event, &orders[0], &data).await;
    }
    wait_until_read(&world).await;
    assert_eq!(world.count("select count(*) from dead_letters").await, 4);
    for order in &orders {
        assert_eq!(world.until(order, "RESERVED").await["version"], 1);
    }
    let flagged = "select count(*) from payments where flagged = 'wrong-amount' and not applied";
    assert_eq!(world.count(flagged).await, 5);
    assert_eq!(world.count("select count(*) from payments").await, 5);
    // Money that is nothing needs no way back.
    assert_eq!(
        world
            .count("select count(*) from refunds where amount_minor > 0")
            .await,
        4
    );
    // Past the grace too: a capture of nothing has no refund, which would say that it is settled.
    world
        .tamper("update orders set reserved_until = clock_timestamp() - interval '61 seconds'")
        .await;
    for order in &orders {
        world.until(order, "EXPIRED").await;
    }
    world.settled().await;
    assert_eq!(
        world.operator().get("/v1/skus/AMOUNT").await["available"],
        10
    );
    world.end().await;
}
