//! Starting and ending the service. It refuses unsafe settings, all named at once (P15); while
//! PostgreSQL is away it answers 503 and waits; when asked to end it is not ready at once, finishes
//! the requests in flight, flushes its stages, stops consuming and is gone within 10 s (P13).

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use contracts::{ConsumerName, TopicNames};
use domain::deadline::HoldRules;
use messaging::{ConsumerConfig, ConsumerError, Stall, relay::RelayConfig};
use platform::{Ops, Shutdown, config::Unsafe, periodic, shutdown};
use reservations::{Gate, GateConfig};
use secrecy::ExposeSecret;
use store::{PgClock, Probe, Store, StoreError, StoreOptions};
use tokio::sync::mpsc;

use crate::{
    Config,
    accept_orders::AcceptOrders,
    admit_orders::Next,
    catalogue::Catalogue,
    deciding::Deciding,
    health,
    http::{self, App, Keys, PerAddress},
    look_up,
    mode::{self, Backlog, POOL_WAIT, QUEUE_MAX},
    place_orders::PlaceOrders,
    request_orders::RequestOrders,
    sync_gate::SyncGate,
    watch_orders::WatchOrders,
};

/// Why the service can't start or run on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Unsafe or contradictory settings, here or at a server.
    #[error(transparent)]
    Unsafe(#[from] Unsafe),
    /// The address can't be bound.
    #[error("the address can't be bound")]
    Bind(#[source] std::io::Error),
    /// Something that waiting does not cure.
    #[error("the database can't be used")]
    Store(#[source] StoreError),
    /// The consumer of order requests can't be made.
    #[error("the consumer of order requests")]
    Consumer(#[source] ConsumerError),
}

/// Connections of the consumer of order requests, beside the API's.
const CONSUMER_CONNECTIONS: u32 = 3;

/// Connections of the look-up behind a refusal and of the sign of readiness: one each, and one whose
/// answer is no longer waited for.
const LOOK_UP_CONNECTIONS: u32 = 3;

/// Between two tries to reach PostgreSQL at the start.
const START_RETRY: Duration = Duration::from_millis(500);

/// How long Redis is waited for at the start: without it orders go on.
const GATE_AT_START: Duration = Duration::from_secs(2);

/// Between two signs of life of the consumer.
const BEAT_EVERY: Duration = Duration::from_secs(1);

/// What is left of the grace when the requests in flight are done.
const FLUSH_WITHIN: Duration = Duration::from_secs(4);

/// Of the grace, what is kept for closing connections and leaving.
const RESERVE: Duration = Duration::from_secs(1);

/// How long connections may take to close.
const CLOSE_WITHIN: Duration = Duration::from_millis(500);

/// The connections of the process.
struct Servers {
    /// For accepts. Readers, however many, can't take it.
    decide: Store,
    /// For the look-up behind a refusal and the sign of readiness. Accepts that wait for their COMMIT's
    /// answer can't take it.
    look_up: Store,
    /// For everything else that a caller waits for.
    api: Store,
    /// For everything else.
    background: Store,
    gate: Gate,
}

/// Runs until shutdown begins.
///
/// # Errors
/// [`RunError`]: see its variants.
pub async fn run(mut config: Config, shutdown: Shutdown) -> Result<(), RunError> {
    let servers = connect(&config)?;
    let listener = http::serve::bind(config.listen, config.listener.take())
        .await
        .map_err(RunError::Bind)?;
    let (own, ops) = (shutdown.child(), Ops::new());
    ops.set("started", false, "not checked yet");
    let clock = PgClock::new();
    let ttl_seconds = config.ttl_seconds().unwrap_or_default();
    let (app, catalogue) = assemble(&config, &servers, &clock, ttl_seconds, &own);
    let backlog = app.place.backlog();
    let sync = app.sync.clone();
    let router = http::router(Arc::new(app), &ops);
    let per_address = PerAddress::new(config.connections_per_address);
    let served = own.spawn(http::serve::serve(
        listener,
        router,
        per_address,
        own.clone(),
    ));

    let begun = say_when_it_ends(&ops, &own);
    mode::start(
        Probe::new(&background_options(&config)),
        vec![
            servers.decide.clone(),
            servers.look_up.clone(),
            servers.api.clone(),
            servers.background.clone(),
        ],
        servers.gate.clone(),
        &own,
    );

    // Until this is done the clock has no reading, so nothing is accepted.
    let started = check_servers(&config, &servers, &own).await;
    let consumed = match started {
        Ok(()) if own.has_begun() => Ok(()),
        Ok(()) => {
            let look_up = servers.look_up.clone();
            health::start(look_up, clock.clone(), backlog, ops.clone(), &own);
            ops.set("started", true, "checked");
            relay(&config, &servers, &own);
            consume(&config, &servers, clock, catalogue, sync, &ops, &own).await
        }
        Err(error) => Err(error),
    };
    own.begin();
    if served.await.is_err() {
        tracing::error!("serving ended in a panic");
    }
    let spent = begun.get().map(Instant::elapsed).unwrap_or_default();
    let left = shutdown::GRACE.saturating_sub(spent + RESERVE);
    if !own.finished(left.min(FLUSH_WITHIN)).await {
        tracing::warn!("some work was cut off at the end; the sweep does it");
    }
    // A connection whose server has fallen silent would be waited for without end.
    let closed = async {
        let Servers {
            decide,
            look_up,
            api,
            background,
            gate: _,
        } = &servers;
        futures::future::join_all([decide, look_up, api, background].map(Store::close)).await
    };
    if tokio::time::timeout(CLOSE_WITHIN, closed).await.is_err() {
        tracing::warn!("some connections to postgresql were left open at the end");
    }
    consumed
}

/// Readiness goes first, so that nobody sends new requests here; gives the moment.
fn say_when_it_ends(ops: &Ops, own: &Shutdown) -> Arc<OnceLock<Instant>> {
    let begun = Arc::new(OnceLock::new());
    let (ops, token, moment) = (ops.clone(), own.clone(), Arc::clone(&begun));
    own.spawn(async move {
        token.begun().await;
        ops.set("shutdown", false, "has begun");
        moment.get_or_init(platform::clock::monotonic);
    });
    begun
}

fn connect(config: &Config) -> Result<Servers, RunError> {
    let mut found = Unsafe::default();
    config.check(&mut found);
    let common = &config.common;
    let url = common.database_url.expose_secret();
    // One accept at a time, with a second run beside it: half is enough.
    let readers = (common.db_connections / 2).max(1);
    let pool = |max_connections, name| {
        Store::connect(&StoreOptions {
            max_connections,
            acquire_timeout: POOL_WAIT,
            statement_timeout: Duration::from_secs(2),
            ..StoreOptions::new(url, name)
        })
    };
    let decide = pool(
        common.db_connections.saturating_sub(readers).max(2),
        "holdfast order accept",
    );
    let look_up = pool(LOOK_UP_CONNECTIONS, "holdfast order look-up");
    let api = pool(readers, "holdfast order");
    let background = Store::connect(&background_options(config));
    let gate = Gate::new(GateConfig {
        key_prefix: common.key_prefix.clone(),
        reserve_timeout: Duration::from_millis(common.gate_timeout_ms.max(1)),
        ..GateConfig::new(common.redis_url.expose_secret())
    });
    match (decide, look_up, api, background, gate) {
        (Ok(decide), Ok(look_up), Ok(api), Ok(background), Ok(gate)) => {
            found.into_result()?;
            Ok(Servers {
                decide,
                look_up,
                api,
                background,
                gate,
            })
        }
        (decide, _, _, _, gate) => {
            if let Err(error) = decide {
                found.check(true, format!("DATABASE_URL: {error}"));
            }
            if let Err(error) = gate {
                found.check(true, format!("REDIS_URL or HOLDFAST_KEY_PREFIX: {error}"));
            }
            Err(found.into())
        }
    }
}

fn background_options(config: &Config) -> StoreOptions {
    let url = config.common.database_url.expose_secret();
    StoreOptions {
        max_connections: CONSUMER_CONNECTIONS,
        ..StoreOptions::background(url, "holdfast order background")
    }
}

/// Starts the stages, from the last to the first.
fn assemble(
    config: &Config,
    servers: &Servers,
    clock: &PgClock,
    ttl_seconds: i32,
    own: &Shutdown,
) -> (App, Arc<Catalogue>) {
    let rules = config
        .common
        .holds
        .rules(HoldRules::parse)
        .unwrap_or_default();
    let catalogue = Arc::new(Catalogue::new(rules));
    let sync = SyncGate::start(servers.background.clone(), servers.gate.clone(), own);
    let (accept, to_accept) = mpsc::channel(QUEUE_MAX);
    let stage = AcceptOrders {
        store: servers.decide.clone(),
        clock: clock.clone(),
        catalogue: Arc::clone(&catalogue),
        sync: sync.clone(),
    };
    own.spawn(stage.run(to_accept));
    let (look_up, to_look_up) = mpsc::channel(QUEUE_MAX);
    let deciding = Deciding::default();
    own.spawn(look_up::run(
        servers.look_up.clone(),
        sync.clone(),
        deciding.clone(),
        to_look_up,
    ));
    let place = PlaceOrders::new(
        Next {
            accept,
            look_up,
            deciding,
            store: servers.decide.clone(),
        },
        servers.gate.clone(),
        clock.clone(),
        Arc::clone(&catalogue),
        Backlog::default(),
        ttl_seconds,
        own.clone(),
    );
    let app = App {
        keys: Keys::new(config.shop.clone(), &config.api_key, &config.operator_key),
        store: servers.api.clone(),
        clock: clock.clone(),
        catalogue: Arc::clone(&catalogue),
        place,
        sync,
        watch: WatchOrders::start(servers.api.clone(), own),
        ttl_seconds,
    };
    (app, catalogue)
}

/// Waits for PostgreSQL as long as it takes and for Redis a moment, and refuses when either is not
/// safe to work on.
async fn check_servers(config: &Config, servers: &Servers, own: &Shutdown) -> Result<(), RunError> {
    let problems = loop {
        match servers.api.check_safety().await {
            Ok(problems) => break problems,
            Err(error) if error.is_transient() => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "waiting for postgresql"
                );
            }
            Err(error) => return Err(RunError::Store(error)),
        }
        tokio::select! {
            () = own.begun() => return Ok(()),
            () = tokio::time::sleep(START_RETRY) => {}
        }
    };
    let mut found = Unsafe { problems };
    for problem in messaging::admin::unsafe_topics(&config.common).await {
        found.check(true, problem);
    }
    match tokio::time::timeout(GATE_AT_START, servers.gate.check_safety()).await {
        Ok(Ok(safety)) => found.check(
            !safety.is_safe(),
            format!(
                "Redis throws keys away when memory is full (maxmemory-policy {}): set noeviction",
                safety.maxmemory_policy
            ),
        ),
        Ok(Err(_)) | Err(_) => tracing::warn!("redis does not answer; orders go on without it"),
    }
    Ok(found.into_result()?)
}

fn relay(config: &Config, servers: &Servers, own: &Shutdown) {
    if !config.common.relay {
        return;
    }
    let relay = RelayConfig {
        options: background_options(config),
        store: servers.background.clone(),
        brokers: config.common.kafka_brokers.clone(),
        names: TopicNames::new(&config.common.topic_suffix),
        instance: "order".to_owned(),
        silence_max: messaging::relay::SILENCE_MAX,
    };
    own.spawn(messaging::relay::run(relay, own.clone()));
}

/// Consumes order requests until shutdown begins.
async fn consume(
    config: &Config,
    servers: &Servers,
    clock: PgClock,
    catalogue: Arc<Catalogue>,
    sync: SyncGate,
    ops: &Ops,
    own: &Shutdown,
) -> Result<(), RunError> {
    let beating = servers.background.clone();
    periodic::spawn(own, BEAT_EVERY, move || {
        let store = beating.clone();
        async move {
            let beaten = async {
                let mut conn = store.conn().await?;
                store::heartbeats::beat(&mut conn, ConsumerName::Order.as_str()).await
            };
            if let Err(error) = beaten.await {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "no sign of life left"
                );
            }
        }
    });
    let handler = RequestOrders {
        store: servers.background.clone(),
        gate: servers.gate.clone(),
        clock,
        catalogue,
        sync,
        shop: config.shop.clone(),
    };
    let names = TopicNames::new(&config.common.topic_suffix);
    let mut consumer = ConsumerConfig::new(config.common.kafka_brokers.clone(), names, "order");
    consumer.stall = Stall::after(Duration::from_secs(config.common.stall_seconds));
    let store = servers.background.clone();
    messaging::consumer::run(handler, consumer, store, ops.clone(), own.clone())
        .await
        .map_err(RunError::Consumer)
}

/// The app with addresses at which nothing listens: for tests of the edge.
#[cfg(test)]
pub(crate) fn app_without_servers(own: &Shutdown) -> App {
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        config: Config,
    }
    let config = Flags::parse_from([
        "order",
        "--database-url=postgres://nobody@127.0.0.1:1/none",
        "--redis-url=redis://127.0.0.1:1",
        "--kafka-brokers=127.0.0.1:1",
        "--api-key=development-shop-key",
        "--operator-key=development-operator-key",
    ])
    .config;
    let servers = connect(&config).unwrap();
    assemble(&config, &servers, &PgClock::new(), 600, own).0
}
