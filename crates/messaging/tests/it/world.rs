//! A database and topics of its own for each test.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use contracts::{ConsumerName, Envelope, Topic, TopicNames, envelope::source, events::NewEvent};
use messaging::{
    ConsumerConfig, Relay, RelayConfig,
    admin::{self, RawRecord},
};
use platform::{Ops, Shutdown};
use store::{Store, StoreOptions, outbox};
use tokio::task::JoinHandle;

use crate::recorder::Recorder;

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
