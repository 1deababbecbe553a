//! A database and topics of its own for each test.

use std::{
    collections::HashMap,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use contracts::{ConsumerName, Envelope, Topic, TopicNames, envelope::source, events::NewEvent};
use messaging::{
    Aside, ConsumerConfig, HandleError, Handler, Inbound, Rejection, Relay, RelayConfig,
    admin::{self, RawRecord},
};
use platform::{Ops, Shutdown};
use store::{Store, StoreOptions, outbox};
use tokio::task::JoinHandle;

pub(crate) struct World {
    pub(crate) brokers: String,
    pub(crate) names: TopicNames,
    pub(crate) options: StoreOptions,
    pub(crate) store: Store,
    database: String,
    admin: String,
}

fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} must name a server for these tests"))
}

fn psql(url: &str, statement: &str) -> String {
    let output = Command::new("psql")
        .args([
            url,
            "-q",
            "-X",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-c",
            statement,
        ])
        .output()
        .expect("these tests need psql");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{statement}: {error}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

pub(crate) async fn wait_for(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(
            start.elapsed() < Duration::from_secs(180),
            "waited in vain: {what}"
        );
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

impl World {
    pub(crate) async fn new() -> Self {
        let world = Self::without_topics().await;
        world.make_topics().await;
        world
    }

    pub(crate) async fn without_topics() -> Self {
        let (admin, brokers) = (env("DATABASE_URL"), env("KAFKA_BROKERS"));
        let id = contracts::ids::generate().simple().to_string();
        let database = format!("h_messaging_{id}");
        psql(&admin, &format!("create database {database}"));
        let url = format!("{}/{database}", admin.rsplit_once('/').unwrap().0);
        store::migrate(&url).await.unwrap();
        let options = StoreOptions {
            max_connections: 24,
            acquire_timeout: Duration::from_secs(20),
            ..StoreOptions::background(&url, "messaging test")
        };
        let store = Store::connect(&options).unwrap();
        let names = TopicNames::new(&format!("-{id}"));
        Self {
            brokers,
            names,
            options,
            store,
            database,
            admin,
        }
    }

    pub(crate) async fn make_topics(&self) {
        let reports = admin::ensure_topics(&self.brokers, &self.names, 3, 1)
            .await
            .unwrap();
        for report in &reports {
            assert_eq!(
                report.outcome,
                admin::TopicOutcome::Created,
                "{}",
                report.name
            );
        }
    }

    /// Those that were deleted; the others are there.
    pub(crate) async fn make_topics_again(&self) {
        wait_for("the broker to have let go of the topic", async || {
            let reports = admin::ensure_topics(&self.brokers, &self.names, 3, 1)
                .await
                .unwrap();
            let created =
                |report: &&admin::TopicReport| report.outcome == admin::TopicOutcome::Created;
            reports.iter().any(|report| created(&report))
        })
        .await;
    }

    pub(crate) async fn end(self) {
        self.store.close().await;
        psql(
            &self.admin,
            &format!("drop database {} with (force)", self.database),
        );
        admin::delete_topics(&self.brokers, &self.names)
            .await
            .unwrap();
    }

    pub(crate) fn sql(&self, statement: &str) -> String {
        psql(&self.options.url, statement)
    }

    pub(crate) fn number(&self, statement: &str) -> i64 {
        self.sql(statement).parse().unwrap()
    }

    pub(crate) fn relay_config(&self) -> RelayConfig {
        RelayConfig {
            options: self.options.clone(),
            store: self.store.clone(),
            brokers: self.brokers.clone(),
            names: self.names.clone(),
            instance: "test".to_owned(),
            silence_max: messaging::relay::SILENCE_MAX,
        }
    }

    /// A relay that leads; waits while the server has not seen the end of an earlier one.
    pub(crate) async fn lead(&self) -> Relay {
        self.lead_at(self.relay_config()).await
    }

    pub(crate) async fn lead_at(&self, config: RelayConfig) -> Relay {
        let start = Instant::now();
        loop {
            if let Some(relay) = Relay::lead(config.clone()).await.unwrap() {
                return relay;
            }
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "the lease was not given back"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Writes one transaction of events.
    pub(crate) async fn write(&self, events: &[NewEvent]) {
        let mut tx = self.store.begin().await.unwrap();
        // the outbox is never in the first writing statement
        outbox::begin_fence(&mut tx).await.unwrap();
        outbox::insert(&mut tx, events).await.unwrap();
        tx.commit().await.unwrap();
    }

    /// All records of a topic.
    pub(crate) async fn dump(&self, topic: &str) -> Vec<RawRecord> {
        let (brokers, topic) = (self.brokers.clone(), topic.to_owned());
        tokio::task::spawn_blocking(move || {
            let mut records = Vec::new();
            admin::dump(&brokers, &topic, |record| records.push(record)).unwrap();
            records
        })
        .await
        .unwrap()
    }

    pub(crate) async fn published(&self) -> Vec<RawRecord> {
        self.dump(&self.names.topic(Topic::Payments)).await
    }

    /// Starts a consumer.
    pub(crate) fn consume(&self, handler: Recorder) -> Running {
        self.consume_with(handler, self.store.clone(), |_| {})
    }

    pub(crate) fn consume_with(
        &self,
        handler: Recorder,
        store: Store,
        change: impl FnOnce(&mut ConsumerConfig),
    ) -> Running {
        let mut config = ConsumerConfig::new(self.brokers.clone(), self.names.clone(), "test");
        change(&mut config);
        let (ops, shutdown) = (Ops::new(), Shutdown::new());
        let run = messaging::consumer::run(handler, config, store, ops.clone(), shutdown.clone());
        Running {
            shutdown,
            ops,
            task: tokio::spawn(run),
        }
    }

    pub(crate) fn effects(&self) -> i64 {
        self.number("select count(*) from outbox where topic = 'stock.v1'")
    }

    pub(crate) fn distinct_effects(&self) -> i64 {
        self.number("select count(distinct key) from outbox where topic = 'stock.v1'")
    }

    pub(crate) fn dead_letters(&self) -> i64 {
        self.number("select count(*) from dead_letters")
    }

    pub(crate) async fn lag(&self) -> i64 {
        let lag = admin::lag(&self.brokers, &self.names, ConsumerName::Stock)
            .await
            .unwrap();
        lag.iter().map(admin::PartitionLag::lag).sum()
    }

    /// Writes a record with a proper envelope; gives its partition and offset.
    pub(crate) async fn produce(
        &self,
        to: &admin::Producer,
        partition: i32,
        id: &str,
        data: &[u8],
    ) -> (i32, i64) {
        let topic = self.names.topic(Topic::Payments);
        let headers = headers(id);
        let headers: Vec<(&str, &[u8])> = headers
            .iter()
            .map(|(name, value)| (*name, value.as_bytes()))
            .collect();
        to.send_to(
            (&topic, partition),
            Some(id.as_bytes()),
            &headers,
            Some(data),
        )
        .await
        .unwrap()
    }
}

pub(crate) fn headers(id: &str) -> Vec<(&'static str, String)> {
    Envelope {
        id: id.to_owned(),
        source: "/upstream".to_owned(),
        event_type: "PAYMENT_COMPLETED".to_owned(),
        time: None,
        subject: None,
        dataschema: None,
        aggregate_version: Some(1),
        traceparent: None,
    }
    .to_headers()
}

/// An event for the payments topic.
pub(crate) fn event(key: &str, version: i64) -> NewEvent {
    NewEvent {
        event_id: contracts::ids::generate(),
        topic: Topic::Payments.as_str().to_owned(),
        key: key.to_owned(),
        event_type: "PAYMENT_FAILED".to_owned(),
        source: source::PAYMENT,
        aggregate_version: version,
        data: format!(r#"{{"n":{version}}}"#),
        traceparent: None,
    }
}

/// Steps until all that is in the outbox is published or parked.
pub(crate) async fn drain(world: &World, relay: &mut Relay) {
    let start = Instant::now();
    loop {
        let step = relay.step().await.unwrap();
        if step.in_flight == 0 && step.gaps == 0 {
            let top = world.number("select coalesce(max(id), 0) from outbox");
            if step.low >= top {
                return;
            }
        }
        assert!(
            start.elapsed() < Duration::from_secs(90),
            "not drained: {step:?}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Steps a relay while something else takes its time: one that says nothing for 2 s loses its lease.
pub(crate) async fn beside<T>(relay: &mut Relay, other: impl Future<Output = T>) -> T {
    tokio::pin!(other);
    loop {
        tokio::select! {
            done = &mut other => return done,
            () = tokio::time::sleep(Duration::from_millis(50)) => {
                relay.step().await.unwrap();
            }
        }
    }
}

pub(crate) struct Running {
    pub(crate) shutdown: Shutdown,
    pub(crate) ops: Ops,
    task: JoinHandle<Result<(), messaging::ConsumerError>>,
}

impl Running {
    /// Ends at once, as a crash would: nothing is stored, nobody leaves the group.
    pub(crate) fn crash(self) {
        self.task.abort();
    }

    pub(crate) async fn stop(self) {
        self.shutdown.begin();
        self.task.await.unwrap().unwrap();
    }

    /// Whether it has ended.
    pub(crate) fn is_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Waits for its end, which nobody asked for.
    pub(crate) async fn ended(self) -> Result<(), messaging::ConsumerError> {
        let within = Duration::from_secs(30);
        tokio::time::timeout(within, self.task)
            .await
            .unwrap()
            .unwrap()
    }
}

/// What a test wants of one event, from its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wish {
    Effect,
    Aside,
    Permanent,
    Unclassified,
    Panic,
    /// Fails this many times for want of a dependency.
    Transient(usize),
    /// Fails for want of a dependency until it is healed.
    Away,
    /// Never returns.
    Hang,
    /// Fails as a statement does that takes longer than anyone waits, when it is beside more than
    /// ten others.
    Heavy,
}

/// A handler whose effect is one outbox row per event, with the event's id as key.
#[derive(Clone, Default)]
pub(crate) struct Recorder {
    pub(crate) prepared: Arc<AtomicUsize>,
    pub(crate) after_commit: Arc<Mutex<HashMap<String, usize>>>,
    failures: Arc<Mutex<HashMap<String, usize>>>,
    /// The events of each call of `handle` that succeeded.
    pub(crate) batches: Arc<Mutex<Vec<usize>>>,
    /// Failures end when it is set.
    pub(crate) healed: Arc<std::sync::atomic::AtomicBool>,
}

impl Handler for Recorder {
    type Event = Wish;
    type Prepared = ();

    fn consumer(&self) -> ConsumerName {
        ConsumerName::Stock
    }

    fn decode(&self, envelope: &Envelope, data: &[u8]) -> Result<Option<Wish>, Rejection> {
        if envelope.event_type == "SOMETHING_NEW" {
            return Ok(None);
        }
        let malformed = |error: serde_json::Error| {
            Rejection::new(messaging::Class::Malformed, error.to_string())
        };
        let value: serde_json::Value = serde_json::from_slice(data).map_err(malformed)?;
        Ok(Some(
            match value.get("wish").and_then(serde_json::Value::as_str) {
                Some("aside") => Wish::Aside,
                Some("permanent") => Wish::Permanent,
                Some("unclassified") => Wish::Unclassified,
                Some("panic") => Wish::Panic,
                Some("away") => Wish::Away,
                Some("hang") => Wish::Hang,
                Some("heavy") => Wish::Heavy,
                Some("transient") => Wish::Transient(2),
                _ => Wish::Effect,
            },
        ))
    }

    async fn prepare(&self, events: &[Inbound<Wish>]) -> Result<(), HandleError> {
        self.prepared.fetch_add(events.len(), Ordering::Relaxed);
        Ok(())
    }

    async fn handle(
        &self,
        tx: &mut store::Tx,
        events: &[Inbound<Wish>],
        (): (),
    ) -> Result<Vec<Aside>, HandleError> {
        assert!(!events.is_empty(), "handle is not called for nothing");
        let effects: Vec<NewEvent> = events
            .iter()
            .filter(|inbound| inbound.event != Wish::Aside)
            .map(|inbound| NewEvent {
                topic: Topic::Stock.as_str().to_owned(),
                ..event(&inbound.event_id, 1)
            })
            .collect();
        // written before the failure: the transaction has to take it back
        outbox::insert(tx, &effects).await?;
        let mut asides = Vec::new();
        for (index, inbound) in events.iter().enumerate() {
            match inbound.event {
                Wish::Effect => {}
                Wish::Heavy if events.len() <= 11 => {}
                Wish::Heavy => return Err(store::StoreError::no_answer().into()),
                Wish::Hang => std::future::pending().await,
                Wish::Away if self.healed.load(Ordering::Relaxed) => {}
                Wish::Away => return Err(HandleError::transient("the gate is away")),
                Wish::Aside => asides.push(Aside {
                    index,
                    reason: "speaks of nothing".to_owned(),
                    class: messaging::Class::UnknownSubject,
                }),
                Wish::Permanent => {
                    return Err(Rejection::new(messaging::Class::Contract, "never").into());
                }
                Wish::Unclassified if self.healed.load(Ordering::Relaxed) => {}
                Wish::Unclassified => return Err(HandleError::unclassified("strange")),
                Wish::Panic => panic!("a bug of the handler"),
                Wish::Transient(times) => {
                    let mut failures = self.failures.lock().unwrap();
                    let failed = failures.entry(inbound.event_id.clone()).or_default();
                    *failed += 1;
                    if *failed <= times {
                        return Err(HandleError::transient("the gate is loading"));
                    }
                }
            }
        }
        self.batches.lock().unwrap().push(events.len());
        Ok(asides)
    }

    async fn after_commit(&self, events: &[Inbound<Wish>]) {
        let mut seen = self.after_commit.lock().unwrap();
        for event in events {
            *seen.entry(event.event_id.clone()).or_default() += 1;
        }
    }
}
