//! The service as a process: what is checked before it starts, what runs, how it ends.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use contracts::TopicNames;
use domain::deadline::HoldRules;
use messaging::{ConsumerConfig, ConsumerError, RelayConfig, Stall};
use platform::{
    Ops, Shutdown,
    config::{Listen, Unsafe},
    periodic, shutdown,
};
use secrecy::ExposeSecret;
use store::{Store, StoreError, StoreOptions};

use crate::{
    Config, SWEEP_BATCH, charge_missed::ChargeMissed, charge_payments::ChargePayments,
    compare_journal::CompareJournal, desk::Desk, execute_refunds::sweep_refunds, http,
    http_gateway::HttpGateway, pool::Pool, record_results::Recorder,
    sweep_payments::sweep_payments,
};

/// How often the sweeps look.
const SWEEP_EVERY: Duration = Duration::from_millis(500);
/// How often the gateway's journal is looked at.
const COMPARE_EVERY: Duration = Duration::from_secs(5);
/// How often it is asked whether an outage has closed.
const MISSED_EVERY: Duration = Duration::from_secs(1);
/// How often readiness is looked at.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// How often a PostgreSQL that is away at the start is asked again.
const START_RETRY: Duration = Duration::from_secs(1);
/// How long connections may take to close.
const CLOSE_WITHIN: Duration = Duration::from_millis(500);

/// Why the service could not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The settings or the servers are unsafe.
    #[error(transparent)]
    Unsafe(#[from] Unsafe),
    /// The database refuses us.
    #[error("asking the database whether it is safe")]
    Store(#[source] StoreError),
    /// The address can't be listened on.
    #[error("listening for webhooks")]
    Bind(#[source] std::io::Error),
    /// The consumer can't be made.
    #[error("the consumer of orders.v1")]
    Consumer(#[source] ConsumerError),
}

/// Runs until shutdown begins, then takes no more work, finishes what is at the gateway, records
/// it and leaves (P13). While PostgreSQL or Kafka is away it waits, not ready.
///
/// # Errors
/// [`RunError`]: see its variants.
pub async fn run(mut config: Config, shutdown: Shutdown) -> Result<(), RunError> {
    let (store, gateway) = connect(&config)?;
    let (own, ops) = (shutdown.child(), Ops::new());
    ops.set("started", false, "waiting for postgresql");
    let listener = match config.payment_listener.take() {
        Some(bound) => bound,
        None => std::net::TcpListener::bind(config.payment_listen).map_err(RunError::Bind)?,
    };
    let recorder = Recorder::start(store.clone(), &own);
    let router = http::router(recorder.clone(), config.webhook_secret.clone()).merge(ops.router());
    let served = own.spawn(platform::serve(
        Listen::Bound(listener),
        router,
        own.clone(),
    ));

    let desk = Desk::new(Arc::new(gateway), recorder);
    let outcome = match check_server(&config, &store, &own).await {
        Ok(()) if own.has_begun() => Ok(()),
        Ok(()) => {
            ops.set("started", true, "checked");
            work(&config, &store, desk, &ops, &own).await
        }
        Err(error) => Err(error),
    };
    ops.set("shutdown", false, "has begun");
    own.begin();
    match served.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(%error, "serving webhooks failed"),
        Err(error) => tracing::error!(%error, "serving webhooks ended in a panic"),
    }
    if !own
        .finished(shutdown::GRACE.saturating_sub(Duration::from_secs(1)))
        .await
    {
        tracing::warn!("some work was cut off at the end; the sweep of another process does it");
    }
    if tokio::time::timeout(CLOSE_WITHIN, store.close())
        .await
        .is_err()
    {
        tracing::warn!("some connections to postgresql were left open at the end");
    }
    outcome
}

/// Checks the settings; all that is wrong with them is said at once.
fn connect(config: &Config) -> Result<(Store, HttpGateway), RunError> {
    let mut found = Unsafe::default();
    config.check(&mut found);
    let store = Store::connect(&options(config));
    let gateway = HttpGateway::new(
        &config.gateway_url,
        config.gateway_timeout(),
        config.payment_concurrency,
    );
    match (store, gateway) {
        (Ok(store), Ok(gateway)) => {
            found.into_result()?;
            Ok((store, gateway))
        }
        (store, gateway) => {
            if let Err(error) = store {
                found.check(true, format!("DATABASE_URL: {error}"));
            }
            if let Err(error) = gateway {
                found.check(true, error.to_string());
            }
            Err(found.into())
        }
    }
}

fn options(config: &Config) -> StoreOptions {
    let url = config.common.database_url.expose_secret();
    StoreOptions {
        max_connections: config.common.db_connections.max(2),
        ..StoreOptions::background(url, "holdfast payment")
    }
}

/// Waits for PostgreSQL as long as it takes, and refuses when it is not safe to work on.
async fn check_server(config: &Config, store: &Store, own: &Shutdown) -> Result<(), RunError> {
    loop {
        match store.check_safety().await {
            Ok(mut problems) => {
                problems.extend(messaging::admin::unsafe_topics(&config.common).await);
                return Ok(Unsafe { problems }.into_result()?);
            }
            Err(error) if error.is_transient() => {
                tracing::warn!(error = &error as &dyn Error, "waiting for postgresql");
            }
            Err(error) => return Err(RunError::Store(error)),
        }
        tokio::select! {
            () = own.begun() => return Ok(()),
            () = tokio::time::sleep(START_RETRY) => {}
        }
    }
}

/// Starts everything and consumes until shutdown begins.
async fn work(
    config: &Config,
    store: &Store,
    desk: Desk<HttpGateway>,
    ops: &Ops,
    own: &Shutdown,
) -> Result<(), RunError> {
    let pool = Pool::start(desk.clone(), config.payment_concurrency, own);
    let rules = config
        .common
        .holds
        .rules(HoldRules::parse)
        .unwrap_or_default();
    let handler = ChargePayments::new(store.clone(), pool).with_rules(rules);
    sweep(store, desk.clone(), own);
    compare(store, desk, own);
    look_for_missed(store, &handler, own);
    watch(store, ops, own);
    relay(config, store, own);
    let names = TopicNames::new(&config.common.topic_suffix);
    let mut consumer = ConsumerConfig::new(config.common.kafka_brokers.clone(), names, "payment");
    consumer.stall = Stall::after(Duration::from_secs(config.common.stall_seconds));
    messaging::consumer::run(handler, consumer, store.clone(), ops.clone(), own.clone())
        .await
        .map_err(RunError::Consumer)
}

fn sweep(store: &Store, desk: Desk<HttpGateway>, own: &Shutdown) {
    let (payments_store, payments_desk, ends) = (store.clone(), desk.clone(), own.clone());
    periodic::spawn(own, SWEEP_EVERY, move || {
        let (store, desk, ends) = (payments_store.clone(), payments_desk.clone(), ends.clone());
        async move {
            while !ends.has_begun() && is_full("payments", sweep_payments(&store, &desk).await) {}
        }
    });
    let (store, ends) = (store.clone(), own.clone());
    periodic::spawn(own, SWEEP_EVERY, move || {
        let (store, desk, ends) = (store.clone(), desk.clone(), ends.clone());
        async move {
            while !ends.has_begun() && is_full("refunds", sweep_refunds(&store, &desk).await) {}
        }
    });
}

/// Orders that an outage of ours kept from being charged.
fn look_for_missed(store: &Store, charges: &ChargePayments, own: &Shutdown) {
    let missed = ChargeMissed::new(store.clone(), charges.clone());
    let missed = Arc::new(missed);
    periodic::spawn(own, MISSED_EVERY, move || {
        let missed = Arc::clone(&missed);
        async move {
            if let Err(error) = missed.look().await {
                let error = &error as &dyn Error;
                tracing::warn!(error, "the look for orders without a payment failed");
            }
        }
    });
}

/// The gateway's journal. A failure is told when it begins, not at every look.
fn compare(store: &Store, desk: Desk<HttpGateway>, own: &Shutdown) {
    let journal = CompareJournal::new(store.clone(), desk);
    let state = Arc::new((journal, AtomicBool::new(false)));
    periodic::spawn(own, COMPARE_EVERY, move || {
        let state = Arc::clone(&state);
        async move {
            let (journal, failing) = &*state;
            let looked = journal.look().await;
            let failed_before = failing.swap(looked.is_err(), Ordering::Relaxed);
            if let Err(error) = looked
                && !failed_before
            {
                let error = &error as &dyn Error;
                tracing::warn!(error, "the gateway's journal can't be compared");
            }
        }
    });
}

/// Whether a pass took all that it may: then more is due.
fn is_full(what: &'static str, swept: Result<usize, StoreError>) -> bool {
    match swept {
        Ok(rows) => i64::try_from(rows).is_ok_and(|rows| rows >= SWEEP_BATCH),
        Err(error) => {
            let error = &error as &dyn Error;
            tracing::warn!(
                error,
                sweep = what,
                "a pass of a sweep failed; the next one does it"
            );
            false
        }
    }
}

/// Readiness: the consumer tells of itself, with its heartbeat; this looks whether PostgreSQL
/// answers.
fn watch(store: &Store, ops: &Ops, own: &Shutdown) {
    let (store, ops) = (store.clone(), ops.clone());
    periodic::spawn(own, WATCH_EVERY, move || {
        let (store, ops) = (store.clone(), ops.clone());
        async move {
            match store.ping().await {
                Ok(()) => ops.set("database", true, "answers"),
                Err(error) => ops.set("database", false, error.to_string()),
            }
        }
    });
}

fn relay(config: &Config, store: &Store, own: &Shutdown) {
    if !config.common.relay {
        return;
    }
    let relay = RelayConfig {
        options: options(config),
        store: store.clone(),
        brokers: config.common.kafka_brokers.clone(),
        names: TopicNames::new(&config.common.topic_suffix),
        instance: "payment".to_owned(),
        silence_max: messaging::relay::SILENCE_MAX,
    };
    own.spawn(messaging::relay::run(relay, own.clone()));
}
