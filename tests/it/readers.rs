//! Whoever reads, or waits for an order, keeps nobody from a decision (docs/decisions/0009).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use http::Method;
use serde_json::json;
use sqlx::{Connection, Executor, PgConnection};
use tests::{Api, Options, World, api, wait_for};
use tokio::task::JoinHandle;

/// Between an answer and the next request of one client.
const PACE: Duration = Duration::from_millis(50);

/// Requests that go on until they are told to stop.
struct Crowd {
    over: Arc<AtomicBool>,
    /// How many were told that no connection is free.
    refused: Arc<AtomicU32>,
    tasks: Vec<JoinHandle<()>>,
}

impl Crowd {
    /// Each of `count` clients asks again when it is answered.
    fn of<F, Fut>(count: u32, ask: F) -> Self
    where
        F: Fn(u32) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = u16> + Send + 'static,
    {
        let (over, refused) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU32::new(0)),
        );
        let tasks = (0..count).map(|number| {
            let (over, refused, ask) = (over.clone(), refused.clone(), ask.clone());
            tokio::spawn(async move {
                while !over.load(Ordering::SeqCst) {
                    let busy = ask(number).await == 503;
                    refused.fetch_add(u32::from(busy), Ordering::SeqCst);
                    // A crowd that leaves the machine something for others.
                    tokio::time::sleep(PACE).await;
                }
            })
        });
        let tasks = tasks.collect();
        Self {
            over,
            refused,
            tasks,
        }
    }

    /// As many more as this have been refused.
    async fn refuses(&self, more: u32) {
        let wanted = self.refused.load(Ordering::SeqCst) + more;
        wait_for("a pool that is used up", || async {
            (self.refused.load(Ordering::SeqCst) >= wanted).then_some(())
        })
        .await;
    }

    async fn ends(self) {
        self.over.store(true, Ordering::SeqCst);
        for task in self.tasks {
            if let Err(error) = task.await {
                panic!("{error}");
            }
        }
    }
}

async fn session(world: &World, statement: &str) -> PgConnection {
    let begun = async {
        let mut session = PgConnection::connect(&world.database_url).await?;
        session
            .execute(sqlx::AssertSqlSafe(statement.to_owned()))
            .await?;
        Ok::<_, sqlx::Error>(session)
    };
    match begun.await {
        Ok(session) => session,
        Err(error) => panic!("{statement}: {error}"),
    }
}

/// One order service with one connection for readers and two for decisions.
async fn narrow() -> World {
    let world = World::with(Options {
        without_payment: true,
        order_flags: vec!["--db-connections=2".to_owned()],
        ..Options::default()
    })
    .await;
    world.operator().put_sku("MANY", 1_000, &json!({})).await;
    world.operator().put_sku("NONE", 0, &json!({})).await;
    world
}

async fn is_ready(anybody: &Api) -> bool {
    let answer = anybody.send(Method::GET, "/readyz", None, None).await;
    answer.status == 200
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_of_readers_keeps_nobody_from_a_decision() {
    let world = narrow().await;
    let shop = world.shop();
    let first = shop.decide("first", &api::order("c", &[("MANY", 1)])).await;
    let path = format!("/v1/orders/{}/timeline", api::accepted(&first));
    // What a timeline reads and no decision does: each of them has the connection until its wait for
    // the lock is over.
    let lock = session(&world, "begin; lock table refunds in access exclusive mode").await;
    let reader = shop.clone();
    let crowd = Crowd::of(50, move |number| {
        let (reader, path) = (reader.clone(), path.clone());
        async move {
            let path = if number < 40 {
                path.as_str()
            } else {
                "/v1/orders"
            };
            let answer = reader.send(Method::GET, path, None, None).await;
            answer.status.as_u16()
        }
    });
    crowd.refuses(100).await;
    let anybody = Api::new(&world.order[0].url, "");
    for number in 0..20 {
        // A machine that has too much to do may refuse at first; readers may not be the cause.
        let within = Duration::from_secs(10);
        let (many, none) = (
            api::order("c", &[("MANY", 1)]),
            api::order("c", &[("NONE", 1)]),
        );
        let key = format!("many-{number}");
        api::accepted(&shop.decide_within(within, &key, &many).await);
        // The gate refuses, and the key is looked up.
        let key = format!("none-{number}");
        let refused = shop.decide_within(within, &key, &none).await;
        assert_eq!(refused.status, 410, "{}", refused.json());
        assert!(is_ready(&anybody).await, "a busy pool is not away");
    }
    crowd.refuses(100).await;
    crowd.ends().await;
    drop(lock);
    assert_eq!(world.count("select count(*) from orders").await, 21);
    world.consistent().await;
    world.end().await;
}

/// Statements of decisions that are asleep in the trigger.
const ASLEEP: &str = "select count(*) from pg_stat_activity where datname = current_database() \
                      and application_name = 'holdfast order accept' and wait_event = 'PgSleep'";

#[tokio::test(flavor = "multi_thread")]
async fn a_service_whose_decisions_use_up_their_pool_stays_ready() {
    let world = narrow().await;
    let slow = "create function slowly() returns trigger language plpgsql as \
                $$ begin perform pg_sleep(5); return new; end $$; \
                create trigger slowly before insert on idempotency for each row execute function slowly()";
    world.tamper(slow).await;
    let shop = world.shop();
    let buyers = Crowd::of(4, move |number| {
        let shop = shop.clone();
        async move {
            let body = api::order(&format!("c-{number}"), &[("MANY", 1)]);
            let answer = shop.place(&format!("slow-{number}"), &body).await;
            answer.status.as_u16()
        }
    });
    let anybody = Api::new(&world.order[0].url, "");
    // Health is looked at twice a second: this is long enough for it to be met busy several times.
    let busy = AtomicU32::new(0);
    wait_for("a pool that is used up for a while", || async {
        assert!(is_ready(&anybody).await, "a busy pool is not away");
        let used_up = world.count(ASLEEP).await >= 2;
        let met = busy.fetch_add(u32::from(used_up), Ordering::SeqCst);
        (met >= 80).then_some(())
    })
    .await;
    buyers.ends().await;
    world
        .tamper("drop trigger slowly on idempotency; drop function slowly()")
        .await;
    world.end().await;
}

/// Reads an order once it has ended, for as long as one may wait.
fn waiting(shop: &Api, order: &str) -> JoinHandle<serde_json::Value> {
    let (shop, path) = (shop.clone(), format!("/v1/orders/{order}?wait=30"));
    tokio::spawn(async move { shop.get(&path).await })
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_an_order_is_answered_when_it_ends_and_no_sooner() {
    let world = World::with(Options {
        without_payment: true,
        without_stock: true,
        ..Options::default()
    })
    .await;
    world.operator().put_sku("WAIT", 10, &json!({})).await;
    let shop = world.shop();
    let mut orders = Vec::new();
    for key in ["one", "two"] {
        let placed = shop.decide(key, &api::order("c", &[("WAIT", 1)])).await;
        orders.push(api::accepted(&placed));
    }
    let mut first = join_all((0..20).map(|_| waiting(&shop, &orders[0])));
    let second = waiting(&shop, &orders[1]);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut first).await;
    assert!(early.is_err(), "{early:?}");
    cancel(&shop, &orders[0]).await;
    // Much sooner than after the 30 s.
    let Ok(ended) = tokio::time::timeout(Duration::from_secs(15), first).await else {
        panic!("whoever waits is not told")
    };
    for order in &ended {
        assert!(
            matches!(order, Ok(order) if order["status"] == "CANCELED"),
            "{order:?}"
        );
    }
    assert!(!second.is_finished(), "the other order has not ended");
    cancel(&shop, &orders[1]).await;
    let second = tokio::time::timeout(Duration::from_secs(15), second).await;
    assert!(
        matches!(&second, Ok(Ok(order)) if order["status"] == "CANCELED"),
        "{second:?}"
    );
    world.end().await;
}

async fn cancel(shop: &Api, order: &str) {
    let path = format!("/v1/orders/{order}/cancel");
    let reason = json!({ "reason": "changed my mind" });
    let answer = shop.ask(Method::POST, &path, None, Some(&reason)).await;
    assert_eq!(answer.status, 200, "{}", answer.json());
}
