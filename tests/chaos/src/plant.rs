//! Everything that runs: three servers of our own, two replicas of each service (one gateway, which
//! stands for somebody else's), and a link between each kind of service and each server.

mod gateway;
mod links;
mod replicas;
mod settings;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use cli::{
    servers::{Ports, native},
    services::ServiceName,
};
use contracts::TopicNames;
use messaging::admin;
use nix::sys::signal::Signal;
use sqlx::Connection;
use tokio::sync::Mutex;

pub use self::links::Links;
use crate::{
    link::Link,
    service::{Exit, Replica},
};

/// The key of the shop.
pub const SHOP_KEY: &str = "chaos-shop-key-0123456789";
/// The key of operators.
pub const OPERATOR_KEY: &str = "chaos-operator-key-0123456789";

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
    /// Held by whoever sets crash points or stops a member of a group for a purpose: two at a time
    /// would undo each other's work.
    pub steered: Mutex<()>,
    /// Held by whoever makes the gate wrong by hand, which ends in a rebuild, and by whoever measures
    /// how soon it is right again after something else.
    pub gate_moved: Mutex<()>,
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
        let links = links::link(postgres.port(), redis.port(), &mut kafka).await?;
        cli::prepare::migrate(&database_url).await?;
        admin::wait_ready(&brokers, Duration::from_secs(60)).await?;
        admin::ensure_topics(&brokers, &TopicNames::new(""), 6, 1).await?;
        let replicas = replicas::all(program, &logs, &database_url, &redis_url, &links)?;
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
            steered: Mutex::default(),
            gate_moved: Mutex::default(),
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
