//! A whole system of a test's own: database, key prefix and topics that nobody else uses, services
//! in this process. Servers come from the environment (`make test` sets it) or are started once
//! and shared; a test that can't have them fails.

mod checks;
mod database;
mod servers;
mod services;

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use contracts::TopicNames;
use store::{Store, StoreOptions};

pub use self::{
    servers::{Addresses, addresses, authority, private_dir, through},
    services::{OPERATOR_KEY, Running, SHOP_KEY, WEBHOOK_SECRET},
};
use crate::{Api, kafka::Kafka, proxy::Proxy, wait_for};

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

static NUMBER: AtomicU32 = AtomicU32::new(0);

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
        let on_shared = options.database_url.is_none();
        let admin_url = options.database_url.clone().unwrap_or(shared.database_url);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let unique = contracts::ids::generate().simple().to_string();
        let id = format!("{}-{number}", &unique[20..]);
        let database = format!("hf_test_{}", id.replace('-', "_"));
        let database_url = database::create(&admin_url, &database, on_shared).await;
        let suffix = format!(".{id}");
        let names = TopicNames::new(&suffix);
        let brokers = options.kafka_brokers.clone().unwrap_or(shared.brokers);
        if let Err(error) = messaging::admin::ensure_topics(&brokers, &names, 3, 1).await {
            panic!("a test needs its topics: {error}");
        }
        let store = match Store::connect(&StoreOptions::background(&database_url, "test")) {
            Ok(store) => store,
            Err(error) => panic!("{error}"),
        };
        let mut world = Self {
            kafka: Kafka::new(&brokers, names.clone()),
            redis_url: options.redis_url.clone().unwrap_or(shared.redis_url),
            key_prefix: format!("hft-{id}"),
            admin_url,
            database_url,
            names,
            brokers,
            suffix,
            store,
            proxy: None,
            kafka_proxy: None,
            order: Vec::new(),
            payment: None,
            stock: None,
            gateway: None,
            options,
        };
        if world.options.proxy_order_database {
            world.proxy_database().await;
        }
        if world.options.proxy_kafka {
            world.proxy_kafka().await;
        }
        world
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

    /// Stops everything in order and removes what the test made.
    pub async fn end(mut self) {
        self.stop_all().await;
        self.store.close().await;
        database::remove(&self.admin_url, &self.database_url).await;
        if let Err(error) = messaging::admin::delete_topics(&self.brokers, &self.names).await {
            tracing::warn!(%error, "the topics of a test stay behind");
        }
    }
}
