//! `holdfast dlq redrive`: what was set aside is handled again once its cause is mended, whatever has
//! happened to its order meanwhile.

use clap::Parser;
use cli::{
    args::{Cli, Command},
    dlq::{self, report::Report},
    exit::Exit,
};
use contracts::{ConsumerName, OrderId, Topic};
use serde_json::json;
use tests::{Options, World, api, wait_for};

use crate::upstream::{Upstream, upstream};

/// `holdfast dlq redrive` in this world.
fn command(world: &World, words: &[&str]) -> Command {
    let system = [
        "--database-url",
        &world.database_url,
        "--redis-url",
        &world.redis_url,
        "--key-prefix",
        &world.key_prefix,
        "--output=json",
    ];
    Cli::parse_from([&["holdfast", "dlq", "redrive"], words, &system].concat()).command
}

async fn redrive(world: &World, words: &[&str]) -> Report {
    let args = match command(world, words) {
        Command::Dlq(dlq::Ask::Redrive(args)) => args,
        other => panic!("{other:?}"),
    };
    match dlq::redrive::redrive(&args).await {
        Ok(report) => report,
        Err(error) => panic!("{words:?}: {error:#}"),
    }
}

/// (replayed, already done, failed again)
fn counts(report: &Report) -> (u64, u64, u64) {
    (report.replayed, report.already_done, report.failed_again)
}

/// Waits until the consumer has set so many records aside.
async fn set_aside(world: &World, consumer: ConsumerName, letters: i64) {
    let sql = format!(
        "select count(*) from dead_letters where consumer = '{}'",
        consumer.as_str()
    );
    wait_for("the record to be set aside", || async {
        (world.count(&sql).await == letters).then_some(())
    })
    .await;
}

async fn open(world: &World) -> i64 {
    world
        .count("select count(*) from dead_letters where state = 'OPEN'")
        .await
}

async fn place(world: &World, key: &str, sku: &str) -> String {
    let body = api::order("c-1", &[(sku, 1)]);
    api::accepted(&world.shop().place(key, &body).await)
}

/// Money that is set aside, since somebody has put its payment on record with another order.
async fn money_set_aside(world: &World, order: &str) {
    let other = OrderId::generate();
    let planted = format!(
        "insert into payments (id, order_id, state, amount_minor, currency, method)
         values ('p-1', '{other}', 'FAILED', 12900, 'KRW', 'card')"
    );
    world.tamper(&planted).await;
    Upstream::new(world).pays("e-1", "p-1", order).await;
    set_aside(world, ConsumerName::Stock, 1).await;
    assert_eq!(world.until(order, "RESERVED").await["version"], 1);
}

async fn mend(world: &World, order: &str) {
    let wrong = format!("delete from payments where id = 'p-1' and order_id <> '{order}'");
    world.tamper(&wrong).await;
}

/// A later attempt to pay failed for good.
async fn newer_event(world: &World, order: &str) {
    Upstream::new(world).fails("e-2", "p-2", order, true).await;
    let known = format!(
        "select count(*) from inbox where consumer = 'stock' and source = '{}'
         and event_id = 'e-2'",
        Upstream::SOURCE
    );
    wait_for("the newer event to be handled", || async {
        (world.count(&known).await == 1).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_is_redriven_before_a_newer_event_confirms_its_order() {
    let world = upstream().await;
    world.operator().put_sku("MENDED", 10, &json!({})).await;
    let order = place(&world, "mended", "MENDED").await;
    money_set_aside(&world, &order).await;

    let still = redrive(&world, &["--all"]).await;
    assert_eq!(counts(&still), (0, 0, 1));
    let reason = still.letters[0].reason.as_deref();
    assert_eq!(reason, Some("the payment belongs to another order"));
    let ended = command(&world, &["--all"]).run().await;
    assert!(matches!(ended, Ok(Exit::Failed)), "{ended:?}");
    assert_eq!(open(&world).await, 1);

    mend(&world, &order).await;
    let id = still.letters[0].id.to_string();
    let dry = redrive(&world, &[&id, "--dry-run"]).await;
    assert_eq!((counts(&dry), open(&world).await), ((1, 0, 0), 1));
    assert_eq!(world.until(&order, "RESERVED").await["version"], 1);
    let other = redrive(&world, &["--all", "--class=malformed"]).await;
    assert_eq!(counts(&other), (0, 0, 0));

    let done = redrive(&world, &["--all", "--consumer=stock"]).await;
    assert_eq!((counts(&done), open(&world).await), ((1, 0, 0), 0));
    assert_eq!(world.until(&order, "CONFIRMED").await["version"], 2);
    newer_event(&world, &order).await;
    assert_eq!(counts(&redrive(&world, &[&id]).await), (0, 1, 0));
    assert_eq!(world.until(&order, "CONFIRMED").await["version"], 2);
    let stock = world.operator().get("/v1/skus/MENDED").await;
    assert_eq!(
        (&stock["sold"], &stock["held"]),
        (&json!(1), &json!(0)),
        "{stock}"
    );
    assert_eq!(world.count("select count(*) from refunds").await, 0);
    world.settled().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_is_redriven_after_a_newer_event_gives_its_money_back() {
    let world = upstream().await;
    world.operator().put_sku("TOO-LATE", 10, &json!({})).await;
    let order = place(&world, "too-late", "TOO-LATE").await;
    money_set_aside(&world, &order).await;
    newer_event(&world, &order).await;
    assert_eq!(world.until(&order, "CANCELED").await["version"], 2);

    mend(&world, &order).await;
    let done = redrive(&world, &["--all"]).await;
    assert_eq!((counts(&done), open(&world).await), ((1, 0, 0), 0));
    assert_eq!(world.until(&order, "CANCELED").await["version"], 2);
    let back = "select count(*) from refunds where payment_id = 'p-1' and amount_minor = 12900";
    assert_eq!(world.count(back).await, 1);
    world.settled().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_by_kafka_that_was_set_aside_and_mended_is_an_order() {
    let world = World::start().await;
    world.operator().put_sku("ASKED", 10, &json!({})).await;
    let headers = [
        ("ce_specversion", "1.0"),
        ("ce_id", "r-1"),
        ("ce_source", "/upstream/shop"),
        ("ce_type", "ORDER_REQUESTED"),
    ];
    let broken = Some(b"{\"customer_id\":".as_slice());
    world
        .kafka
        .produce_raw(Topic::OrderRequests, Some("r-1"), &headers, broken)
        .await;
    set_aside(&world, ConsumerName::Order, 1).await;
    let right = api::order("c-9", &[("ASKED", 2)]);
    world
        .tamper(&format!("update dead_letters set payload = '{right}'"))
        .await;

    let orders = "select count(*) from orders";
    let dry = redrive(&world, &["--all", "--dry-run"]).await;
    assert_eq!((counts(&dry), world.count(orders).await), ((1, 0, 0), 0));
    let done = redrive(&world, &["--all", "--consumer=order"]).await;
    assert_eq!((counts(&done), world.count(orders).await), ((1, 0, 0), 1));
    world.settled().await;
    let stock = world.operator().get("/v1/skus/ASKED").await;
    assert_eq!(
        (&stock["sold"], &stock["available"]),
        (&json!(2), &json!(8)),
        "{stock}"
    );
    world.end().await;
}

/// The payment begins here, and is charged by the service that runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_charge_that_was_set_aside_is_begun_again_and_made_by_the_payment_service() {
    let mut world = World::with(Options {
        without_payment: true,
        ..Options::default()
    })
    .await;
    world.operator().put_sku("CHARGED", 10, &json!({})).await;
    let order = place(&world, "charged", "CHARGED").await;
    // As if a build that could not read the event had set it aside.
    world
        .tamper(
            "insert into dead_letters (id, consumer, topic, partition, \"offset\", key, type, source,
                 event_id, payload, payload_sha256, headers, reason, class, attempts, first_seen,
                 dlq_topic)
             select gen_random_uuid(), 'payment', topic, 0, 0, convert_to(key, 'UTF8'), type, source,
                 event_id::text, convert_to(data::text, 'UTF8'), sha256(convert_to(data::text, 'UTF8')),
                 jsonb_build_array(
                     jsonb_build_array('ce_specversion', '1.0'),
                     jsonb_build_array('ce_id', event_id::text),
                     jsonb_build_array('ce_source', source),
                     jsonb_build_array('ce_type', type)),
                 'a bug', 'malformed', 1, clock_timestamp(), 'orders.v1.holdfast.payment.dlq'
             from outbox where type = 'ORDER_RESERVED'",
        )
        .await;
    let done = redrive(&world, &["--all"]).await;
    assert_eq!(counts(&done), (1, 0, 0), "{done:?}");
    let begun = format!(
        "select count(*) from payments where state = 'PENDING' and gateway_key = 'order-{order}'"
    );
    assert_eq!(world.count(&begun).await, 1);
    world.start_payment();
    world.until(&order, "CONFIRMED").await;
    assert_eq!(world.count("select count(*) from payments").await, 1);
    world.settled().await;
    world.end().await;
}
