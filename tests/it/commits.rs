//! The reply to COMMIT is lost between the order service and PostgreSQL: the answer is right
//! whether the transaction was committed or not, and nothing is compensated (P4).

use std::sync::atomic::Ordering;

use futures::future::join_all;
use serde_json::json;
use tests::{Options, World, api};

const ORDERS: usize = 60;

async fn world() -> World {
    let world = World::with(Options {
        proxy_order_database: true,
        ..Options::default()
    })
    .await;
    world.operator().put_sku("COMMIT", 1_000, &json!({})).await;
    world
}

/// Places orders one after the other, so that each COMMIT is one order's, while a fault strikes
/// every third one; gives the number of distinct orders that were answered with 201. Most outcomes
/// are resolved behind the first answer; on a machine that is too busy for that within 2 s the
/// answer says that it is unknown, and the same key then says what became of it.
async fn place_under(world: &World, fault: impl Fn()) -> usize {
    let shop = world.shop();
    let mut orders = std::collections::BTreeSet::new();
    let mut unknown = 0;
    for number in 0..ORDERS {
        if number % 3 == 0 {
            fault();
        }
        let body = api::order(&format!("c-{number}"), &[("COMMIT", 1)]);
        let key = format!("commit-{number}");
        let mut answer = shop.place(&key, &body).await;
        while answer.status == 503 {
            unknown += 1;
            assert!(
                unknown < ORDERS / 3 / 2,
                "hardly any unknown outcome is resolved"
            );
            answer = shop.place(&key, &body).await;
        }
        orders.insert(api::accepted(&answer));
    }
    orders.len()
}

async fn verify(world: World, orders: usize) {
    let Some(proxy) = &world.proxy else {
        panic!("no proxy")
    };
    let bit = proxy.commits().bit.load(Ordering::SeqCst);
    assert!(bit >= ORDERS as u64 / 3, "only {bit} faults bit");
    assert_eq!(orders, ORDERS);
    assert_eq!(
        world.count("select count(*) from orders").await,
        ORDERS as i64
    );
    world.settled().await;
    let stock = world.operator().get("/v1/skus/COMMIT").await;
    assert_eq!(stock["sold"], ORDERS, "{stock}");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_reply_is_lost_is_answered_with_its_order() {
    let world = world().await;
    let Some(proxy) = &world.proxy else {
        panic!("no proxy")
    };
    let orders = place_under(&world, || {
        proxy.commits().swallow_reply.fetch_add(1, Ordering::SeqCst);
    })
    .await;
    verify(world, orders).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_never_arrived_is_run_again() {
    let world = world().await;
    let Some(proxy) = &world.proxy else {
        panic!("no proxy")
    };
    let orders = place_under(&world, || {
        proxy.commits().drop_request.fetch_add(1, Ordering::SeqCst);
    })
    .await;
    verify(world, orders).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_whose_commits_are_lost_either_way_leave_one_order_per_key() {
    let world = world().await;
    let Some(proxy) = &world.proxy else {
        panic!("no proxy")
    };
    let shop = world.shop();
    for round in 0..6 {
        let faults = proxy.commits();
        let fault = if round % 2 == 0 {
            &faults.swallow_reply
        } else {
            &faults.drop_request
        };
        fault.store(1, Ordering::SeqCst);
        let answers = join_all((0..50).map(|number| {
            let shop = shop.clone();
            async move {
                let body = api::order(&format!("c-{round}-{number}"), &[("COMMIT", 1)]);
                let key = format!("batch-{round}-{number}");
                // A 503 says that the same key may be sent again.
                tests::wait_for("a definite answer", || async {
                    let answer = shop.place(&key, &body).await;
                    (answer.status != 503 && answer.status != 409).then_some(answer)
                })
                .await
            }
        }))
        .await;
        for answer in &answers {
            api::accepted(answer);
        }
    }
    assert!(proxy.commits().bit.load(Ordering::SeqCst) >= 6);
    assert_eq!(world.count("select count(*) from orders").await, 300);
    world.settled().await;
    world.end().await;
}
