//! The reply to COMMIT is lost between the order service and PostgreSQL: the answer is right
//! whether the transaction was committed or not, and nothing is compensated (P4).

use std::time::Duration;

use cli::http_client::Answer;
use futures::future::join_all;
use http::Method;
use serde_json::{Value, json};
use sqlx::{Connection, Executor, PgConnection};
use tests::{
    Options, World, api,
    proxy::{Fault, Kind, Rule},
    wait_for,
};

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

async fn verify(world: World, orders: usize, bit: u64) {
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
    let rule = proxy.add(Rule::new(Kind::Commit, Fault::SwallowReply).times(0));
    let orders = place_under(&world, || rule.again(1)).await;
    verify(world, orders, rule.bites()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_never_arrived_is_run_again() {
    let world = world().await;
    let Some(proxy) = &world.proxy else {
        panic!("no proxy")
    };
    let rule = proxy.add(Rule::new(Kind::Commit, Fault::DropRequest).times(0));
    let orders = place_under(&world, || rule.again(1)).await;
    verify(world, orders, rule.bites()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_whose_commits_are_lost_either_way_leave_one_order_per_key() {
    let world = world().await;
    let Some(proxy) = &world.proxy else {
        panic!("no proxy")
    };
    let shop = world.shop();
    let faults = [Fault::SwallowReply, Fault::DropRequest]
        .map(|fault| proxy.add(Rule::new(Kind::Commit, fault).times(0)));
    for round in 0..6 {
        faults[round % 2].again(1);
        let answers = join_all((0..50).map(|number| {
            let shop = shop.clone();
            async move {
                let body = api::order(&format!("c-{round}-{number}"), &[("COMMIT", 1)]);
                let key = format!("batch-{round}-{number}");
                // A 503 says that the same key may be sent again.
                wait_for("a definite answer", || async {
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
    assert_eq!(faults.map(|fault| fault.bites()), [3, 3]);
    assert_eq!(world.count("select count(*) from orders").await, 300);
    world.settled().await;
    world.end().await;
}

/// What was committed is found without a COMMIT, so that a link on which no COMMIT is ever answered
/// delays an order by the wait for the first of them and no more.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_committed_before_is_answered_although_no_commit_is() {
    let world = world().await;
    let Some(proxy) = &world.proxy else {
        panic!("no proxy")
    };
    let rule = proxy.add(Rule::new(Kind::Commit, Fault::HangReply));
    let shop = world.shop();
    for number in 0..3 {
        let body = api::order(&format!("c-{number}"), &[("COMMIT", 1)]);
        // The second run has 1.3 s of the 2 s; a machine that is too busy for that has the next.
        api::accepted(&shop.decide(&format!("hung-{number}"), &body).await);
    }
    assert!(rule.bites() >= 3);
    proxy.clear();
    assert_eq!(world.count("select count(*) from orders").await, 3);
    world.settled().await;
    world.end().await;
}

/// Accepts that wait for the answer to their COMMIT may take all connections that accepts have: who is
/// refused by the gate is looked up all the same, and told so.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_looked_up_while_accepts_hold_all_their_connections() {
    let world = World::with(Options {
        proxy_order_database: true,
        order_flags: vec!["--db-connections=2".to_owned()],
        ..Options::default()
    })
    .await;
    for (sku, units) in [("COMMIT", 1_000), ("GONE", 1)] {
        world.operator().put_sku(sku, units, &json!({})).await;
    }
    let (shop, last) = (world.shop(), api::order("c", &[("GONE", 1)]));
    api::accepted(&shop.decide("last", &last).await);
    let Some(proxy) = &world.proxy else {
        panic!("no proxy")
    };
    let rule = proxy.add(Rule::new(Kind::Commit, Fault::HangReply));
    let buying = async {
        for number in 0.. {
            let body = api::order(&format!("c-{number}"), &[("COMMIT", 1)]);
            shop.place(&format!("hung-{number}"), &body).await;
        }
    };
    let asking = async {
        tests::wait_for("two COMMITs without an answer", || async {
            (rule.bites() >= 2).then_some(())
        })
        .await;
        for number in 0..10 {
            let body = api::order(&format!("late-{number}"), &[("GONE", 1)]);
            let answer = shop.place(&format!("gone-{number}"), &body).await;
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            assert_eq!(answer.status, 410, "{text}");
        }
    };
    tokio::select! {
        () = buying => {}
        () = asking => {}
    }
    proxy.clear();
    world.settled().await;
    world.end().await;
}

/// One order service behind a proxy, whose COMMITs are those of the test alone.
async fn quiet() -> World {
    World::with(Options {
        proxy_order_database: true,
        without_payment: true,
        without_stock: true,
        order_flags: vec!["--relay=false".to_owned()],
        ..Options::default()
    })
    .await
}

fn sku_of(on_hand: i64, ttl_seconds: i64) -> Value {
    json!({
        "on_hand": on_hand,
        "unit_price": { "amount_minor": 100, "currency": "KRW" },
        "reservation_ttl_seconds": ttl_seconds,
    })
}

async fn put(operator: &tests::Api, sku: &str, body: &Value) -> Answer {
    let path = format!("/v1/skus/{sku}");
    operator.send(Method::PUT, &path, None, Some(body)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sku_whose_commit_is_lost_either_way_is_there_once_and_answered_as_it_is() {
    let world = quiet().await;
    let Some(proxy) = &world.proxy else {
        panic!("no proxy")
    };
    let operator = world.operator();
    let faults = [Fault::SwallowReply, Fault::DropRequest]
        .map(|fault| proxy.add(Rule::new(Kind::Commit, fault).times(0)));
    for (number, fault) in faults.iter().cycle().take(6).enumerate() {
        fault.again(1);
        let (sku, body) = (format!("SKU-{number}"), sku_of(7, 60));
        // 503 where the machine is too busy to find out within 2 s: then it is said, too.
        let answer = wait_for("the SKU", || async {
            let answer = put(&operator, &sku, &body).await;
            let unknown = answer.json()["outcome"] == "unknown";
            assert!(answer.status != 503 || unknown, "{}", answer.json());
            (answer.status != 503).then_some(answer)
        })
        .await;
        assert!([200, 201].contains(&answer.status.as_u16()));
        let said = answer.json();
        assert_eq!((&said["on_hand"], &said["sku"]), (&json!(7), &json!(sku)));
    }
    assert_eq!(faults.map(|fault| fault.bites()), [3, 3]);
    let openings = "select count(*) from stock_adjustments where delta = 7";
    assert_eq!(world.count(openings).await, 6);
    world.end().await;
}

/// Whether the service is inside the transaction of a PUT.
const PUTTING: &str = "select count(*) from pg_locks l join pg_class c on c.oid = l.relation \
                       where c.relname = 'skus' and l.mode = 'RowExclusiveLock' and l.granted \
                       and l.database = (select oid from pg_database \
                                         where datname = current_database())";

/// Has a PUT of another ttl commit and then fail to read the SKU, which somebody locks right behind
/// it.
async fn put_that_is_not_read_back(world: &World, ttl_seconds: i64) -> Answer {
    let mut other = match PgConnection::connect(&world.database_url).await {
        Ok(other) => other,
        Err(error) => panic!("{error}"),
    };
    let (operator, body) = (world.operator(), sku_of(7, ttl_seconds));
    let asked = tokio::spawn(async move { put(&operator, "READ", &body).await });
    wait_for("the PUT to be about to commit", || async {
        (world.count(PUTTING).await > 0 || asked.is_finished()).then_some(())
    })
    .await;
    let locked = other.execute("begin; lock table skus in access exclusive mode");
    if let Err(error) = locked.await {
        panic!("{error}");
    }
    match asked.await {
        Ok(answer) => answer,
        Err(error) => panic!("{error}"),
    }
}

/// 503 without an outcome says that nothing was done.
#[tokio::test(flavor = "multi_thread")]
async fn a_sku_that_was_changed_and_cannot_be_read_back_is_said_to_be_unknown() {
    let world = quiet().await;
    let operator = world.operator();
    operator.put_sku("READ", 7, &sku_of(7, 60)).await;
    let Some(proxy) = &world.proxy else {
        panic!("no proxy")
    };
    let slow = Fault::DelayRequest(Duration::from_millis(300));
    proxy.add(Rule::new(Kind::Commit, slow));
    // Until the lock comes in time, on a machine that has too much to do.
    let mut ttl_seconds = 60;
    let waits = wait_for("a PUT that is not read back", || {
        ttl_seconds += 1;
        let (world, ttl_seconds) = (&world, ttl_seconds);
        async move {
            let answer = put_that_is_not_read_back(world, ttl_seconds).await;
            (answer.status != 200).then_some(answer)
        }
    });
    let answer = Box::pin(waits).await;
    assert_eq!(answer.status, 503, "{}", answer.json());
    assert_eq!(answer.json()["outcome"], "unknown", "{}", answer.json());
    proxy.clear();
    let stands = operator.get("/v1/skus/READ").await;
    assert_eq!(stands["reservation_ttl_seconds"], ttl_seconds, "{stands}");
    world.end().await;
}
