//! A database of its own for each test, and the accept as the order service runs it.

use std::{collections::BTreeSet, future::Future, time::Duration};

use anyhow::{Context, Result};
use contracts::{Currency, CustomerId, HoldId, Line, Money, OrderId, Quantity, Shop, Sku};
use domain::{Buyer, Decision, OrderRequest, Plan, Shard};
use sqlx::{Connection, PgConnection};
use store::{
    Order, Store, StoreOptions,
    idempotency::{self, Claim},
    orders::{self, NewOrder},
    skus::{self, SkuPut, WaitingRoom},
    stock,
};

/// A database that was made for one test.
#[derive(Clone)]
pub(crate) struct Db {
    pub(crate) options: StoreOptions,
    pub(crate) store: Store,
}

fn admin_url() -> String {
    std::env::var("DATABASE_URL").expect("DATABASE_URL must name a PostgreSQL for these tests")
}

/// The URL of another database on the same server.
fn url_of(name: &str) -> String {
    let admin = admin_url();
    let (server, query) = admin.split_once('?').unwrap_or((&admin, ""));
    let (server, _) = server
        .rsplit_once('/')
        .expect("DATABASE_URL names a database");
    if query.is_empty() {
        format!("{server}/{name}")
    } else {
        format!("{server}/{name}?{query}")
    }
}

async fn administer(statement: String) -> Result<()> {
    let mut conn = PgConnection::connect(&admin_url()).await?;
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement))
        .execute(&mut conn)
        .await?;
    Ok(())
}

/// Runs a test on a migrated database of its own, and drops it whatever comes.
pub(crate) async fn with_db<F, Fut>(test: F)
where
    F: FnOnce(Db) -> Fut,
    Fut: Future<Output = Result<()>> + Send + 'static,
{
    let name = format!("store_test_{}", contracts::ids::generate().simple());
    administer(format!("create database {name}"))
        .await
        .expect("create a database");
    let url = url_of(&name);
    store::migrate(&url).await.expect("migrate");
    let options = StoreOptions {
        max_connections: 12,
        acquire_timeout: Duration::from_secs(10),
        lock_timeout: Duration::from_secs(10),
        statement_timeout: Duration::from_secs(30),
        idle_in_transaction_session_timeout: Duration::from_secs(30),
        ..StoreOptions::new(&url, "store tests")
    };
    let store = Store::connect(&options).expect("a store");
    let outcome = tokio::spawn(test(Db {
        options,
        store: store.clone(),
    }))
    .await;
    store.close().await;
    administer(format!("drop database {name} with (force)"))
        .await
        .expect("drop the database");
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(error)) => panic!("{error:?}"),
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

impl Db {
    /// The same database with other settings.
    pub(crate) fn store_with(&self, change: impl FnOnce(&mut StoreOptions)) -> Store {
        let mut options = self.options.clone();
        change(&mut options);
        Store::connect(&options).expect("a store")
    }

    /// One statement that only a test needs.
    pub(crate) async fn run(&self, statement: &str) -> Result<()> {
        let mut conn = self.store.conn().await?;
        let statement = sqlx::AssertSqlSafe(statement.to_owned());
        sqlx::raw_sql(statement).execute(&mut *conn).await?;
        Ok(())
    }

    /// One number that only a test asks for.
    pub(crate) async fn number(&self, query: &str) -> Result<i64> {
        let mut conn = self.store.conn().await?;
        let query = sqlx::AssertSqlSafe(query.to_owned());
        Ok(sqlx::query_scalar(query).fetch_one(&mut *conn).await?)
    }

    pub(crate) async fn put(&self, put: &SkuPut) -> Result<skus::Put> {
        let mut tx = self.store.begin().await?;
        let done = skus::put(&mut tx, put, hold(&format!("put {}", put.sku))).await?;
        tx.commit().await?;
        Ok(done)
    }

    pub(crate) async fn sku(&self, name: &str) -> Result<skus::SkuRow> {
        skus::get(&self.store, &sku(name))
            .await?
            .context("the SKU is there")
    }

    /// Returns when as many sessions of this database wait for a lock.
    pub(crate) async fn wait_for_blocked(&self, sessions: i64) -> Result<()> {
        let query = "select count(*) from pg_stat_activity
                     where datname = current_database() and wait_event_type = 'Lock'";
        wait_for("a session waits for a lock", || async {
            Ok(self.number(query).await? >= sessions)
        })
        .await
    }
}

/// Asks again until it is so; a minute at most.
pub(crate) async fn wait_for<F, Fut>(what: &str, mut is_so: F) -> Result<()>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<bool>>,
{
    let asked = async {
        while !is_so().await? {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    };
    tokio::time::timeout(Duration::from_secs(60), asked)
        .await
        .with_context(|| what.to_owned())?
}

pub(crate) fn sku(name: &str) -> Sku {
    Sku::parse(name).expect("a SKU")
}

pub(crate) fn hold(key: &str) -> HoldId {
    HoldId::derive("shop", "test", key)
}

pub(crate) fn buyer(customer: &str) -> Buyer {
    Buyer {
        shop: Shop::parse("shop").expect("a shop"),
        customer: CustomerId::parse(customer).expect("a customer"),
    }
}

pub(crate) fn won(amount: i64) -> Money {
    Money::new(amount, Currency::parse("KRW").expect("a currency")).expect("money")
}

pub(crate) fn sku_put(name: &str, on_hand: i64) -> SkuPut {
    SkuPut {
        sku: sku(name),
        on_hand,
        unit_price: won(1_000),
        per_customer_limit: None,
        opens_at: None,
        closes_at: None,
        reservation_ttl_seconds: 600,
        waiting_room: WaitingRoom::Off,
        shard: Shard(0),
    }
}

/// A request of `customer` under `key` for units of SKUs.
pub(crate) fn request(key: &str, customer: &str, lines: &[(&str, i64)]) -> OrderRequest {
    let lines = lines
        .iter()
        .map(|(name, units)| Line {
            sku: sku(name),
            quantity: Quantity::new(*units).expect("a quantity"),
        })
        .collect();
    OrderRequest {
        hold_id: hold(key),
        fingerprint: [7; 32],
        order_id: OrderId::generate(),
        buyer: buyer(customer),
        lines: contracts::quantity::canonical_lines(lines).expect("lines"),
        payment_method: contracts::PaymentMethod::parse("card").expect("a method"),
    }
}

pub(crate) async fn claims(store: &Store, requests: &[OrderRequest]) -> Result<Vec<Claim>> {
    let deadline = store.clock().await? + Duration::from_secs(60);
    Ok(requests
        .iter()
        .map(|request| Claim {
            hold_id: request.hold_id,
            fingerprint: request.fingerprint,
            order_id: request.order_id,
            deadline,
        })
        .collect())
}

/// The accept of P1, steps 2 to 6, as one transaction. Returns the plan of the claimed requests and
/// the orders.
pub(crate) async fn accept(store: &Store, requests: &[OrderRequest]) -> Result<(Plan, Vec<Order>)> {
    let claims = claims(store, requests).await?;
    let mut tx = store.begin().await?;
    let claimed: BTreeSet<HoldId> = idempotency::claim(&mut tx, &claims, false)
        .await?
        .into_iter()
        .collect();
    let mine: Vec<OrderRequest> = requests
        .iter()
        .filter(|request| claimed.contains(&request.hold_id))
        .cloned()
        .collect();
    let names: BTreeSet<Sku> = mine
        .iter()
        .flat_map(|request| request.lines.iter().map(|line| line.sku.clone()))
        .collect();
    let names: Vec<Sku> = names.into_iter().collect();
    let catalogue = skus::find_many(store, &names).await?;
    let keys: Vec<(Sku, Buyer)> = mine
        .iter()
        .flat_map(|request| {
            request
                .lines
                .iter()
                .map(|line| (line.sku.clone(), request.buyer.clone()))
        })
        .filter(|(sku, _)| {
            catalogue
                .get(sku)
                .is_some_and(|row| row.per_customer_limit.is_some())
        })
        .collect();
    let buyers = store::buyer_units::lock(&mut tx, &keys).await?;
    let mut view = stock::lock_for_accept(&mut tx, &names).await?;
    let plan = domain::plan_batch(&mine, &view.skus, &buyers, view.now);
    for (sku, taken) in &plan.taken {
        view.rows.get_mut(sku).context("locked")?.held += taken;
    }
    stock::write(&mut tx, &view.rows).await?;
    store::buyer_units::add(&mut tx, &plan.bought).await?;
    let mut new = Vec::new();
    let mut refused = Vec::new();
    for (request, decision) in mine.iter().zip(&plan.decisions) {
        match decision {
            Decision::Accept(accepted) => {
                new.push(NewOrder {
                    request,
                    accepted,
                    traceparent: None,
                });
            }
            Decision::Refuse(_) => refused.push(request.hold_id),
        }
    }
    let orders = orders::insert_accepted(&mut tx, &new, &refused, view.now).await?;
    tx.commit().await?;
    Ok((plan, orders))
}

/// One accepted order.
pub(crate) async fn order(
    store: &Store,
    key: &str,
    customer: &str,
    lines: &[(&str, i64)],
) -> Result<Order> {
    let (plan, mut orders) = accept(store, &[request(key, customer, lines)]).await?;
    orders
        .pop()
        .with_context(|| format!("accepted, not {plan:?}"))
}
