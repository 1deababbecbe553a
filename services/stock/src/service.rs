//! Starts the service, runs its use cases on timers, and stops it (P13, P15).

use std::{sync::Arc, time::Duration};

use contracts::{ConsumerName, TopicNames};
use domain::deadline::HoldRules;
use messaging::{ConsumerConfig, RelayConfig, Stall};
use platform::{
    Ops, PaymentsMode, Shutdown,
    config::{Listen, Unsafe},
    periodic, shutdown,
};
use reservations::{Gate, GateConfig};
use secrecy::ExposeSecret;
use store::{Store, StoreOptions, audit::Auditor, verify::Payments};
use tokio::time::sleep;

use crate::{
    Audit, Config, ExpireOrders, RepairDrift, ResendEvents, SettleOrders, Stock, StockError,
    expire_orders::Expired,
    health::Health,
    leader::Leader,
    prune_rows::{make_partitions, prune_rows},
    rebuild_gate::rebuild_lost_shards,
    refund_dead_money::refund_dead_money,
    request_refunds::request_refunds,
    sweep_holds::sweep_or_doubt,
};

/// How often expiry, refunds and the sweep look.
const TICK: Duration = Duration::from_secs(1);

/// How often a lost epoch is looked for: rebuilt within 5 s (F25).
const EPOCH_TICK: Duration = Duration::from_millis(500);

/// How far apart two sightings of drift are: a commit and its sync are milliseconds apart.
const DRIFT_TICK: Duration = Duration::from_secs(1);

/// How often the audit sees what is due.
const AUDIT_TICK: Duration = Duration::from_millis(500);

/// How often an absent server is asked again at the start.
const START_RETRY: Duration = Duration::from_millis(500);

/// How often money is looked for whose news was set aside.
const DEAD_MONEY_TICK: Duration = Duration::from_secs(10);

/// How long Redis may take to answer at the start before the service goes on without it.
const REDIS_AT_START: Duration = Duration::from_secs(2);

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
    let (stock, options) = connect(&config)?;
    let ops = Ops::new();
    let own = shutdown.child();
    ops.set("started", false, "waiting for PostgreSQL");
    let mut port = serve(config.listener.as_ref(), config.listen, &ops, &own)?;

    let started = tokio::select! {
        started = wait_until_safe(&config, &stock, &ops, &own) => started,
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

fn connect(config: &Config) -> Result<(Stock, StoreOptions), StartError> {
    let mut found = config.check();
    let common = &config.common;
    let mut options =
        StoreOptions::background(common.database_url.expose_secret(), "holdfast-stock");
    options.max_connections = common.db_connections;
    let store = Store::connect(&options);
    let gate = Gate::new(GateConfig {
        key_prefix: common.key_prefix.clone(),
        reserve_timeout: Duration::from_millis(common.gate_timeout_ms.max(1)),
        ..GateConfig::new(common.redis_url.expose_secret())
    });
    match (store, gate) {
        (Ok(store), Ok(gate)) => {
            found.into_result()?;
            Ok((Stock { store, gate }, options))
        }
        (store, gate) => {
            if let Err(error) = store {
                found.check(true, format!("DATABASE_URL: {error}"));
            }
            if let Err(error) = gate {
                found.check(true, format!("REDIS_URL or HOLDFAST_KEY_PREFIX: {error}"));
            }
            Err(StartError::Unsafe(found))
        }
    }
}

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

/// Waits for PostgreSQL as long as it takes and for Redis a moment, and refuses when either is not
/// safe to work on. A Redis that comes later is judged by [`watch_redis`].
async fn wait_until_safe(
    config: &Config,
    stock: &Stock,
    ops: &Ops,
    own: &Shutdown,
) -> Result<(), StartError> {
    let health = Health::new("reaching PostgreSQL");
    let problems = loop {
        if own.has_begun() {
            return Ok(());
        }
        let checked = stock.store.check_safety().await;
        health.note(&checked);
        match checked {
            Ok(problems) => break problems,
            Err(error) if error.is_transient() => pause(START_RETRY, own).await,
            Err(error) => {
                let mut found = Unsafe::default();
                found.check(true, format!("PostgreSQL can't be checked: {error}"));
                return Err(found.into());
            }
        }
    };
    let mut found = Unsafe { problems };
    for problem in messaging::admin::unsafe_topics(&config.common).await {
        found.check(true, problem);
    }
    match tokio::time::timeout(REDIS_AT_START, stock.gate.check_safety()).await {
        Ok(Ok(safety)) => found.check(!safety.is_safe(), unsafe_redis(&safety.maxmemory_policy)),
        Ok(Err(_)) | Err(_) => {
            tracing::warn!("redis does not answer; the service starts without the gate");
        }
    }
    found.into_result()?;
    ops.set("started", true, "");
    Ok(())
}

fn unsafe_redis(policy: &str) -> String {
    format!("Redis evicts keys when memory is full (maxmemory-policy {policy}): set noeviction")
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
        pause(START_RETRY, own).await;
    }

    let leader = Leader::default();
    own.spawn(
        leader
            .clone()
            .run(stock.store.clone(), options.clone(), own.clone()),
    );
    tick_everywhere(stock, expire, health, own);
    let drift = Arc::new(RepairDrift::new(stock.clone()));
    tick_as_leader(stock, &leader, Arc::clone(&drift), own);
    audit(config, stock, &options, drift, &leader, own);
    watch_servers(stock, ops, own);

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

/// What every replica does; locks in PostgreSQL keep them apart.
fn tick_everywhere(stock: &Stock, expire: Arc<ExpireOrders>, health: Health, own: &Shutdown) {
    let health = Arc::new(health);
    periodic::spawn(own, TICK, move || {
        let (expire, health) = (Arc::clone(&expire), Arc::clone(&health));
        async move {
            let expired = expire.expire_due_orders().await;
            health.note(&expired);
            if let Ok(Expired::Held(by)) = expired {
                tracing::error!(
                    disagreement_seconds = by.as_secs(),
                    "expiry is held: the database's clock jumped against this machine's"
                );
            }
        }
    });
    let stock = stock.clone();
    let health = Arc::new(Health::new("asking for refunds again"));
    periodic::spawn(own, TICK, move || {
        let (stock, health) = (stock.clone(), Arc::clone(&health));
        async move { health.note(&request_refunds(&stock).await) }
    });
}

/// What one replica does.
fn tick_as_leader(stock: &Stock, leader: &Leader, repair: Arc<RepairDrift>, own: &Shutdown) {
    as_leader(own, leader, TICK, Health::new("sweeping the gate"), {
        let (stock, repair) = (stock.clone(), Arc::clone(&repair));
        move || {
            let (stock, repair) = (stock.clone(), Arc::clone(&repair));
            async move { sweep_or_doubt(&stock, &repair).await.map(|_| ()) }
        }
    });
    as_leader(
        own,
        leader,
        EPOCH_TICK,
        Health::new("looking for lost shards of the gate"),
        {
            let stock = stock.clone();
            move || {
                let stock = stock.clone();
                async move { rebuild_lost_shards(&stock).await }
            }
        },
    );
    as_leader(
        own,
        leader,
        DRIFT_TICK,
        Health::new("comparing the gate with PostgreSQL"),
        move || {
            let repair = Arc::clone(&repair);
            async move { repair.look().await.map(|_| ()) }
        },
    );
    as_leader(
        own,
        leader,
        Duration::from_secs(60),
        Health::new("making outbox partitions"),
        {
            let stock = stock.clone();
            move || {
                let stock = stock.clone();
                async move { make_partitions(&stock).await.map(|_| ()) }
            }
        },
    );
    as_leader(
        own,
        leader,
        DEAD_MONEY_TICK,
        Health::new("asking back money whose news was set aside"),
        {
            let stock = stock.clone();
            move || {
                let stock = stock.clone();
                async move { refund_dead_money(&stock).await.map(|_| ()) }
            }
        },
    );
    let stock = stock.clone();
    as_leader(
        own,
        leader,
        Duration::from_secs(600),
        Health::new("pruning old rows"),
        move || {
            let stock = stock.clone();
            async move { prune_rows(&stock).await.map(|_| ()) }
        },
    );
}

/// The audit, and the look for lost events, where the upkeep is led.
fn audit(
    config: &Config,
    stock: &Stock,
    options: &StoreOptions,
    drift: Arc<RepairDrift>,
    leader: &Leader,
    own: &Shutdown,
) {
    let common = &config.common;
    let (payments, consumers) = match common.payments {
        PaymentsMode::Internal => (
            Payments::Internal,
            vec![ConsumerName::Payment, ConsumerName::Stock],
        ),
        PaymentsMode::Upstream => (Payments::Upstream, vec![ConsumerName::Stock]),
    };
    let health = Health::new("auditing");
    let auditor = Auditor::new(options, payments);
    health.note(&auditor);
    // The URL was read before, so this can't fail; without an audit the service still works.
    let Ok(auditor) = auditor else { return };
    let resend = ResendEvents::new(stock.clone(), auditor.clone(), consumers);
    let resend = Arc::new(resend);
    let brokers = common.kafka_brokers.clone();
    let names = TopicNames::new(&common.topic_suffix);
    as_leader(own, leader, TICK, Health::new("looking for lost events"), {
        let resend = Arc::clone(&resend);
        move || {
            let (resend, brokers, names) = (Arc::clone(&resend), brokers.clone(), names.clone());
            async move { resend_lost(&resend, &brokers, &names).await }
        }
    });
    let audit = Audit::new(stock.clone(), auditor, drift, resend);
    let state = Arc::new((audit, health));
    let leader = leader.clone();
    periodic::spawn(own, AUDIT_TICK, move || {
        let (leader, state) = (leader.clone(), Arc::clone(&state));
        async move {
            if leader.leads() {
                state.1.note(&state.0.look().await);
            } else {
                state.0.rest().await;
            }
        }
    });
}

/// Sends again what consumers have missed that have nothing left to read.
async fn resend_lost(
    resend: &ResendEvents,
    brokers: &str,
    names: &TopicNames,
) -> Result<(), StockError> {
    resend.look().await?;
    let mut caught_up = Vec::new();
    for consumer in resend.waiting().await {
        match messaging::admin::lag(brokers, names, consumer).await {
            Ok(partitions) if partitions.iter().all(|one| one.lag() == 0) => {
                caught_up.push(consumer);
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(
                error = &error as &dyn std::error::Error,
                "the lag of a consumer could not be read"
            ),
        }
    }
    resend.resend(&caught_up).await.map(|_| ())
}

fn as_leader<F, Fut>(own: &Shutdown, leader: &Leader, every: Duration, health: Health, body: F)
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), StockError>> + Send,
{
    let leader = leader.clone();
    let state = Arc::new((body, health));
    periodic::spawn(own, every, move || {
        let (leader, state) = (leader.clone(), Arc::clone(&state));
        async move {
            if leader.leads() {
                state.1.note(&(state.0)().await);
            }
        }
    });
}

/// Readiness: PostgreSQL decides it. Without Redis the service works, without the gate; a Redis that
/// evicts keys is no gate.
fn watch_servers(stock: &Stock, ops: &Ops, own: &Shutdown) {
    let (stock, ops) = (stock.clone(), ops.clone());
    let store = Arc::new(Health::new("asking PostgreSQL"));
    let gate = Arc::new(Health::new("asking Redis"));
    periodic::spawn(own, TICK, move || {
        let (stock, ops) = (stock.clone(), ops.clone());
        let (store, gate) = (Arc::clone(&store), Arc::clone(&gate));
        async move {
            let pinged = stock.store.ping().await;
            store.note(&pinged);
            ops.set(
                "postgres",
                pinged.is_ok(),
                pinged.err().map_or_else(String::new, |e| e.to_string()),
            );
            let checked = stock.gate.check_safety().await;
            gate.note(&checked);
            match checked {
                Ok(safety) if !safety.is_safe() => {
                    metrics::counter!("alarms_total", "kind" => "redis-evicts").increment(1);
                    ops.set("redis", false, unsafe_redis(&safety.maxmemory_policy));
                }
                Ok(_) => ops.set("redis", true, ""),
                Err(_) => ops.set("redis", true, "away; orders go on without the gate"),
            }
        }
    });
}

async fn pause(wait: Duration, own: &Shutdown) {
    tokio::select! {
        () = own.begun() => {}
        () = sleep(wait) => {}
    }
}
