//! Starts the service and stops it (P13, P15). What runs meanwhile: the consumer, the relay, and the
//! use cases on timers (`upkeep`).

mod servers;
mod upkeep;

use std::{sync::Arc, time::Duration};

use contracts::TopicNames;
use domain::deadline::HoldRules;
use messaging::{ConsumerConfig, RelayConfig, Stall};
use platform::{
    Ops, Shutdown,
    config::{Listen, Unsafe},
    shutdown,
};
use store::StoreOptions;

use self::upkeep::Upkeep;
use crate::{Config, ExpireOrders, SettleOrders, Stock, health::Health, leader::Leader};

/// Why the service does not run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Settings or servers are unsafe.
    #[error(transparent)]
    Unsafe(#[from] Unsafe),
    /// The operations port can't be bound.
    #[error("binding the operations port")]
    Bind(#[source] std::io::Error),
    /// The consumer can't be made.
    #[error("starting the consumer")]
    Consumer(#[from] messaging::ConsumerError),
    /// It did not end within the time that it had.
    #[error("tasks were still running {0:?} after the shutdown began")]
    Unfinished(Duration),
}

/// Runs the stock service until shutdown begins, and ends within 10 s of it.
///
/// # Errors
/// [`StartError`]: it refuses to start, or its port or consumer can't be had.
pub async fn run(config: Config, shutdown: Shutdown) -> Result<(), StartError> {
    let (stock, options) = servers::connect(&config)?;
    let ops = Ops::new();
    let own = shutdown.child();
    ops.set("started", false, "waiting for PostgreSQL");
    let mut port = serve(config.listener.as_ref(), config.listen, &ops, &own)?;

    let started = tokio::select! {
        started = servers::wait_until_safe(&config, &stock, &ops, &own) => started,
        served = &mut port => served_early(served),
    };
    let outcome = match started {
        Ok(()) if own.has_begun() => Ok(()),
        Ok(()) => work(&config, &stock, options, &ops, &own, &mut port).await,
        Err(error) => Err(error),
    };
    own.begin();
    let finished = own
        .finished(shutdown::GRACE.saturating_sub(Duration::from_secs(1)))
        .await;
    // A task that is still running holds a connection: the process ends all the same.
    if tokio::time::timeout(Duration::from_millis(500), stock.store.close())
        .await
        .is_err()
    {
        tracing::warn!("connections to the database were still in use");
    }
    outcome?;
    if finished {
        Ok(())
    } else {
        Err(StartError::Unfinished(shutdown::GRACE))
    }
}

type Port = tokio::task::JoinHandle<std::io::Result<()>>;

fn serve(
    listener: Option<&std::net::TcpListener>,
    address: std::net::SocketAddr,
    ops: &Ops,
    own: &Shutdown,
) -> Result<Port, StartError> {
    let listen = match listener {
        Some(bound) => Listen::Bound(bound.try_clone().map_err(StartError::Bind)?),
        None => Listen::Bound(std::net::TcpListener::bind(address).map_err(StartError::Bind)?),
    };
    Ok(own.spawn(platform::serve(listen, ops.router(), own.clone())))
}

fn served_early(
    served: Result<std::io::Result<()>, tokio::task::JoinError>,
) -> Result<(), StartError> {
    match served {
        Ok(Err(error)) => Err(StartError::Bind(error)),
        Ok(Ok(())) | Err(_) => Ok(()),
    }
}

async fn work(
    config: &Config,
    stock: &Stock,
    options: StoreOptions,
    ops: &Ops,
    own: &Shutdown,
    port: &mut Port,
) -> Result<(), StartError> {
    let expire = Arc::new(ExpireOrders::new(
        stock.clone(),
        config.required_consumers(),
    ));
    // Before the consumer beats: an outage that this process was part of is seen by its silence.
    let health = Health::new("expiring orders");
    loop {
        let judged = expire.expire_due_orders().await;
        health.note(&judged);
        if own.has_begun() || !judged.is_err_and(|error| error.is_transient()) {
            break;
        }
        servers::pause(own).await;
    }

    let leader = Leader::new();
    own.spawn(
        leader
            .clone()
            .run(stock.store.clone(), options.clone(), own.clone()),
    );
    upkeep::everywhere(stock, expire, health, own);
    Upkeep {
        stock,
        leader: &leader,
        own,
    }
    .start(config, &options);
    servers::watch(stock, &leader, ops, own);

    let common = &config.common;
    let names = TopicNames::new(&common.topic_suffix);
    let instance = format!("stock-{}", std::process::id());
    if common.relay {
        let relay = RelayConfig {
            brokers: common.kafka_brokers.clone(),
            names: names.clone(),
            instance: instance.clone(),
            silence_max: messaging::relay::SILENCE_MAX,
            store: stock.store.clone(),
            options,
        };
        own.spawn(messaging::relay::run(relay, own.clone()));
    }
    let mut consumer = ConsumerConfig::new(common.kafka_brokers.clone(), names, instance);
    consumer.stall = Stall::after(Duration::from_secs(common.stall_seconds));
    let rules = common.holds.rules(HoldRules::parse).unwrap_or_default();
    let handler = SettleOrders::new(stock.clone()).with_rules(rules);
    let consumes = messaging::consumer::run(
        handler,
        consumer,
        stock.store.clone(),
        ops.clone(),
        own.clone(),
    );
    tokio::select! {
        consumed = consumes => Ok(consumed?),
        served = port => served_early(served),
    }
}
