//! Charges, voids and refunds through the payment gateway; receives its webhooks.
//!
//! - [`charge_payments`]: the consumer of `orders.v1`; guards, charges ([`pool`]).
//! - [`record_results`]: one way for everything that the gateway says.
//! - [`sweep_payments`], [`execute_refunds`]: unknown outcomes are asked for, never guessed.
//! - [`webhooks`], [`http`]: signed hints.
//! - [`gateway`] is the port to a provider, [`http_gateway`] the provider over HTTP.

pub mod charge_payments;
pub mod config;
pub mod desk;
pub mod execute_refunds;
pub mod gateway;
pub mod http;
pub mod http_gateway;
pub mod pool;
pub mod record_results;
pub mod sweep_payments;
pub mod webhooks;
mod wire;

use std::{sync::Arc, time::Duration};

use contracts::TopicNames;
use messaging::{ConsumerConfig, ConsumerError, RelayConfig};
use platform::{
    Ops, Shutdown,
    config::{Listen, Unsafe},
    periodic, shutdown,
};
use secrecy::ExposeSecret;
use store::{Store, StoreError, StoreOptions};

use crate::{
    charge_payments::ChargePayments, desk::Desk, execute_refunds::sweep_refunds,
    http_gateway::HttpGateway, pool::Pool, record_results::Recorder,
    sweep_payments::sweep_payments,
};

pub use config::Config;

/// How long a row that is being worked on is left alone by the sweeps. Longer than a job's wait in
/// the pool and its call together; well within the grace that expiry gives.
pub const LEASE: Duration = Duration::from_secs(15);

/// How often the sweeps look.
const SWEEP_EVERY: Duration = Duration::from_millis(500);
/// Rows that one pass takes.
const SWEEP_BATCH: i64 = 64;
/// Calls of one pass at a time.
const SWEEP_CONCURRENCY: usize = 16;
/// How often readiness is looked at.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Why the service could not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The settings or the servers are unsafe.
    #[error(transparent)]
    Unsafe(#[from] Unsafe),
    /// The database's address can't be used, or the database refuses us.
    #[error("the database")]
    Store(#[source] StoreError),
    /// The consumer can't be made.
    #[error("the consumer of orders.v1")]
    Consumer(#[source] ConsumerError),
    /// The address can't be listened on.
    #[error("serving webhooks")]
    Serve(#[source] std::io::Error),
}

/// Runs until shutdown begins, then takes no more work, finishes what is at the gateway, records
/// it and leaves (P13). While PostgreSQL or Kafka is away it waits, not ready.
///
/// # Errors
/// [`RunError`]: see its variants.
pub async fn run(config: Config, shutdown: Shutdown) -> Result<(), RunError> {
    let mut problems = Unsafe::default();
    config.check(&mut problems);
    let options = options(&config);
    let store = Store::connect(&options).map_err(RunError::Store)?;
    let ops = Ops::new();
    ops.set("database", false, "not asked yet");
    if !check_server(&store, &mut problems, &shutdown).await? {
        return Ok(());
    }
    problems.into_result()?;
    let gateway = HttpGateway::new(
        &config.gateway_url,
        config.gateway_timeout(),
        config.payment_concurrency,
    )
    .map_err(|error| Unsafe {
        problems: vec![error.to_string()],
    })?;

    let own = shutdown.child();
    let recorder = Recorder::start(store.clone(), &own);
    let desk = Desk::new(Arc::new(gateway), recorder.clone());
    let pool = Pool::start(desk.clone(), config.payment_concurrency, &own);
    sweep(&store, desk, &own);
    watch(&store, &ops, &own);
    relay(&config, options, &store, &own);
    let router = http::router(recorder, config.webhook_secret.clone()).merge(ops.router());
    let consumer = consumer(&config, &store, pool, ops, &own);
    let listen = config
        .payment_listener
        .map_or(Listen::Address(config.payment_listen), Listen::Bound);
    let served = async {
        let served = platform::serve(listen, router, own.clone()).await;
        own.begin();
        served.map_err(RunError::Serve)
    };
    let consumed = async {
        let consumed = consumer.await;
        own.begin();
        consumed.map_err(RunError::Consumer)
    };
    let (served, consumed) = tokio::join!(served, consumed);
    if !own.finished(shutdown::GRACE).await {
        tracing::warn!("some work was cut off at the end; the sweep of another process does it");
    }
    store.close().await;
    served.and(consumed)
}

fn options(config: &Config) -> StoreOptions {
    let url = config.common.database_url.expose_secret();
    StoreOptions {
        max_connections: config.common.db_connections,
        ..StoreOptions::background(url, "holdfast payment")
    }
}

/// Asks PostgreSQL whether it is safe, until it answers; `false` when shutdown came first.
async fn check_server(
    store: &Store,
    problems: &mut Unsafe,
    shutdown: &Shutdown,
) -> Result<bool, RunError> {
    loop {
        match store.check_safety().await {
            Ok(found) => {
                problems.problems.extend(found);
                return Ok(true);
            }
            Err(error) if error.is_transient() && problems.problems.is_empty() => {
                tracing::warn!(%error, "waiting for the database");
            }
            // What is known to be wrong is said at once, also when the database is away.
            Err(error) if error.is_transient() => return Ok(true),
            Err(error) => return Err(RunError::Store(error)),
        }
        tokio::select! {
            () = shutdown.begun() => return Ok(false),
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
    }
}

fn sweep(store: &Store, desk: Desk<HttpGateway>, shutdown: &Shutdown) {
    let (payments_store, payments_desk) = (store.clone(), desk.clone());
    periodic::spawn(shutdown, SWEEP_EVERY, move || {
        let (store, desk) = (payments_store.clone(), payments_desk.clone());
        async move { report("payments", sweep_payments(&store, &desk).await) }
    });
    let store = store.clone();
    periodic::spawn(shutdown, SWEEP_EVERY, move || {
        let (store, desk) = (store.clone(), desk.clone());
        async move { report("refunds", sweep_refunds(&store, &desk).await) }
    });
}

fn report(what: &'static str, swept: Result<usize, StoreError>) {
    if let Err(error) = swept {
        tracing::warn!(%error, sweep = what, "a pass of the sweep failed; the next one does it");
    }
}

/// Readiness: the consumer tells of itself, with its heartbeat; this looks whether PostgreSQL answers.
fn watch(store: &Store, ops: &Ops, shutdown: &Shutdown) {
    let (store, ops) = (store.clone(), ops.clone());
    periodic::spawn(shutdown, WATCH_EVERY, move || {
        let (store, ops) = (store.clone(), ops.clone());
        async move {
            match store.ping().await {
                Ok(()) => ops.set("database", true, "answers"),
                Err(error) => ops.set("database", false, error.to_string()),
            }
        }
    });
}

fn relay(config: &Config, options: StoreOptions, store: &Store, shutdown: &Shutdown) {
    if !config.common.relay {
        return;
    }
    let relay = RelayConfig {
        options,
        store: store.clone(),
        brokers: config.common.kafka_brokers.clone(),
        names: TopicNames::new(&config.common.topic_suffix),
        instance: "payment".to_owned(),
    };
    shutdown.spawn(messaging::relay::run(relay, shutdown.clone()));
}

fn consumer(
    config: &Config,
    store: &Store,
    pool: Pool,
    ops: Ops,
    shutdown: &Shutdown,
) -> impl Future<Output = Result<(), ConsumerError>> + use<> {
    let names = TopicNames::new(&config.common.topic_suffix);
    let consumer = ConsumerConfig::new(config.common.kafka_brokers.clone(), names, "payment");
    let handler = ChargePayments::new(store.clone(), pool);
    messaging::consumer::run(handler, consumer, store.clone(), ops, shutdown.clone())
}
