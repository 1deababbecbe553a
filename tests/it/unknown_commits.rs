//! T15: COMMITs of the accept whose outcome nobody is told, by the hundred: each is resolved, and what
//! clients were told is what stands, once. `HOLDFAST_UNKNOWN_COMMITS` says how many; 500 when it is not
//! set, 5,000 for the long run.

use std::sync::Arc;

use contracts::HoldId;
use futures::future::join_all;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tests::{
    Client, Options, Told, World,
    proxy::{Fault, Kind, Proxy, Rule},
    wait_for,
    world::authority,
};

/// How many COMMITs are lost when nobody says.
const WANTED: u64 = 500;

/// Order services that lose COMMITs beside one another.
const LANES: u64 = 4;

const UNITS: i64 = 100_000;

/// What becomes of the COMMITs of an order, one after the other; the next one is heard. Dropped, none
/// of the transaction is there; swallowed, all of it is.
const LOSSES: [&[Fault]; 4] = [
    &[Fault::SwallowReply],
    &[Fault::DropRequest],
    &[Fault::DropRequest, Fault::SwallowReply],
    &[Fault::DropRequest, Fault::DropRequest],
];

/// Every order with all that its accept writes, and every key.
const ORDERS: &str = "
    select format('%s: order %s of %s, %s, for %s, %s in history, %s told', i.hold_id, o.id,
                  o.customer_id, o.status, l.lines, h.versions, e.events)
    from orders o
    full join idempotency i on i.order_id = o.id and i.hold_id = o.hold_id
    cross join lateral (select string_agg(quantity || ' ' || sku, ', ') as lines
                        from order_lines where order_id = o.id) l
    cross join lateral (select count(*) as versions from order_history where order_id = o.id) h
    cross join lateral (select count(*) as events from outbox
                        where key = o.id::text and type = 'ORDER_RESERVED') e";

const STOCK: &str =
    "select format('%s: %s held, %s sold of %s', sku, held, sold, on_hand) from stock";

/// One order service with a proxy of its own to PostgreSQL, through which no COMMIT goes but those of
/// its orders; one order at a time, so that each is one order's.
struct Lane {
    client: Client,
    sku: String,
    dropped: Arc<Rule>,
    swallowed: Arc<Rule>,
    _proxy: Proxy,
}

/// What became of a lane's orders.
#[derive(Default)]
struct Sold {
    told: Told,
    /// Orders whose first answer was that it is unknown.
    asked_again: usize,
}

impl Lane {
    async fn open(world: &mut World, number: u64) -> Self {
        world.proxy_database().await;
        world.start_order_with(&["--relay=false"]);
        let (Some(proxy), Some(order)) = (world.proxy.take(), world.order.last()) else {
            panic!("no proxy, or no service")
        };
        // The first that has something left to strike does: DROPPED before SWALLOWED.
        let never = |fault| proxy.add(Rule::new(Kind::Commit, fault).times(0));
        Self {
            client: Client::new([order.url.as_str()]),
            sku: format!("UNKNOWN-{number}"),
            dropped: never(Fault::DropRequest),
            swallowed: never(Fault::SwallowReply),
            _proxy: proxy,
        }
    }

    fn lost(&self) -> u64 {
        self.dropped.bites() + self.swallowed.bites()
    }

    /// Sells one order after the other, each with lost COMMITs, until so many are lost.
    async fn sell(&self, wanted: u64) -> Sold {
        let mut sold = Sold::default();
        for losses in LOSSES.iter().cycle() {
            if self.lost() >= wanted {
                break;
            }
            let (lost, unknown) = (self.lost(), sold.told.unknown);
            for loss in *losses {
                match loss {
                    Fault::DropRequest => self.dropped.again(1),
                    _ => self.swallowed.again(1),
                }
            }
            let name = format!("{}-{}", self.sku, sold.told.orders.len());
            sold.told.place(&self.client, 0, &self.sku, &name, 1).await;
            sold.asked_again += usize::from(sold.told.unknown > unknown);
            wait_for("every COMMIT to be lost that should be", || async {
                (self.lost() == lost + losses.len() as u64).then_some(())
            })
            .await;
        }
        sold
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_unknown_commit_is_resolved_and_stands_once_as_its_client_was_told() {
    let wanted = wanted();
    let mut world = World::with(Options {
        order_replicas: Some(0),
        without_payment: true,
        ..Options::default()
    })
    .await;
    let role = Role::create(&mut world).await;
    let mut lanes = Vec::new();
    for number in 0..LANES {
        lanes.push(Lane::open(&mut world, number).await);
    }
    world.ready().await;
    for lane in &lanes {
        let for_long = json!({ "reservation_ttl_seconds": 86_400 });
        world.operator().put_sku(&lane.sku, UNITS, &for_long).await;
    }
    let (begun, resolved_before) = (platform::clock::monotonic(), resolved());
    let sold = join_all(lanes.iter().map(|lane| lane.sell(wanted.div_ceil(LANES)))).await;
    let took = begun.elapsed();
    let resolved = resolved() - resolved_before;

    let (mut told, mut asked_again, mut stock) = (Told::default(), 0, Vec::new());
    for (lane, sold) in lanes.iter().zip(sold) {
        let held = sold.told.orders.len();
        stock.push(format!("{}: {held} held, 0 sold of {UNITS}", lane.sku));
        told.orders.extend(sold.told.orders);
        asked_again += sold.asked_again;
    }
    let dropped: u64 = lanes.iter().map(|lane| lane.dropped.bites()).sum();
    let swallowed: u64 = lanes.iter().map(|lane| lane.swallowed.bites()).sum();
    let orders = told.orders.len();
    eprintln!(
        "{} COMMITs lost in {:.1} s: {swallowed} carried out, {dropped} not; {orders} orders, {} of \
         them resolved behind their first answer, {asked_again} when their key came again",
        dropped + swallowed,
        took.as_secs_f64(),
        orders - asked_again,
    );
    assert!(dropped + swallowed >= wanted);
    assert!(dropped >= wanted / 4 && swallowed >= wanted / 4);
    // No order was decided without a lost COMMIT. Tests beside this one can only add to the count.
    assert!(
        resolved >= (orders - asked_again) as u64,
        "the services count {resolved} resolved"
    );
    assert!(asked_again < orders, "none is resolved at once");

    let keys: Vec<String> = told.orders.iter().map(as_it_should_stand).collect();
    compare("orders", keys, rows(&world, ORDERS).await);
    compare("stock", stock, rows(&world, STOCK).await);
    let client = Client::new(world.order.iter().map(|order| order.url.as_str()));
    told.holds(&client, &world).await;
    world.consistent().await;
    role.remove(&mut world).await;
    world.end().await;
}

fn wanted() -> u64 {
    match std::env::var("HOLDFAST_UNKNOWN_COMMITS").map(|wanted| wanted.parse()) {
        Err(_) => WANTED,
        Ok(Ok(wanted)) => wanted,
        Ok(Err(error)) => panic!("HOLDFAST_UNKNOWN_COMMITS: {error}"),
    }
}

/// Unknown COMMITs that the order services of this process have found carried out, or ran again.
fn resolved() -> u64 {
    platform::telemetry::render_metrics()
        .lines()
        .filter(|line| line.starts_with("accept_unknown_commits_total"))
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok())
        .sum()
}

/// A key and its order as [`ORDERS`] has them.
fn as_it_should_stand((key, (body, order)): (&String, &(Value, String))) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!(
        "{}: order {order} of {}, RESERVED, for 1 {}, 1 in history, 1 told",
        HoldId::derive("shop", "POST /v1/orders", key).0,
        text(&body["customer_id"]),
        text(&body["lines"][0]["sku"]),
    )
}

async fn rows(world: &World, statement: &'static str) -> Vec<String> {
    let rows = async {
        let mut conn = world.store.conn().await?;
        let rows = sqlx::query_scalar(statement).fetch_all(&mut *conn).await?;
        anyhow::Ok(rows)
    };
    match rows.await {
        Ok(rows) => rows,
        Err(error) => panic!("{statement}: {error:#}"),
    }
}

/// Each once, and no others.
fn compare(what: &str, mut told: Vec<String>, mut stand: Vec<String>) {
    told.sort();
    stand.sort();
    if told != stand {
        let only = |some: &[String], others: &[String]| -> Vec<String> {
            let missing = some.iter().filter(|one| !others.contains(one));
            missing.take(5).cloned().collect()
        };
        panic!(
            "{what}: {} as told, {} that stand; only told: {:#?}; only there: {:#?}",
            told.len(),
            stand.len(),
            only(&told, &stand),
            only(&stand, &told)
        );
    }
}

/// A role of the services whose password is hashed once, where 4,096 times are usual: each lost COMMIT
/// costs a connection, and that hash would be most of it in a debug build.
struct Role {
    name: String,
    /// The database as the tests' own role.
    database_url: String,
}

impl Role {
    async fn create(world: &mut World) -> Self {
        let database_url = world.database_url.clone();
        let database = database_url.rsplit('/').next().unwrap_or_default();
        let (name, password) = (
            format!("{database}_services"),
            contracts::ids::generate().simple().to_string(),
        );
        // RFC 5802, with one round; the salt needs no secret.
        let salted = hmac(password.as_bytes(), b"salt of one round\0\0\0\x01");
        let salt = hex::encode("salt of one round");
        let stored = hex::encode(Sha256::digest(hmac(&salted, b"Client Key")));
        let server = hex::encode(hmac(&salted, b"Server Key"));
        let base64 = |hex: &str| format!("encode(decode('{hex}', 'hex'), 'base64')");
        world
            .tamper(&format!(
                "do $do$ begin execute format('create role {name} superuser login password %L',
                     'SCRAM-SHA-256$1:' || {} || '$' || {} || ':' || {}); end $do$",
                base64(&salt),
                base64(&stored),
                base64(&server)
            ))
            .await;
        let server = authority(&database_url);
        world.database_url = format!("postgres://{name}:{password}@{server}/{database}");
        Self { name, database_url }
    }

    async fn remove(self, world: &mut World) {
        world.stop_services().await;
        world.database_url = self.database_url;
        world.tamper(&format!("drop role {}", self.name)).await;
    }
}

fn hmac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        panic!("HMAC takes keys of every length")
    };
    mac.update(text);
    mac.finalize().into_bytes().to_vec()
}
