//! Damaged state is input too: it is named, it crashes nothing, nothing overwrites it in silence,
//! and there is a way on.

use contracts::ConsumerName;
use serde_json::json;
use store::verify::Check;
use tests::{Options, World, api, wait_for};

async fn sold(world: &World, sku: &str, name: &str, count: usize) -> Vec<String> {
    let mut orders = Vec::new();
    for number in 0..count {
        let body = api::order(&format!("{name}-{number}"), &[(sku, 1)]);
        let shop = world.shop();
        let placed = shop
            .place_until_decided(&format!("{name}-{number}"), &body)
            .await;
        orders.push(api::accepted(&placed));
    }
    for order in &orders {
        world.until(order, "CONFIRMED").await;
    }
    orders
}

fn red<'a>(checks: &'a [Check], id: &str) -> Vec<&'a String> {
    let of_id = checks.iter().filter(|check| check.id == id);
    of_id.flat_map(|check| &check.offenders).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn offsets_reset_to_the_beginning_repeat_nothing() {
    let mut world = World::start().await;
    world.operator().put_sku("RESET", 10, &json!({})).await;
    sold(&world, "RESET", "r", 5).await;
    world.settled().await;
    let history = "select count(*) from order_history";
    let money = "select coalesce(sum(captured_minor), 0)::bigint from payments";
    let before = (world.count(history).await, world.count(money).await);
    world.stop_services().await;
    for consumer in [ConsumerName::Payment, ConsumerName::Stock] {
        world.kafka.reset_offsets(consumer).await;
    }
    world.start_again().await;
    sold(&world, "RESET", "after", 1).await;
    // All of it was read again: nobody lags, and every rule holds, the gateway's journal included.
    world.settled().await;
    assert_eq!(
        (world.count(history).await, world.count(money).await),
        (before.0 + 2, before.1 + before.1 / 5)
    );
    assert_eq!(world.count("select count(*) from dead_letters").await, 0);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_a_recreated_topic_has_lost_are_sent_again() {
    let mut world = World::with(Options {
        without_payment: true,
        ..Options::default()
    })
    .await;
    world.operator().put_sku("EMPTY", 10, &json!({})).await;
    let shop = world.shop();
    let mut orders = Vec::new();
    for number in 0..3 {
        let body = api::order(&format!("c-{number}"), &[("EMPTY", 1)]);
        orders.push(api::accepted(
            &shop.decide(&format!("e-{number}"), &body).await,
        ));
    }
    let unpublished = "select count(*) from outbox
                       where id > (select low from relay_watermark where name = 'outbox')";
    wait_for("the events to be published", || async {
        (world.count(unpublished).await == 0).then_some(())
    })
    .await;
    // Nobody has read them yet, and now nobody ever will.
    world.kafka.recreate_topics().await;
    // They are lost when nobody has handled them 15 s after they were written.
    world
        .tamper("update outbox set at = at - interval '20 seconds'")
        .await;
    world.start_payment();
    for order in &orders {
        world.until(order, "CONFIRMED").await;
    }
    // What was sent again comes after what came later; the rest holds.
    wait_for("every other rule to hold", || async {
        let checks = world.checks().await;
        let mut others = checks.iter().filter(|check| check.id != "I22");
        others.all(|check| check.ok).then_some(())
    })
    .await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_restored_to_an_earlier_moment_sets_aside_what_it_has_forgotten() {
    let mut world = World::start().await;
    world.operator().put_sku("BACK", 10, &json!({})).await;
    sold(&world, "BACK", "known", 2).await;
    world.settled().await;
    world.stop_services().await;
    world.back_up().await;
    world.start_again().await;
    let forgotten = sold(&world, "BACK", "forgotten", 3).await;
    world.settled().await;
    world.stop_services().await;
    world.restore().await;
    // What was read since then is read again, or the consumers would not know what they missed.
    for consumer in [ConsumerName::Payment, ConsumerName::Stock] {
        world.kafka.reset_offsets(consumer).await;
    }
    world.start_again().await;
    let of_payment = "select count(*) from dead_letters where consumer = 'payment'";
    wait_for("the phantom events to be set aside", || async {
        let (payment, stock) = (
            world.count(of_payment).await,
            world
                .count("select count(distinct key) from dead_letters where consumer = 'stock'")
                .await,
        );
        // Stock hears of each twice when payment finds the capture in the provider's journal.
        (payment == 3 && stock == 3).then_some(())
    })
    .await;
    let checks = world.checks().await;
    assert!(
        red(&checks, "I23").len() >= 3,
        "verify names what was invented: {:?}",
        red(&checks, "I23")
    );
    // The units of the forgotten orders are for sale again, and the sale goes on.
    wait_for("the gate to be right again", || async {
        let checks = world.checks().await;
        let mut gate = checks
            .iter()
            .filter(|check| ["I10", "I14", "I20"].contains(&&*check.id));
        gate.all(|check| check.ok).then_some(())
    })
    .await;
    sold(&world, "BACK", "new", 8).await;
    let over = world
        .shop()
        .place_until_decided("over", &api::order("over", &[("BACK", 1)]))
        .await;
    assert_eq!(over.status, 410);
    for order in &forgotten {
        let path = format!("/v1/orders/{order}");
        let answer = world.shop().ask(http::Method::GET, &path, None, None).await;
        assert_eq!(answer.status, 404);
    }
    // The money of those who were charged for one of them is asked for.
    wait_for("the refunds of what was forgotten", || async {
        let asked = world
            .count("select count(*) from refunds where reason = 'unknown-order'")
            .await;
        (asked == 3).then_some(())
    })
    .await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_whose_order_is_gone_is_named_and_neither_overwritten_nor_sold_again() {
    let world = World::start().await;
    world.operator().put_sku("GONE", 10, &json!({})).await;
    let body = api::order("c", &[("GONE", 1)]);
    let order = api::accepted(&world.shop().place_until_decided("gone", &body).await);
    world.until(&order, "CONFIRMED").await;
    world.settled().await;
    world
        .tamper(&format!(
            "delete from orders where id = '{order}'; delete from order_lines where order_id = '{order}';
             delete from order_history where order_id = '{order}'"
        ))
        .await;
    let answer = world.shop().place("gone", &body).await;
    assert_eq!(answer.status, 503, "no lie in either direction");
    let kept = format!("select count(*) from idempotency where order_id = '{order}'");
    assert_eq!(world.count(&kept).await, 1);
    let checks = world.checks().await;
    assert!(
        red(&checks, "I8").iter().any(|one| one.contains(&order)),
        "verify names the key"
    );
    // Another key goes on.
    api::accepted(&world.shop().place_until_decided("next", &body).await);
    // The way on, for whoever has seen to the money: without its row the key is new.
    world
        .tamper(&format!(
            "delete from idempotency where order_id = '{order}'"
        ))
        .await;
    let anew = world.shop().place_until_decided("gone", &body).await;
    assert_ne!(api::accepted(&anew), order);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_that_the_gateway_contradicts_is_named_in_both_directions() {
    let world = World::start().await;
    world.operator().put_sku("MONEY", 10, &json!({})).await;
    let orders = sold(&world, "MONEY", "m", 2).await;
    world.settled().await;
    world
        .tamper(&format!(
            "update payments set gateway_key = 'nobody-knows' where order_id = '{}'",
            orders[0]
        ))
        .await;
    let checks = world.checks().await;
    let named = red(&checks, "I16");
    let says = |what: &str| named.iter().any(|one| one.contains(what));
    assert!(
        says("nobody-knows") && says("here, unknown there") && says("there, unknown here"),
        "{named:?}"
    );
    assert_eq!(named.len(), 2, "the other payment is right: {named:?}");
    world.end().await;
}
