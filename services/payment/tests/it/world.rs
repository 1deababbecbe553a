//! A database of its own per test, and the parts of the service that a test drives by hand: the
//! pool runs, the sweeps are called. SQL goes through `psql`, since the driver is store's alone.

use std::{process::Command, sync::Arc, time::Duration};

use contracts::{OrderId, events::RefundRequested};
use messaging::{Aside, Handler, Inbound, Position};
use payment::{
    charge_missed::ChargeMissed,
    charge_payments::{ChargePayments, Work},
    desk::Desk,
    execute_refunds::sweep_refunds,
    pool::Pool,
    record_results::Recorder,
    sweep_payments::sweep_payments,
};
use platform::Shutdown;
use serde_json::Value;
use store::{Store, StoreOptions};

use crate::gateway::FakeGateway;

pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) gateway: Arc<FakeGateway>,
    pub(crate) recorder: Recorder,
    desk: Desk<FakeGateway>,
    handler: ChargePayments,
    shutdown: Shutdown,
    database: Database,
}

impl Drop for World {
    fn drop(&mut self) {
        self.shutdown.begin();
    }
}

fn psql(url: &str, statement: &str) -> String {
    let output = Command::new("psql")
        .args([
            url,
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-c",
            statement,
        ])
        .output()
        .expect("psql is needed by these tests");
    assert!(
        output.status.success(),
        "{statement}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The administrator's address; without it the tests fail, they are never skipped.
pub(crate) fn admin_url() -> String {
    std::env::var("DATABASE_URL").expect("DATABASE_URL must name a PostgreSQL server")
}

/// An empty database that goes when this is dropped.
pub(crate) struct Database {
    admin: String,
    name: String,
    pub(crate) url: String,
}

impl Database {
    pub(crate) fn new() -> Self {
        let admin = admin_url();
        let name = format!("h_payment_{}", contracts::ids::generate().simple());
        psql(
            &admin,
            &format!("create database {name} template template0"),
        );
        let url = format!("{}/{name}", admin.rsplit_once('/').unwrap().0);
        Self { admin, name, url }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        psql(
            &self.admin,
            &format!("drop database {} with (force)", self.name),
        );
    }
}

impl World {
    pub(crate) async fn new() -> Self {
        let database = Database::new();
        let url = database.url.clone();
        store::migrate(&url).await.unwrap();
        let store = Store::connect(&StoreOptions::background(&url, "payment test")).unwrap();
        let gateway = Arc::new(FakeGateway::default());
        let shutdown = Shutdown::new();
        let recorder = Recorder::start(store.clone(), &shutdown);
        let desk = Desk::new(Arc::clone(&gateway), recorder.clone());
        let pool = Pool::start(desk.clone(), 8, &shutdown);
        let handler = ChargePayments::new(store.clone(), pool);
        Self {
            store,
            gateway,
            recorder,
            desk,
            handler,
            shutdown,
            database,
        }
    }

    /// The same with other rules of how holds are renewed.
    pub(crate) fn with_rules(mut self, rules: domain::deadline::HoldRules) -> Self {
        self.handler = self.handler.clone().with_rules(rules);
        self
    }

    pub(crate) fn desk(&self) -> Desk<FakeGateway> {
        self.desk.clone()
    }

    /// The look for orders without a payment, of a process that has just started.
    pub(crate) fn missed(&self) -> ChargeMissed {
        ChargeMissed::new(self.store.clone(), self.handler.clone())
    }

    pub(crate) fn sql(&self, statement: &str) -> String {
        psql(&self.database.url, statement)
    }

    /// An order of 1,000 won with a minute of its ten left to run.
    pub(crate) fn order(&self) -> OrderId {
        self.order_with("RESERVED", "1 minute")
    }

    pub(crate) fn order_with(&self, status: &str, left: &str) -> OrderId {
        let order = OrderId::generate();
        self.sql(&format!(
            "insert into orders (id, hold_id, shop, customer_id, status, total_minor, currency,
                                 payment_method, reserved_until, created_at, ended_at)
             values ('{order}', '{order}', 'shop', 'c-1', '{status}', 1000, 'KRW', 'card',
                     now() + interval '{left}', now() - interval '1 minute',
                     case '{status}' when 'RESERVED' then null else now() end);
             insert into order_lines values ('{order}', 'SKU-1', 1, 1000)"
        ));
        order
    }

    /// Many of them.
    pub(crate) fn orders(&self, count: usize) -> Vec<OrderId> {
        let orders: Vec<OrderId> = (0..count).map(|_| OrderId::generate()).collect();
        let ids: Vec<String> = orders
            .iter()
            .map(|order| format!("('{order}'::uuid)"))
            .collect();
        self.sql(&format!(
            "insert into orders (id, hold_id, shop, customer_id, status, total_minor, currency,
                                 payment_method, reserved_until, created_at)
             select id, id, 'shop', 'c-1', 'RESERVED', 1000, 'KRW', 'card',
                    now() + interval '1 minute', now() from (values {}) n(id)",
            ids.join(", ")
        ));
        orders
    }

    pub(crate) fn end_order(&self, order: OrderId) {
        self.sql(&format!(
            "update orders set status = 'CANCELED', ended_at = now() where id = '{order}'"
        ));
    }

    /// As the consumer runner does it, but for the inbox: natural keys must do.
    pub(crate) async fn deliver(&self, events: Vec<Work>) {
        let events = inbound(events);
        self.commit(&events).await;
        self.handler.after_commit(&events).await;
    }

    /// The process dies right after the COMMIT.
    pub(crate) async fn deliver_and_die(&self, events: Vec<Work>) {
        self.commit(&inbound(events)).await;
    }

    async fn commit(&self, events: &[Inbound<Work>]) {
        assert!(self.handled(events).await.is_empty());
    }

    /// What is set aside of them.
    pub(crate) async fn set_aside(&self, events: Vec<Work>) -> Vec<Aside> {
        self.handled(&inbound(events)).await
    }

    async fn handled(&self, events: &[Inbound<Work>]) -> Vec<Aside> {
        let mut tx = self.store.begin().await.unwrap();
        let aside = self.handler.handle(&mut tx, events, ()).await.unwrap();
        tx.commit().await.unwrap();
        aside
    }

    /// Makes all PENDING rows due, then sweeps once.
    pub(crate) async fn sweep(&self) {
        self.sql(
            "update payments set next_attempt_at = now() where state = 'PENDING';
             update refund_executions set next_attempt_at = now() where state = 'PENDING'",
        );
        sweep_payments(&self.store, &self.desk).await.unwrap();
        sweep_refunds(&self.store, &self.desk).await.unwrap();
    }

    /// Charges an order and waits until it is recorded; returns the payment's id.
    pub(crate) async fn paid(&self, order: OrderId) -> String {
        self.deliver(vec![Work::Reserved(order)]).await;
        self.wait_state(order, "COMPLETED").await;
        self.sql(&format!(
            "select id from payments where order_id = '{order}'"
        ))
    }

    pub(crate) fn state(&self, order: OrderId) -> String {
        self.sql(&format!(
            "select coalesce(string_agg(state, ','), '') from payments where order_id = '{order}'"
        ))
    }

    pub(crate) async fn wait_state(&self, order: OrderId, state: &str) {
        self.wait(
            &format!("select state from payments where order_id = '{order}'"),
            state,
        )
        .await;
    }

    pub(crate) async fn wait(&self, query: &str, wanted: &str) {
        let deadline = platform::clock::monotonic() + Duration::from_secs(60);
        loop {
            let found = self.sql(query);
            if found == wanted {
                return;
            }
            assert!(
                platform::clock::monotonic() < deadline,
                "{query}: {found}, not {wanted}"
            );
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }

    /// The events of a type, in order: data and version.
    pub(crate) fn events(&self, event_type: &str) -> Vec<(Value, i64)> {
        let rows = self.sql(&format!(
            "select coalesce(json_agg(json_build_array(data, aggregate_version) order by id), '[]')
             from outbox where topic = 'payments.v1' and type = '{event_type}'"
        ));
        let rows: Vec<(String, i64)> = serde_json::from_str(&rows).unwrap();
        rows.into_iter()
            .map(|(data, version)| (serde_json::from_str(&data).unwrap(), version))
            .collect()
    }
}

pub(crate) fn refund_request(payment: &str, order: OrderId, amount: i64) -> Work {
    let request: RefundRequested = serde_json::from_value(serde_json::json!({
        "refund_key": format!("refund-{payment}"),
        "payment_id": payment,
        "order_id": order,
        "amount": {"amount_minor": amount, "currency": "KRW"},
        "reason": "order-canceled",
    }))
    .unwrap();
    Work::Refund(request)
}

fn inbound(events: Vec<Work>) -> Vec<Inbound<Work>> {
    events
        .into_iter()
        .map(|event| Inbound {
            source: "/holdfast/order".into(),
            event_id: contracts::ids::generate().to_string(),
            time: None,
            aggregate_version: None,
            traceparent: None,
            position: Position {
                topic: "orders.v1".into(),
                partition: 0,
                offset: 0,
            },
            event,
        })
        .collect()
}
