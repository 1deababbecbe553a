//! A whole system of a test's own: database, key prefix and topics that nobody else uses, services
//! in this process. Servers come from the environment (`make test` sets it) or are started once
//! and shared; a test that can't have them fails.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use clap::Parser;
use cli::servers::{self, StateDir};
use contracts::TopicNames;
use platform::Shutdown;
use serde_json::Value;
use store::{
    Store, StoreOptions,
    verify::{Check, Payments},
};
use tokio::{sync::OnceCell, task::JoinHandle};

use crate::{
    Api,
    kafka::Kafka,
    proxy::{Protocol, Proxy},
    wait_for,
};

/// The key of the shop in tests.
pub const SHOP_KEY: &str = "test-shop-key-0123456789";
/// The key of operators in tests.
pub const OPERATOR_KEY: &str = "test-operator-key-0123456789";
/// The secret of webhooks in tests.
pub const WEBHOOK_SECRET: &str = "test-webhook-secret-0123456789";

/// What a test wants otherwise than usual.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// `HOLDFAST_PAYMENTS=upstream`.
    pub upstream: bool,
    /// Order services in place of one.
    pub order_replicas: Option<usize>,
    /// No payment service, so that orders stay RESERVED until the test says otherwise.
    pub without_payment: bool,
    /// No stock service.
    pub without_stock: bool,
    /// An own PostgreSQL, by the URL of any database of it.
    pub database_url: Option<String>,
    /// An own Redis (`redis://…`) that the test may wipe and stop.
    pub redis_url: Option<String>,
    /// An own broker that the test may stop.
    pub kafka_brokers: Option<String>,
    /// Put a proxy between the order services and PostgreSQL.
    pub proxy_order_database: bool,
    /// Put a proxy between all services and Kafka.
    pub proxy_kafka: bool,
    /// Further flags of every gateway-sim, payment, stock or order service.
    pub order_flags: Vec<String>,
    /// Further flags of the simulated gateway.
    pub gateway_flags: Vec<String>,
}

/// One service that runs in this process.
pub struct Running {
    shutdown: Shutdown,
    task: JoinHandle<anyhow::Result<()>>,
    /// Where it listens.
    pub url: String,
}

impl Running {
    /// One that runs as a process of its own: stopping it is its owner's.
    #[must_use]
    pub fn elsewhere(url: &str) -> Self {
        let shutdown = Shutdown::new();
        let begun = shutdown.clone();
        let task = tokio::spawn(async move {
            begun.begun().await;
            Ok(())
        });
        Self {
            shutdown,
            task,
            url: url.to_owned(),
        }
    }

    /// Stops it in order.
    ///
    /// # Panics
    /// It failed, or took longer than 15 s.
    pub async fn stop(self) {
        self.shutdown.begin();
        match tokio::time::timeout(Duration::from_secs(15), self.task).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => panic!("{}: {error:#}", self.url),
            Ok(Err(error)) => panic!("{}: {error}", self.url),
            Err(_) => panic!("{} did not stop within 15 s", self.url),
        }
    }

    /// Waits until it ends by itself; gives why.
    ///
    /// # Panics
    /// It runs on, or panicked.
    pub async fn ended(self) -> anyhow::Result<()> {
        match tokio::time::timeout(Duration::from_secs(15), self.task).await {
            Ok(Ok(ended)) => ended,
            Ok(Err(error)) => panic!("{}: {error}", self.url),
            Err(_) => panic!("{} runs on", self.url),
        }
    }

    /// Asks it to stop, without waiting.
    pub fn begin(&self) {
        self.shutdown.begin();
    }

    /// Ends it at once, as a crash would: nothing is flushed.
    pub fn kill(self) {
        self.task.abort();
        self.shutdown.begin();
    }
}

/// The system.
pub struct World {
    /// Its database.
    pub database_url: String,
    admin_url: String,
    /// Its Redis.
    pub redis_url: String,
    /// Its keys' prefix.
    pub key_prefix: String,
    /// Its topics.
    pub names: TopicNames,
    /// Its broker.
    pub brokers: String,
    suffix: String,
    options: Options,
    /// Straight to the database.
    pub store: Store,
    /// Straight to the topics.
    pub kafka: Kafka,
    /// Between the order services and PostgreSQL, when asked for.
    pub proxy: Option<Proxy>,
    /// Between the services and Kafka, when asked for.
    pub kafka_proxy: Option<Proxy>,
    /// Order services.
    pub order: Vec<Running>,
    /// The payment service.
    pub payment: Option<Running>,
    /// The stock service.
    pub stock: Option<Running>,
    /// The simulated gateway.
    pub gateway: Option<Running>,
}

/// Addresses of the shared servers.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// PostgreSQL, as a user that may create databases.
    pub database_url: String,
    /// Redis.
    pub redis_url: String,
    /// Kafka.
    pub brokers: String,
}

static ADDRESSES: OnceCell<Addresses> = OnceCell::const_new();
static TEMPLATE: OnceCell<String> = OnceCell::const_new();
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// The shared servers; started when nobody gave addresses. They stay up for the next run, in the
/// state directory `target/test-state`; `holdfast down --state-dir target/test-state` ends them.
///
/// # Panics
/// They can't be started.
pub async fn addresses() -> Addresses {
    ADDRESSES
        .get_or_init(|| async {
            platform::telemetry::init();
            let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/test-state");
            let started = async {
                let dir = StateDir::lock(&dir)?;
                servers::ensure(&dir, &servers::Addresses::from_env(), true).await
            };
            match started.await {
                Ok(servers) => Addresses {
                    database_url: servers.database_url,
                    redis_url: servers.redis_url,
                    brokers: servers.kafka_brokers,
                },
                Err(error) => panic!("a test needs its servers: {error}"),
            }
        })
        .await
        .clone()
}

/// A free port of this machine for something that binds it itself.
fn bound() -> (TcpListener, String) {
    match TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr().map(|a| (l, a))) {
        Ok((listener, address)) => (listener, format!("http://{address}")),
        Err(error) => panic!("no free port: {error}"),
    }
}

fn with_database(url: &str, database: &str) -> String {
    match url.rsplit_once('/') {
        Some((server, _)) => format!("{server}/{database}"),
        None => panic!("{url} names no database"),
    }
}

async fn sql(url: &str, statement: &str) {
    use sqlx::{Connection, Executor, PgConnection};
    let mut conn = match PgConnection::connect(url).await {
        Ok(conn) => conn,
        Err(error) => panic!("a test needs PostgreSQL: {error}"),
    };
    if let Err(error) = conn
        .execute(sqlx::AssertSqlSafe(statement.to_owned()))
        .await
    {
        panic!("{statement}: {error}");
    }
}

/// A database with the schema, that new ones are copied from.
async fn template(admin_url: &str) -> String {
    TEMPLATE
        .get_or_init(|| async {
            let name = format!("hf_template_{}", contracts::ids::generate().simple());
            sql(admin_url, &format!("create database {name}")).await;
            if let Err(error) = store::migrate(&with_database(admin_url, &name)).await {
                panic!("the schema can't be made: {error}");
            }
            name
        })
        .await
        .clone()
}

impl World {
    /// A system as the product runs it: one of each service.
    pub async fn start() -> Self {
        Self::with(Options::default()).await
    }

    /// A system that differs.
    ///
    /// # Panics
    /// It can't be started.
    pub async fn with(options: Options) -> Self {
        let mut world = Self::without_services(options).await;
        world.start_services().await;
        world
    }

    /// Database, prefix and topics alone.
    ///
    /// # Panics
    /// They can't be made.
    pub async fn without_services(options: Options) -> Self {
        let shared = addresses().await;
        let own_database = options.database_url.is_some();
        let admin_url = options.database_url.clone().unwrap_or(shared.database_url);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let unique = contracts::ids::generate().simple().to_string();
        let id = format!("{}-{number}", &unique[20..]);
        let database = format!("hf_test_{}", id.replace('-', "_"));
        let database_url = with_database(&admin_url, &database);
        if own_database {
            sql(&admin_url, &format!("create database {database}")).await;
            if let Err(error) = store::migrate(&database_url).await {
                panic!("the schema can't be made: {error}");
            }
        } else {
            let template = template(&admin_url).await;
            let create = format!("create database {database} template {template}");
            sql(&admin_url, &create).await;
        }
        let suffix = format!(".{id}");
        let names = TopicNames::new(&suffix);
        let brokers = options.kafka_brokers.clone().unwrap_or(shared.brokers);
        if let Err(error) = messaging::admin::ensure_topics(&brokers, &names, 3, 1).await {
            panic!("a test needs its topics: {error}");
        }
        let proxy = if options.proxy_order_database {
            Some(proxy_of(&database_url).await)
        } else {
            None
        };
        let kafka_proxy = if options.proxy_kafka {
            Some(proxy_to(Protocol::Kafka, &brokers).await)
        } else {
            None
        };
        let store = match Store::connect(&StoreOptions::background(&database_url, "test")) {
            Ok(store) => store,
            Err(error) => panic!("{error}"),
        };
        Self {
            kafka: Kafka::new(&brokers, names.clone()),
            redis_url: options.redis_url.clone().unwrap_or(shared.redis_url),
            key_prefix: format!("hft-{id}"),
            admin_url,
            database_url,
            names,
            brokers,
            suffix,
            store,
            proxy,
            kafka_proxy,
            order: Vec::new(),
            payment: None,
            stock: None,
            gateway: None,
            options,
        }
    }

    /// Starts every service that the options want and waits until they are ready.
    pub async fn start_services(&mut self) {
        self.start_gateway();
        if !self.options.without_stock {
            self.start_stock();
        }
        for _ in 0..self.options.order_replicas.unwrap_or(1) {
            self.start_order();
        }
        if !self.options.upstream && !self.options.without_payment {
            self.start_payment();
        }
        self.ready().await;
        if self.stock.is_some() {
            self.gate_open().await;
        }
    }

    /// Waits until everything that runs is ready.
    pub async fn ready(&self) {
        let running = self.order.iter().chain(&self.payment).chain(&self.stock);
        for service in running.chain(&self.gateway) {
            let api = Api::new(&service.url, "");
            wait_for(&format!("{} to be ready", service.url), || async {
                let answer = api
                    .try_send(http::Method::GET, "/readyz", None, None)
                    .await
                    .ok()?;
                (answer.status == 200).then_some(())
            })
            .await;
        }
    }

    /// Waits until the gate answers, so that orders go through it.
    ///
    /// # Panics
    /// It never does.
    pub async fn gate_open(&self) {
        let gate = self.gate_client();
        wait_for("the gate to open", || async {
            let epoch = gate.current_epoch(domain::Shard(0)).await.ok().flatten();
            epoch.is_some_and(|epoch| epoch.open).then_some(())
        })
        .await;
    }

    /// A client of this world's gate.
    ///
    /// # Panics
    /// Its address can't be read.
    #[must_use]
    pub fn gate_client(&self) -> reservations::Gate {
        let mut config = reservations::GateConfig::new(self.redis_url.clone());
        config.key_prefix.clone_from(&self.key_prefix);
        // what a test asks of it is to be answered, however busy the machine
        config.reserve_timeout = Duration::from_secs(5);
        match reservations::Gate::new(config) {
            Ok(gate) => gate,
            Err(error) => panic!("{error}"),
        }
    }

    /// The name of a service and the flags that place it in this world.
    #[must_use]
    pub fn flags(&self, name: &str, database_url: &str) -> Vec<String> {
        let payments = if self.options.upstream {
            "upstream"
        } else {
            "internal"
        };
        let brokers = match &self.kafka_proxy {
            Some(proxy) => proxy.address().to_string(),
            None => self.brokers.clone(),
        };
        [
            name,
            "--database-url",
            database_url,
            "--redis-url",
            &self.redis_url,
            "--kafka-brokers",
            &brokers,
            "--key-prefix",
            &self.key_prefix,
            "--topic-suffix",
            &self.suffix,
            "--payments",
            payments,
            // a debug build on a busy machine is slower than what is shipped
            "--gate-timeout-ms",
            "500",
        ]
        .map(str::to_owned)
        .to_vec()
    }

    /// Puts a proxy between PostgreSQL and the order services that are started from now on.
    pub async fn proxy_database(&mut self) {
        self.proxy = Some(proxy_of(&self.database_url).await);
    }

    /// Starts one more order service.
    pub fn start_order(&mut self) {
        self.start_order_with(&[]);
    }

    /// Starts one more order service that differs from the others in these flags.
    pub fn start_order_with(&mut self, more: &[&str]) {
        #[derive(Parser)]
        struct Flags {
            #[command(flatten)]
            config: order::Config,
        }
        let database_url = match &self.proxy {
            Some(proxy) => through(&self.database_url, &proxy.address().to_string()),
            None => self.database_url.clone(),
        };
        let mut flags = self.flags("order", &database_url);
        if !more.contains(&"--api-key") {
            flags.extend(["--api-key", SHOP_KEY].map(str::to_owned));
        }
        flags.extend(["--operator-key", OPERATOR_KEY].map(str::to_owned));
        flags.extend(self.options.order_flags.clone());
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        let (listener, url) = bound();
        let mut config = Flags::parse_from(flags).config;
        config.listener = Some(listener);
        let shutdown = Shutdown::new();
        let task = spawn(order::run(config, shutdown.clone()));
        self.order.push(Running {
            shutdown,
            task,
            url,
        });
    }

    /// Starts the payment service.
    pub fn start_payment(&mut self) {
        #[derive(Parser)]
        struct Flags {
            #[command(flatten)]
            config: payment::Config,
        }
        let mut flags = self.flags("payment", &self.database_url.clone());
        let gateway = self
            .gateway
            .as_ref()
            .map(|g| g.url.clone())
            .unwrap_or_default();
        flags.extend(["--gateway-url", &gateway].map(str::to_owned));
        flags.extend(["--webhook-secret", WEBHOOK_SECRET].map(str::to_owned));
        let (listener, url) = bound();
        let mut config = Flags::parse_from(flags).config;
        config.payment_listener = Some(listener);
        let shutdown = Shutdown::new();
        let task = spawn(payment::run(config, shutdown.clone()));
        self.payment = Some(Running {
            shutdown,
            task,
            url,
        });
    }

    /// Starts the stock service.
    pub fn start_stock(&mut self) {
        #[derive(Parser)]
        struct Flags {
            #[command(flatten)]
            config: stock::Config,
        }
        let flags = self.flags("stock", &self.database_url.clone());
        let (listener, url) = bound();
        let mut config = Flags::parse_from(flags).config;
        config.listener = Some(listener);
        let shutdown = Shutdown::new();
        let task = spawn(stock::run(config, shutdown.clone()));
        self.stock = Some(Running {
            shutdown,
            task,
            url,
        });
    }

    fn start_gateway(&mut self) {
        #[derive(Parser)]
        struct Flags {
            #[command(flatten)]
            config: gateway_sim::Config,
        }
        let mut flags = vec!["gateway-sim".to_owned()];
        flags.extend(["--webhook-secret", WEBHOOK_SECRET].map(str::to_owned));
        flags.extend(self.options.gateway_flags.clone());
        let (listener, url) = bound();
        let mut config = Flags::parse_from(flags).config;
        config.gateway_listener = Some(listener);
        let shutdown = Shutdown::new();
        let task = spawn(gateway_sim::run(config, shutdown.clone()));
        self.gateway = Some(Running {
            shutdown,
            task,
            url,
        });
    }

    /// The API of the first order service, as the shop.
    #[must_use]
    pub fn shop(&self) -> Api {
        Api::new(&self.order[0].url, SHOP_KEY)
    }

    /// The API of every order service, as the shop.
    #[must_use]
    pub fn shops(&self) -> Vec<Api> {
        self.order
            .iter()
            .map(|order| Api::new(&order.url, SHOP_KEY))
            .collect()
    }

    /// The API of the first order service, as an operator.
    #[must_use]
    pub fn operator(&self) -> Api {
        Api::new(&self.order[0].url, OPERATOR_KEY)
    }

    /// The simulated gateway.
    ///
    /// # Panics
    /// There is none.
    #[must_use]
    pub fn gateway(&self) -> Api {
        match &self.gateway {
            Some(gateway) => Api::new(&gateway.url, ""),
            None => panic!("no gateway runs"),
        }
    }

    /// Waits until the order has this status; gives the order.
    pub async fn until(&self, order: &str, status: &str) -> Value {
        let shop = self.shop();
        let path = format!("/v1/orders/{order}");
        wait_for(&format!("order {order} to be {status}"), || async {
            let order = shop.get(&path).await;
            (order["status"] == status).then_some(order)
        })
        .await
    }

    /// Waits until no order is RESERVED and all is quiet, then until every invariant holds.
    ///
    /// # Panics
    /// One is still broken at the bound; its offenders are named.
    pub async fn settled(&self) {
        wait_for("every order to end", || async {
            (self
                .count("select count(*) from orders where status = 'RESERVED'")
                .await
                == 0)
                .then_some(())
        })
        .await;
        self.consistent().await;
    }

    /// Waits until every invariant holds, with orders open or not.
    ///
    /// # Panics
    /// One is still broken at the bound; its offenders are named.
    pub async fn consistent(&self) {
        let begun = platform::clock::monotonic();
        loop {
            let red: Vec<Check> = self.checks().await.into_iter().filter(|c| !c.ok).collect();
            if red.is_empty() {
                return;
            }
            assert!(
                begun.elapsed() < crate::wait::BOUND,
                "invariants broken: {red:#?}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// `holdfast verify` of this world.
    ///
    /// # Panics
    /// A server can't be reached.
    pub async fn verify(&self) -> cli::verify::Report {
        match cli::verify::verify(&self.target()).await {
            Ok(report) => report,
            Err(error) => panic!("the invariants can't be checked: {error:#}"),
        }
    }

    fn target(&self) -> cli::verify::Target {
        cli::verify::Target {
            store: self.store.clone(),
            redis_url: self.redis_url.clone(),
            key_prefix: self.key_prefix.clone(),
            brokers: self.brokers.clone(),
            names: self.names.clone(),
            gateway_url: self.gateway.as_ref().map(|g| g.url.clone()),
            payments: if self.options.upstream {
                Payments::Upstream
            } else {
                Payments::Internal
            },
        }
    }

    /// Every invariant, once: a look that a server cuts short, because the machine has too much to
    /// do, is no look.
    ///
    /// # Panics
    /// A server can't be reached.
    pub async fn checks(&self) -> Vec<Check> {
        let target = self.target();
        let mut checks = wait_for("a look at the invariants", || async {
            let looked = cli::verify::once(&target).await;
            looked
                .inspect_err(|error| tracing::warn!("the invariants can't be checked: {error:#}"))
                .ok()
        })
        .await;
        // A service that the test left out lags for ever, and rightly.
        for (running, group) in [
            (self.payment.is_some(), "holdfast.payment "),
            (self.stock.is_some(), "holdfast.stock "),
        ] {
            for check in checks.iter_mut().filter(|_| !running) {
                check
                    .offenders
                    .retain(|offender| !offender.starts_with(group));
                check.ok = check.ok || check.offenders.is_empty();
            }
        }
        checks
    }

    /// One number from the database.
    ///
    /// # Panics
    /// The statement fails.
    pub async fn count(&self, statement: &str) -> i64 {
        use sqlx::Connection;
        let row: Result<i64, sqlx::Error> = async {
            let mut conn = sqlx::PgConnection::connect(&self.database_url).await?;
            sqlx::query_scalar(sqlx::AssertSqlSafe(statement.to_owned()))
                .fetch_one(&mut conn)
                .await
        }
        .await;
        match row {
            Ok(count) => count,
            Err(error) => panic!("{statement}: {error}"),
        }
    }

    /// Stops every service in order, but the gateway.
    pub async fn stop_services(&mut self) {
        for service in self.order.drain(..) {
            service.stop().await;
        }
        for service in [self.payment.take(), self.stock.take()]
            .into_iter()
            .flatten()
        {
            service.stop().await;
        }
    }

    /// Starts every service that [`World::stop_services`] has stopped.
    pub async fn start_again(&mut self) {
        self.start_stock();
        self.start_order();
        self.start_payment();
        self.ready().await;
        self.gate_open().await;
    }

    /// Copies the database; no service may run.
    pub async fn back_up(&self) {
        let (name, copy) = self.database_names();
        sql(&self.admin_url, &disconnected(&name)).await;
        let copied = format!("create database {copy} template {name}");
        sql(&self.admin_url, &copied).await;
    }

    /// Puts the copy in the database's place; no service may run.
    pub async fn restore(&self) {
        let (name, copy) = self.database_names();
        for statement in [
            format!("drop database {name} with (force)"),
            format!("alter database {copy} rename to {name}"),
        ] {
            sql(&self.admin_url, &statement).await;
        }
    }

    fn database_names(&self) -> (String, String) {
        let name = match self.database_url.rsplit_once('/') {
            Some((_, name)) => name.to_owned(),
            None => panic!("{} names no database", self.database_url),
        };
        let copy = format!("{name}_copy");
        (name, copy)
    }

    /// Changes the database behind everyone's back.
    pub async fn tamper(&self, statement: &str) {
        sql(&self.database_url, statement).await;
    }

    /// Stops everything in order and removes what the test made.
    pub async fn end(mut self) {
        for service in self.order.drain(..) {
            service.stop().await;
        }
        let others = [self.payment.take(), self.stock.take(), self.gateway.take()];
        for service in others.into_iter().flatten() {
            service.stop().await;
        }
        self.store.close().await;
        if let Some((_, database)) = self.database_url.rsplit_once('/') {
            sql(
                &self.admin_url,
                &format!("drop database {database} with (force)"),
            )
            .await;
        }
        if let Err(error) = messaging::admin::delete_topics(&self.brokers, &self.names).await {
            tracing::warn!(%error, "the topics of a test stay behind");
        }
    }
}

fn spawn<E>(
    service: impl Future<Output = Result<(), E>> + Send + 'static,
) -> JoinHandle<anyhow::Result<()>>
where
    E: std::error::Error + Send + Sync + 'static,
{
    tokio::spawn(async move { service.await.map_err(anyhow::Error::from) })
}

/// Ends all sessions of a database.
fn disconnected(database: &str) -> String {
    format!("select pg_terminate_backend(pid) from pg_stat_activity where datname = '{database}'")
}

async fn proxy_of(database_url: &str) -> Proxy {
    proxy_to(Protocol::Postgres, &authority(database_url)).await
}

async fn proxy_to(protocol: Protocol, target: &str) -> Proxy {
    match Proxy::start(protocol, target).await {
        Ok(proxy) => proxy,
        Err(error) => panic!("no proxy: {error}"),
    }
}

/// `host:port` of a URL.
#[must_use]
pub fn authority(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let server = rest.split_once('/').map_or(rest, |(server, _)| server);
    server
        .rsplit_once('@')
        .map_or(server, |(_, host)| host)
        .to_owned()
}

/// The URL with another `host:port`.
#[must_use]
pub fn through(url: &str, address: &str) -> String {
    url.replace(&authority(url), address)
}

/// A directory for a private server of a test.
///
/// # Panics
/// It can't be made.
#[must_use]
pub fn private_dir(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../target/test-private")
        .join(format!("{name}-{}", contracts::ids::generate().simple()));
    match std::fs::create_dir_all(&dir) {
        Ok(()) => dir,
        Err(error) => panic!("{}: {error}", dir.display()),
    }
}
