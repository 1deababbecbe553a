//! Everything that runs: three servers of our own, two replicas of each service (one gateway, which
//! stands for somebody else's), and a link between each kind of service and each server.

mod settings;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use cli::{
    servers::{Ports, free_port, native},
    services::ServiceName,
};
use contracts::TopicNames;
use messaging::admin;
use nix::sys::signal::Signal;
use sqlx::Connection;
use tokio::sync::Mutex;

use crate::{
    http::Http,
    link::Link,
    service::{Exit, Replica},
};

/// The key of the shop.
pub const SHOP_KEY: &str = "chaos-shop-key-0123456789";
/// The key of operators.
pub const OPERATOR_KEY: &str = "chaos-operator-key-0123456789";
/// Kinds of service that have links of their own.
const LINKED: [ServiceName; 3] = [ServiceName::Order, ServiceName::Payment, ServiceName::Stock];

/// The links of one kind of service.
#[derive(Debug)]
pub struct Links {
    /// Whose.
    pub service: ServiceName,
    /// To PostgreSQL.
    pub postgres: Link,
    /// To Redis.
    pub redis: Link,
    /// To Kafka.
    pub kafka: Link,
}

/// The system.
#[derive(Debug)]
pub struct Plant {
    /// Where logs and data are.
    pub dir: PathBuf,
    /// PostgreSQL.
    pub postgres: Mutex<native::Postgres>,
    /// Redis.
    pub redis: Mutex<native::Redis>,
    /// Kafka.
    pub kafka: Mutex<native::Kafka>,
    /// Straight to PostgreSQL.
    pub database_url: String,
    /// Straight to Redis.
    pub redis_url: String,
    /// Straight to Kafka.
    pub brokers: String,
    /// One set for each kind of service.
    pub links: Vec<Links>,
    /// The gateway first, then two of each.
    pub replicas: Vec<Replica>,
}

impl Plant {
    /// Starts everything and returns when all is ready.
    ///
    /// # Errors
    /// A server or service did not start.
    pub async fn start(dir: &Path, program: &Path) -> anyhow::Result<Self> {
        let logs = dir.join("logs");
        std::fs::create_dir_all(&logs)?;
        let homes = ["postgres", "redis", "kafka"].map(|name| dir.join(name));
        let (postgres, redis, kafka) = tokio::try_join!(
            async { anyhow::Ok(native::Postgres::start(&homes[0], Ports::Free).await?) },
            async { anyhow::Ok(native::Redis::start(&homes[1], Ports::Free).await?) },
            kafka(&homes[2]),
        )?;
        let mut kafka = kafka;
        let (database_url, redis_url, brokers) = (postgres.url(), redis.url(), kafka.url());
        let links = link(postgres.port(), redis.port(), &mut kafka).await?;
        cli::prepare::migrate(&database_url).await?;
        admin::wait_ready(&brokers, Duration::from_secs(60)).await?;
        admin::ensure_topics(&brokers, &TopicNames::new(""), 6, 1).await?;
        let replicas = replicas(program, &logs, &database_url, &redis_url, &links)?;
        let plant = Self {
            dir: dir.to_owned(),
            postgres: Mutex::new(postgres),
            redis: Mutex::new(redis),
            kafka: Mutex::new(kafka),
            database_url,
            redis_url,
            brokers,
            links,
            replicas,
        };
        for replica in &plant.replicas {
            replica.start().await?;
        }
        for replica in &plant.replicas {
            replica.ready().await?;
        }
        Ok(plant)
    }

    /// The replicas of a service.
    pub fn of(&self, service: ServiceName) -> impl Iterator<Item = &Replica> {
        self.replicas
            .iter()
            .filter(move |replica| replica.service == service)
    }

    /// One replica, counted from 0.
    ///
    /// # Errors
    /// There are fewer.
    pub fn replica(&self, service: ServiceName, number: usize) -> anyhow::Result<&Replica> {
        self.of(service).nth(number).context("no such replica")
    }

    /// The links of a service.
    ///
    /// # Errors
    /// It has none.
    pub fn links_of(&self, service: ServiceName) -> anyhow::Result<&Links> {
        self.links
            .iter()
            .find(|links| links.service == service)
            .context("no such links")
    }

    /// Every link.
    pub fn all_links(&self) -> impl Iterator<Item = &Link> {
        self.links
            .iter()
            .flat_map(|links| [&links.postgres, &links.redis, &links.kafka])
    }

    /// Where the order services answer.
    #[must_use]
    pub fn order_urls(&self) -> Vec<String> {
        self.of(ServiceName::Order)
            .map(|replica| replica.url.clone())
            .collect()
    }

    /// Where the gateway answers.
    #[must_use]
    pub fn gateway_url(&self) -> String {
        self.of(ServiceName::GatewaySim)
            .map(|replica| replica.url.clone())
            .collect()
    }

    /// Starts again what has ended by itself, every 100 ms, for ever.
    pub async fn supervise(&self) {
        loop {
            for replica in &self.replicas {
                if let Err(error) = replica.supervise().await {
                    eprintln!("{}: {error:#}", replica.name);
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// A connection of our own to PostgreSQL.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn sql(&self) -> anyhow::Result<sqlx::PgConnection> {
        let connect = sqlx::PgConnection::connect(&self.database_url);
        Ok(tokio::time::timeout(Duration::from_secs(10), connect).await??)
    }

    /// A connection of our own to Redis.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn redis_connection(&self) -> anyhow::Result<redis::aio::MultiplexedConnection> {
        let client = redis::Client::open(self.redis_url.as_str())?;
        let patient = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_secs(10)))
            .set_response_timeout(Some(Duration::from_secs(10)));
        let connect = client.get_multiplexed_async_connection_with_config(&patient);
        Ok(tokio::time::timeout(Duration::from_secs(10), connect).await??)
    }

    /// Undoes every fault that may still be there; may be called at any time.
    ///
    /// # Errors
    /// Something does not come back.
    pub async fn heal(&self) -> anyhow::Result<()> {
        for link in self.all_links() {
            link.heal();
        }
        bring_back(&mut *self.postgres.lock().await).await?;
        bring_back(&mut *self.redis.lock().await).await?;
        bring_back(&mut *self.kafka.lock().await).await?;
        self.settings_as_usual().await?;
        for replica in &self.replicas {
            replica.signal(Signal::SIGCONT).await;
            replica.start().await?;
        }
        for replica in &self.replicas {
            replica.ready().await?;
        }
        Ok(())
    }

    /// What faults change in the servers while they run.
    async fn settings_as_usual(&self) -> anyhow::Result<()> {
        let mut conn = self.sql().await?;
        for statement in [
            "set default_transaction_read_only = off",
            "alter system reset default_transaction_read_only",
            "select pg_reload_conf()",
        ] {
            sqlx::query(statement).execute(&mut conn).await?;
        }
        let mut conn = self.redis_connection().await?;
        for words in [
            &["REPLICAOF", "NO", "ONE"][..],
            &["CONFIG", "SET", "maxmemory", "0"],
            &["CONFIG", "SET", "maxmemory-policy", "noeviction"],
        ] {
            let mut command = redis::cmd(words[0]);
            for word in &words[1..] {
                command.arg(*word);
            }
            let _: () = command.query_async(&mut conn).await?;
        }
        Ok(())
    }

    /// Every end that no fault had asked for.
    #[must_use]
    pub fn ended_by_themselves(&self) -> Vec<Exit> {
        self.replicas
            .iter()
            .flat_map(Replica::ended_by_itself)
            .collect()
    }

    /// Ends the services, in order; those that did not end with 0 within 10 s.
    pub async fn stop_services(&self) -> Vec<String> {
        let stops = self.replicas.iter().map(|replica| async move {
            replica.signal(Signal::SIGCONT).await;
            match replica.stop(Duration::from_secs(15)).await {
                Ok(Some((_, true))) => None,
                Ok(Some((_, false))) => Some(format!("{} did not end with 0", replica.name)),
                Ok(None) => Some(format!("{} did not end within 15 s", replica.name)),
                Err(error) => Some(format!("{}: {error:#}", replica.name)),
            }
        });
        futures::future::join_all(stops)
            .await
            .into_iter()
            .flatten()
            .collect()
    }

    /// The behaviour that the gateway has outside faults: payment methods choose their fate.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn gateway_as_usual(&self) -> anyhow::Result<()> {
        let rule =
            |method: &str, outcome: &str| serde_json::json!({"method": method, "outcome": outcome});
        self.gateway(&serde_json::json!({
            "latency_ms": 5, "jitter_ms": 40, "decline_rate": 0.0, "hang_rate": 0.0, "hang_ms": 3_000, "late_ms": 75_000,
            "down": false, "webhooks": true, "webhook_delay_ms": 0, "webhook_duplicates": 1,
            "rules": [
                rule("card-declined", "decline"), rule("card-abandoned", "decline_not_final"),
                rule("card-hang", "hang"), rule("card-wrong", "wrong_amount"),
                rule("card-late", "late"), rule("card-late-declined", "late_decline"),
            ],
        }))
        .await
    }

    /// The webhook of a capture once more, as the gateway would send it.
    ///
    /// # Errors
    /// It is not taken.
    pub async fn webhook(&self, charge: &serde_json::Value) -> anyhow::Result<()> {
        let now = platform::clock::now();
        let body = serde_json::json!({
            "id": format!("evt_{}", contracts::ids::generate().simple()),
            "type": "charge.succeeded", "created_at": now.to_rfc3339(), "data": charge,
        })
        .to_string();
        let signature = gateway_sim::signature::sign(
            settings::WEBHOOK_SECRET,
            now.timestamp(),
            body.as_bytes(),
        );
        let replica = self.replica(ServiceName::Payment, 1)?;
        let request = hyper::Request::post(format!("{}/webhooks/gateway", replica.url))
            .header("content-type", "application/json")
            .header("holdfast-signature", signature)
            .body(http_body_util::Full::new(bytes::Bytes::from(body)))?;
        let client =
            hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
                .build_http();
        let answer = client.request(request).await?;
        anyhow::ensure!(answer.status().is_success(), "webhook: {}", answer.status());
        Ok(())
    }

    /// Changes how the gateway behaves.
    ///
    /// # Errors
    /// It does not answer, or refuses.
    pub async fn gateway(&self, change: &serde_json::Value) -> anyhow::Result<()> {
        let mut http = Http::new(&self.gateway_url(), "none")?;
        let answer = http
            .send(http::Method::PUT, "/v1/behaviour", None, Some(change))
            .await?;
        anyhow::ensure!(
            answer.status == 200,
            "the gateway answers {}",
            answer.text()
        );
        Ok(())
    }
}

async fn bring_back<R: native::Recipe>(server: &mut native::Server<R>) -> anyhow::Result<()> {
    let identity = server.identity();
    if identity.is_running() {
        identity.signal(Signal::SIGCONT);
    } else {
        server.restart().await?;
    }
    Ok(())
}

/// The broker; on a machine that does much else its first start may take too long, and its second
/// finds what the first has prepared.
async fn kafka(home: &Path) -> anyhow::Result<native::Kafka> {
    let mut tries = 0;
    loop {
        tries += 1;
        match native::Kafka::start(home, Ports::Free).await {
            Ok(kafka) => return Ok(kafka),
            Err(error) if tries < 3 => eprintln!("once more: {error}"),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Links, and listeners of Kafka that name them: a client that comes through a link is sent back
/// to the link.
async fn link(postgres: u16, redis: u16, kafka: &mut native::Kafka) -> anyhow::Result<Vec<Links>> {
    let mut links = Vec::new();
    let path = kafka.home().join("server.properties");
    let mut text = std::fs::read_to_string(&path)?;
    for (number, service) in LINKED.into_iter().enumerate() {
        let inner = free_port()?;
        let kafka = Link::to(inner).await?;
        let name = format!("LINK{number}");
        let more = [
            ("listeners=", format!("{name}://127.0.0.1:{inner}")),
            (
                "advertised.listeners=",
                format!("{name}://127.0.0.1:{}", kafka.port()),
            ),
            (
                "listener.security.protocol.map=",
                format!("{name}:PLAINTEXT"),
            ),
        ];
        text = text
            .lines()
            .map(|line| {
                let added = more.iter().find(|(name, _)| line.starts_with(name));
                match added {
                    Some((_, value)) => format!("{line},{value}\n"),
                    None => format!("{line}\n"),
                }
            })
            .collect();
        links.push(Links {
            service,
            postgres: Link::to(postgres).await?,
            redis: Link::to(redis).await?,
            kafka,
        });
    }
    if !text.contains("inter.broker.listener.name") {
        text.push_str("inter.broker.listener.name=PLAINTEXT\n");
    }
    std::fs::write(&path, text)?;
    for _ in 0..2 {
        if let Err(error) = kafka.restart().await {
            eprintln!("once more: {error}");
        } else {
            return Ok(links);
        }
    }
    kafka.restart().await?;
    Ok(links)
}

fn replicas(
    program: &Path,
    logs: &Path,
    database_url: &str,
    redis_url: &str,
    links: &[Links],
) -> anyhow::Result<Vec<Replica>> {
    let program = program
        .canonicalize()
        .with_context(|| format!("{} is not built", program.display()))?;
    let gateway = free_port()?;
    let payments = [free_port()?, free_port()?];
    let shared = settings::shared(logs, gateway, payments[0]);
    let make = |name: String, service: ServiceName, port: u16| {
        let mut variables: Vec<(String, String)> = shared
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect();
        let listen = (
            service.listen_variable().to_owned(),
            format!("127.0.0.1:{port}"),
        );
        variables.push(listen);
        if let Some(links) = links.iter().find(|links| links.service == service) {
            let through = |url: &str, link: &Link| through(url, link.port());
            variables.extend([
                (
                    "DATABASE_URL".to_owned(),
                    through(database_url, &links.postgres),
                ),
                ("REDIS_URL".to_owned(), through(redis_url, &links.redis)),
                (
                    "KAFKA_BROKERS".to_owned(),
                    format!("127.0.0.1:{}", links.kafka.port()),
                ),
            ]);
        }
        Replica::new(
            name,
            service,
            format!("http://127.0.0.1:{port}"),
            &program,
            logs,
            variables,
        )
    };
    let mut all = vec![make("gateway".into(), ServiceName::GatewaySim, gateway)];
    for (number, payment) in payments.into_iter().enumerate() {
        all.push(make(
            format!("order-{}", number + 1),
            ServiceName::Order,
            free_port()?,
        ));
        all.push(make(
            format!("payment-{}", number + 1),
            ServiceName::Payment,
            payment,
        ));
        all.push(make(
            format!("stock-{}", number + 1),
            ServiceName::Stock,
            free_port()?,
        ));
    }
    Ok(all)
}

/// The URL with another port on this machine.
fn through(url: &str, port: u16) -> String {
    let Some((before, rest)) = url.rsplit_once("127.0.0.1:") else {
        return url.to_owned();
    };
    let path = rest.find('/').map_or("", |at| &rest[at..]);
    format!("{before}127.0.0.1:{port}{path}")
}
