//! A database and a key prefix of a test's own, orders in them, and news of payments.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use contracts::{
    ConsumerName, Currency, CustomerId, HoldId, Line, Money, OrderId, PaymentId, PaymentMethod,
    Quantity, RefundKey, Shop, Sku, Timestamp,
    events::{PaymentCompleted, PaymentEvent, PaymentFailed, PaymentRefunded},
};
use domain::{Buyer, Hold, Shard};
use messaging::{Aside, Handler, Inbound, Position};
use reservations::{Gate, GateConfig};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Row};
use stock::{ExpireOrders, SettleOrders, Stock};
use store::{
    Store, StoreOptions,
    skus::{SkuPut, WaitingRoom},
};
use tokio::sync::OnceCell;

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

    pub(crate) async fn sku(&self, name: &str, on_hand: i64, limit: Option<i32>) {
        let put = SkuPut {
            sku: sku(name),
            on_hand,
            unit_price: money(PRICE),
            per_customer_limit: limit,
            opens_at: None,
            closes_at: None,
            reservation_ttl_seconds: 600,
            waiting_room: WaitingRoom::Off,
            shard: SHARD,
        };
        let mut tx = self.stock.store.begin().await.unwrap();
        let request = HoldId::derive("test", "sku", name);
        store::skus::put(&mut tx, &put, request).await.unwrap();
        tx.commit().await.unwrap();
    }

    /// A RESERVED order, written as the accept writes it; due `ttl_seconds` from now. Its hold is
    /// not at the gate.
    pub(crate) async fn place(
        &self,
        customer: &str,
        lines: &[(&str, i64)],
        ttl_seconds: f64,
    ) -> Placed {
        let order = OrderId::generate();
        let hold = hold(&format!("{order}"), customer, lines);
        let total: i64 = lines.iter().map(|(_, units)| units * PRICE).sum();
        let mut statement = format!(
            "begin;
             insert into idempotency (hold_id, fingerprint, order_id) values ('{hold}', '', '{order}');
             insert into orders (id, hold_id, shop, customer_id, status, total_minor, currency,
                                 payment_method, reserved_until, created_at)
             values ('{order}', '{hold}', 'shop', '{customer}', 'RESERVED', {total}, 'KRW', 'card',
                     clock_timestamp() + make_interval(secs => {ttl_seconds}), clock_timestamp());
             insert into order_history (order_id, version, to_status, cause, at)
             values ('{order}', 1, 'RESERVED', 'accept', clock_timestamp());",
            hold = hold.hold_id,
        );
        for (name, units) in lines {
            statement += &format!(
                "insert into order_lines (order_id, sku, quantity, unit_price_minor)
                 values ('{order}', '{name}', {units}, {PRICE});
                 insert into buyer_units (sku, shop, customer_id, units)
                 select sku, 'shop', '{customer}', {units} from stock where sku = '{name}' and limited
                 on conflict (sku, shop, customer_id)
                     do update set units = buyer_units.units + excluded.units;
                 update stock set held = held + {units} where sku = '{name}';"
            );
        }
        self.execute(&(statement + "commit;")).await;
        Placed {
            order,
            hold,
            total: money(total),
        }
    }

    /// A RESERVED order whose hold is at the gate.
    pub(crate) async fn place_with_hold(&self, customer: &str, lines: &[(&str, i64)]) -> Placed {
        let placed = self.place(customer, lines, 600.0).await;
        let report = stock::sync_gate::sync_orders(&self.stock, &[placed.order])
            .await
            .unwrap();
        assert_eq!(report.added, 1);
        placed
    }

    /// Delivers news as the runner does: inbox, handler, commit, `after_commit`.
    pub(crate) async fn deliver(&self, news: &[News]) -> Vec<Aside> {
        self.try_deliver(news).await.unwrap()
    }

    pub(crate) async fn try_deliver(
        &self,
        news: &[News],
    ) -> Result<Vec<Aside>, messaging::HandleError> {
        self.deliver_by(&self.settle, news).await
    }

    pub(crate) async fn deliver_by(
        &self,
        handler: &SettleOrders,
        news: &[News],
    ) -> Result<Vec<Aside>, messaging::HandleError> {
        let mut tx = self.stock.store.begin().await?;
        let mut keys: Vec<(String, String)> = news
            .iter()
            .map(|one| ("/test".to_owned(), one.id.clone()))
            .collect();
        keys.sort();
        keys.dedup();
        let new = store::inbox::insert(&mut tx, ConsumerName::Stock, &keys).await?;
        let mut seen = std::collections::HashSet::new();
        let events: Vec<Inbound<PaymentEvent>> = news
            .iter()
            .filter(|one| {
                new.contains(&("/test".to_owned(), one.id.clone())) && seen.insert(one.id.clone())
            })
            .map(News::inbound)
            .collect();
        let asides = if events.is_empty() {
            Vec::new()
        } else {
            handler.handle(&mut tx, &events, ()).await?
        };
        tx.commit().await?;
        let all: Vec<_> = news.iter().map(News::inbound).collect();
        handler.after_commit(&all).await;
        Ok(asides)
    }

    /// The same without `after_commit`: a process that died in between.
    pub(crate) async fn deliver_and_die(&self, news: &[News]) {
        let mut tx = self.stock.store.begin().await.unwrap();
        let events: Vec<_> = news.iter().map(News::inbound).collect();
        self.settle.handle(&mut tx, &events, ()).await.unwrap();
        tx.commit().await.unwrap();
    }

    pub(crate) async fn cancel(&self, order: OrderId) -> bool {
        let mut tx = self.stock.store.begin().await.unwrap();
        let orders = store::orders::lock(&mut tx, &[order]).await.unwrap();
        let ending = store::orders::Ending {
            order: &orders[0],
            to: domain::OrderStatus::Canceled,
            cause: "cancel".to_owned(),
            reason: "canceled".to_owned(),
        };
        let now = store::settlement::now(&mut tx).await.unwrap();
        let outcome = store::orders::transition(&mut tx, &[ending], now, "/holdfast/order")
            .await
            .unwrap();
        tx.commit().await.unwrap();
        matches!(outcome[0], store::orders::Transitioned::Applied(_))
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

    /// What must hold at any moment, as `invariants.md` A.1 has it.
    pub(crate) async fn assert_invariants(&self) {
        for (rule, query) in INVARIANTS {
            let rows = self.rows(query).await;
            assert!(rows.is_empty(), "{rule}: {rows:?}");
        }
    }

    /// I20: the gate is what PostgreSQL says.
    pub(crate) async fn assert_gate_agrees(&self) {
        let gate = self.stock.gate.snapshot(SHARD).await.unwrap();
        assert!(
            gate.epoch.as_ref().is_some_and(|epoch| epoch.open),
            "no open epoch"
        );
        let page = store::skus::page(&self.stock.store, Some(SHARD), None, 1_000)
            .await
            .unwrap();
        for row in page {
            let there = gate
                .gates
                .get(&row.sku)
                .unwrap_or_else(|| panic!("no gate of {}", row.sku));
            assert_eq!(
                (there.limit, there.held, there.version),
                (row.on_hand - row.sold, row.held, row.version),
                "limit, held, version of {}",
                row.sku
            );
        }
        let live = store::holds::live_page(&self.stock.store, SHARD, None, 100_000)
            .await
            .unwrap();
        let live: BTreeMap<HoldId, Hold> = live
            .holds
            .into_iter()
            .map(|view| (view.hold.hold_id, view.hold))
            .collect();
        let there: BTreeMap<HoldId, Hold> = gate
            .holds
            .iter()
            .map(|(id, stored)| (*id, stored.hold.clone()))
            .collect();
        assert_eq!(there, live, "holds");
        assert_eq!(gate.due.len(), gate.holds.len(), "due");
        let buyers: i64 = gate.buyers.values().sum();
        let right: i64 = self
            .value("select coalesce(sum(units), 0)::bigint from buyer_units")
            .await;
        assert_eq!(buyers, right, "units of buyers");
    }
}

const INVARIANTS: &[(&str, &str)] = &[
    (
        "I1",
        "select sku from stock where held < 0 or sold < 0 or held + sold > on_hand",
    ),
    (
        "I2",
        "select s.sku from stock s left join (
             select l.sku, sum(l.quantity) filter (where o.status = 'RESERVED') h,
                    sum(l.quantity) filter (where o.status = 'CONFIRMED') c
             from order_lines l join orders o on o.id = l.order_id group by 1) x using (sku)
         where s.held <> coalesce(h, 0) or s.sold <> coalesce(c, 0)",
    ),
    (
        "I3",
        "select s.sku from stock s left join (
             select sku, sum(held) h, sum(sold) c from stock_movements group by 1) m using (sku)
         where s.held <> coalesce(h, 0) or s.sold <> coalesce(c, 0)",
    ),
    (
        "I4",
        "select order_id from order_history where to_status <> 'RESERVED'
         group by 1 having count(*) > 1",
    ),
    (
        "I4 path",
        "select order_id from order_history h where not exists (
             select from allowed_transitions a
             where a.from_status is not distinct from h.from_status and a.to_status = h.to_status)",
    ),
    (
        "I5",
        "select order_id from payments where applied group by 1 having count(*) > 1",
    ),
    (
        "I5 both ways",
        "select o.id from orders o left join payments p on p.order_id = o.id and p.applied
         where (o.status = 'CONFIRMED') <> (p.id is not null)",
    ),
    (
        "I6",
        "select id from orders where status = 'EXPIRED' and ended_at < reserved_until",
    ),
    (
        "I9",
        "select b.sku from buyer_units b left join (
             select l.sku, o.shop, o.customer_id, sum(l.quantity) u
             from order_lines l join orders o on o.id = l.order_id
             where o.status in ('RESERVED', 'CONFIRMED') group by 1, 2, 3) x
             using (sku, shop, customer_id)
         where b.units <> coalesce(u, 0)",
    ),
    (
        "I15",
        "select p.id from payments p join orders o on o.id = p.order_id
         where p.captured_minor > p.refunded_minor and not (p.applied and o.status = 'CONFIRMED')
           and not exists (select from refunds r where r.payment_id = p.id)",
    ),
];

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

#[derive(Debug, Clone)]
pub(crate) struct Placed {
    pub(crate) order: OrderId,
    pub(crate) hold: Hold,
    pub(crate) total: Money,
}

/// News of a payment, with the id that makes it an event.
#[derive(Debug, Clone)]
pub(crate) struct News {
    pub(crate) id: String,
    pub(crate) event: PaymentEvent,
}

impl News {
    fn new(event: PaymentEvent) -> Self {
        Self {
            id: contracts::ids::generate().to_string(),
            event,
        }
    }

    /// The same news as another event.
    pub(crate) fn again(&self) -> Self {
        Self::new(self.event.clone())
    }

    fn inbound(&self) -> Inbound<PaymentEvent> {
        Inbound {
            source: "/test".to_owned(),
            event_id: self.id.clone(),
            time: None,
            aggregate_version: None,
            traceparent: None,
            position: Position {
                topic: "payments.v1".into(),
                partition: 0,
                offset: 0,
            },
            event: self.event.clone(),
        }
    }
}

pub(crate) fn completed(payment: &str, order: OrderId, amount: Money) -> News {
    News::new(PaymentEvent::Completed(PaymentCompleted {
        payment_id: PaymentId::parse(payment).unwrap(),
        order_id: order,
        amount,
        method: PaymentMethod::parse("card").unwrap(),
        completed_at: at(0),
    }))
}

pub(crate) fn failed(payment: &str, order: OrderId, is_final: bool) -> News {
    News::new(PaymentEvent::Failed(PaymentFailed {
        payment_id: PaymentId::parse(payment).unwrap(),
        order_id: order,
        reason_code: "declined".to_owned(),
        is_final,
    }))
}

pub(crate) fn refunded(key: &str, payment: &str, order: OrderId, amount: Money) -> News {
    News::new(PaymentEvent::Refunded(PaymentRefunded {
        refund_key: RefundKey::parse(key).unwrap(),
        payment_id: PaymentId::parse(payment).unwrap(),
        order_id: order,
        amount,
    }))
}

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + chrono::TimeDelta::seconds(1_800_000_000 + seconds)
}

pub(crate) fn money(amount_minor: i64) -> Money {
    Money::new(amount_minor, Currency::parse("KRW").unwrap()).unwrap()
}

pub(crate) fn dollars(amount_minor: i64) -> Money {
    Money::new(amount_minor, Currency::parse("USD").unwrap()).unwrap()
}

pub(crate) fn sku(name: &str) -> Sku {
    Sku::parse(name).unwrap()
}

pub(crate) fn hold(key: &str, customer: &str, lines: &[(&str, i64)]) -> Hold {
    Hold {
        hold_id: HoldId::derive("shop", "orders", key),
        buyer: Buyer {
            shop: Shop::parse("shop").unwrap(),
            customer: CustomerId::parse(customer).unwrap(),
        },
        lines: lines
            .iter()
            .map(|(name, units)| Line {
                sku: sku(name),
                quantity: Quantity::new(*units).unwrap(),
            })
            .collect(),
    }
}
