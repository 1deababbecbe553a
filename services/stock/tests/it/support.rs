//! A database and a key prefix of a test's own, with orders in them and news of payments for them.

mod door;
mod invariants;
mod news;
mod orders;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use contracts::OrderId;
use domain::Shard;
use reservations::{Gate, GateConfig};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Row};
use stock::{ExpireOrders, SettleOrders, Stock};
use store::{Store, StoreOptions};
use tokio::sync::OnceCell;

pub(crate) use self::{
    door::Door,
    news::{News, completed, failed, refunded},
    orders::{Placed, dollars, hold, money, sku},
};

pub(crate) const SHARD: Shard = Shard(0);
pub(crate) const PRICE: i64 = 1_000;

static TEMPLATE: OnceCell<String> = OnceCell::const_new();
static NEXT: AtomicU64 = AtomicU64::new(0);

fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} must name a running server"))
}

fn with_database(url: &str, name: &str) -> String {
    let (base, _) = url.rsplit_once('/').expect("a URL with a database");
    format!("{base}/{name}")
}

async fn admin(statement: String) {
    let url = with_database(&env("DATABASE_URL"), "postgres");
    let mut conn = PgConnection::connect(&url)
        .await
        .expect("PostgreSQL must run");
    sqlx::raw_sql(AssertSqlSafe(statement))
        .execute(&mut conn)
        .await
        .unwrap();
    conn.close().await.unwrap();
}

async fn template() -> &'static str {
    TEMPLATE
        .get_or_init(|| async {
            let name = format!("stock_it_{}_template", std::process::id());
            admin(format!("drop database if exists {name} with (force)")).await;
            admin(format!("create database {name}")).await;
            store::migrate(&with_database(&env("DATABASE_URL"), &name))
                .await
                .unwrap();
            name
        })
        .await
}

/// Asks until it holds; one generous bound.
pub(crate) async fn eventually<F: AsyncFnMut() -> bool>(what: &str, mut holds: F) {
    let bound = tokio::time::Instant::now() + Duration::from_secs(180);
    while !holds().await {
        assert!(tokio::time::Instant::now() < bound, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(crate) struct World {
    pub(crate) stock: Stock,
    pub(crate) url: String,
    pub(crate) prefix: String,
    pub(crate) pool: PgPool,
    pub(crate) redis: redis::aio::MultiplexedConnection,
    settle: SettleOrders,
    database: String,
}

impl World {
    pub(crate) async fn new() -> Self {
        let template = template().await;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let database = format!("stock_it_{}_{number}", std::process::id());
        admin(format!("drop database if exists {database} with (force)")).await;
        admin(format!("create database {database} template {template}")).await;
        let url = with_database(&env("DATABASE_URL"), &database);
        let prefix = format!("stock-it-{}-{number}", std::process::id());
        let store = Store::connect(&StoreOptions::background(&url, "stock-it")).unwrap();
        let gate = Gate::new(GateConfig {
            key_prefix: prefix.clone(),
            // Every hold is due at once: no test waits for a timer.
            due_after: Duration::from_millis(1),
            next_check: Duration::from_millis(1),
            reserve_timeout: Duration::from_secs(5),
            ..GateConfig::new(env("REDIS_URL"))
        })
        .unwrap();
        let stock = Stock { store, gate };
        let pool = PgPool::connect(&url).await.unwrap();
        let redis = redis::Client::open(env("REDIS_URL"))
            .unwrap()
            .get_multiplexed_async_connection()
            .await
            .expect("Redis must run");
        let settle = SettleOrders::new(stock.clone());
        let world = Self {
            stock,
            url,
            prefix,
            pool,
            redis,
            settle,
            database,
        };
        world.beat().await;
        world
    }

    /// The same with other rules of how holds are renewed.
    pub(crate) fn with_rules(mut self, rules: domain::deadline::HoldRules) -> Self {
        self.settle = SettleOrders::new(self.stock.clone()).with_rules(rules);
        self
    }

    /// A world with one SKU, `A`, of 100 units, and an open gate.
    pub(crate) async fn with_gate() -> Self {
        let world = Self::new().await;
        world.sku("A", 100, None).await;
        world.rebuild().await;
        world
    }

    pub(crate) async fn rebuild(&self) {
        stock::rebuild_gate::rebuild_if_lost(&self.stock, SHARD)
            .await
            .unwrap();
    }

    /// All required consumers are alive.
    pub(crate) async fn beat(&self) {
        let mut conn = self.stock.store.conn().await.unwrap();
        for name in ["payment", "stock"] {
            store::heartbeats::beat(&mut conn, name).await.unwrap();
        }
    }

    pub(crate) fn expiry(&self) -> ExpireOrders {
        ExpireOrders::new(self.stock.clone(), vec!["payment", "stock"])
    }

    /// Everyone is alive and everything published, as of now.
    pub(crate) async fn all_is_well(&self) {
        self.beat().await;
        self.execute("update relay_watermark set low = coalesce((select max(id) from outbox), 0)")
            .await;
    }

    /// Expires what is due while all is well.
    pub(crate) async fn expire(&self) -> stock::Expired {
        self.all_is_well().await;
        self.expiry().expire_due_orders().await.unwrap()
    }

    pub(crate) async fn execute(&self, statement: &str) {
        sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
            .execute(&self.pool)
            .await
            .unwrap();
    }

    /// The first column of the first row.
    pub(crate) async fn value<T>(&self, query: &str) -> T
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        sqlx::query(AssertSqlSafe(query.to_owned()))
            .fetch_one(&self.pool)
            .await
            .unwrap()
            .get(0)
    }

    /// All rows, each as the text of a composite.
    pub(crate) async fn rows(&self, query: &str) -> Vec<String> {
        let query = format!("select x::text from ({query}) x");
        let rows = sqlx::query(AssertSqlSafe(query))
            .fetch_all(&self.pool)
            .await
            .unwrap();
        rows.into_iter().map(|row| row.get(0)).collect()
    }

    pub(crate) async fn status(&self, order: OrderId) -> String {
        self.value(&format!("select status from orders where id = '{order}'"))
            .await
    }

    /// (on_hand, held, sold)
    pub(crate) async fn stock_of(&self, name: &str) -> (i64, i64, i64) {
        let row = sqlx::query("select on_hand, held, sold from stock where sku = $1")
            .bind(name)
            .fetch_one(&self.pool)
            .await
            .unwrap();
        (row.get(0), row.get(1), row.get(2))
    }

    /// Types of the events in the outbox, with how often each was written.
    pub(crate) async fn events(&self) -> BTreeMap<String, i64> {
        let rows = sqlx::query("select type, count(*) from outbox group by type")
            .fetch_all(&self.pool)
            .await
            .unwrap();
        rows.into_iter()
            .map(|row| (row.get(0), row.get(1)))
            .collect()
    }

    pub(crate) async fn count(&self, from: &str) -> i64 {
        self.value(&format!("select count(*) from {from}")).await
    }
}

impl World {
    /// As a Redis that was wiped.
    pub(crate) async fn lose_gate(&self) {
        let mut redis = self.redis.clone();
        let keys: Vec<String> = redis::cmd("KEYS")
            .arg(format!("{}:*", self.prefix))
            .query_async(&mut redis)
            .await
            .unwrap();
        let _: i64 = redis::cmd("DEL")
            .arg(keys)
            .query_async(&mut redis)
            .await
            .unwrap();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let (database, prefix) = (self.database.clone(), self.prefix.clone());
        // A runtime of its own: the test's is inside its own blocking call.
        let cleaned = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                admin(format!("drop database if exists {database} with (force)")).await;
                let client = redis::Client::open(env("REDIS_URL")).unwrap();
                let mut redis = client.get_multiplexed_async_connection().await.unwrap();
                let keys: Vec<String> = redis::cmd("KEYS")
                    .arg(format!("{prefix}:*"))
                    .query_async(&mut redis)
                    .await
                    .unwrap();
                if !keys.is_empty() {
                    let _: i64 = redis::cmd("DEL")
                        .arg(keys)
                        .query_async(&mut redis)
                        .await
                        .unwrap();
                }
            });
        });
        assert!(
            cleaned.join().is_ok() || std::thread::panicking(),
            "the test left its database"
        );
    }
}
