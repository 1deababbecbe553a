//! The services of a world, in this process: started with the flags of a process, stopped in order or
//! ended as by a crash.

use std::{error::Error, net::TcpListener, time::Duration};

use clap::{Args, Parser};
use platform::Shutdown;
use tokio::task::JoinHandle;

use super::{World, authority, through};
use crate::{
    Api,
    proxy::{Protocol, Proxy},
    wait_for,
};

/// The key of the shop in tests.
pub const SHOP_KEY: &str = "test-shop-key-0123456789";
/// The key of operators in tests.
pub const OPERATOR_KEY: &str = "test-operator-key-0123456789";
/// The secret of webhooks in tests.
pub const WEBHOOK_SECRET: &str = "test-webhook-secret-0123456789";

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

/// The flags of a service, as its command line has them.
#[derive(Parser)]
struct Flags<Config: Args> {
    #[command(flatten)]
    config: Config,
}

/// Starts a service with flags; `listen` gives it the socket that was bound for it.
fn begin<Config, Failed, Service>(
    flags: Vec<String>,
    listen: impl FnOnce(&mut Config, TcpListener),
    run: impl FnOnce(Config, Shutdown) -> Service,
) -> Running
where
    Config: Args,
    Failed: Error + Send + Sync + 'static,
    Service: Future<Output = Result<(), Failed>> + Send + 'static,
{
    let (listener, url) = bound();
    let mut config = Flags::<Config>::parse_from(flags).config;
    listen(&mut config, listener);
    let shutdown = Shutdown::new();
    let service = run(config, shutdown.clone());
    Running {
        shutdown,
        task: tokio::spawn(async move { service.await.map_err(anyhow::Error::from) }),
        url,
    }
}

/// A free port of this machine for something that binds it itself.
fn bound() -> (TcpListener, String) {
    match TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr().map(|a| (l, a))) {
        Ok((listener, address)) => (listener, format!("http://{address}")),
        Err(error) => panic!("no free port: {error}"),
    }
}

impl World {
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
    ///
    /// # Panics
    /// It can't be started.
    pub async fn proxy_database(&mut self) {
        let server = authority(&self.database_url);
        self.proxy = Some(proxy_to(Protocol::Postgres, &server).await);
    }

    /// Puts a proxy between Kafka and the services that are started from now on.
    ///
    /// # Panics
    /// It can't be started.
    pub async fn proxy_kafka(&mut self) {
        self.kafka_proxy = Some(proxy_to(Protocol::Kafka, &self.brokers).await);
    }

    /// Starts one more order service.
    pub fn start_order(&mut self) {
        self.start_order_with(&[]);
    }

    /// Starts one more order service that differs from the others in these flags.
    pub fn start_order_with(&mut self, more: &[&str]) {
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
        let listen = |config: &mut order::Config, socket| config.listener = Some(socket);
        self.order.push(begin(flags, listen, order::run));
    }

    /// Starts the payment service.
    pub fn start_payment(&mut self) {
        let mut flags = self.flags("payment", &self.database_url);
        let gateway = self
            .gateway
            .as_ref()
            .map_or("", |gateway| gateway.url.as_str());
        flags.extend(["--gateway-url", gateway].map(str::to_owned));
        flags.extend(["--webhook-secret", WEBHOOK_SECRET].map(str::to_owned));
        let listen = |config: &mut payment::Config, socket| config.payment_listener = Some(socket);
        self.payment = Some(begin(flags, listen, payment::run));
    }

    /// Starts the stock service.
    pub fn start_stock(&mut self) {
        let flags = self.flags("stock", &self.database_url);
        let listen = |config: &mut stock::Config, socket| config.listener = Some(socket);
        self.stock = Some(begin(flags, listen, stock::run));
    }

    fn start_gateway(&mut self) {
        let mut flags = vec!["gateway-sim".to_owned()];
        flags.extend(["--webhook-secret", WEBHOOK_SECRET].map(str::to_owned));
        flags.extend(self.options.gateway_flags.clone());
        let listen = |config: &mut gateway_sim::Config, socket| {
            config.gateway_listener = Some(socket);
        };
        self.gateway = Some(begin(flags, listen, gateway_sim::run));
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

    /// Stops everything in order, the gateway too.
    pub(super) async fn stop_all(&mut self) {
        self.stop_services().await;
        if let Some(gateway) = self.gateway.take() {
            gateway.stop().await;
        }
    }
}

async fn proxy_to(protocol: Protocol, target: &str) -> Proxy {
    match Proxy::start(protocol, target).await {
        Ok(proxy) => proxy,
        Err(error) => panic!("no proxy: {error}"),
    }
}
