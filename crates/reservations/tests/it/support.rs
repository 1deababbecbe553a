//! Gates, holds and raw connections for tests.

use contracts::{CustomerId, HoldId, Line, Quantity, Shop, Sku};
use domain::gate::{Buyer, Hold, Register, Shard};
use reservations::{EpochOutcome, Gate, GateConfig, Script};

pub(crate) const SHARD: Shard = Shard(0);

/// The shared server; a test without one fails.
pub(crate) fn redis_url() -> String {
    std::env::var("REDIS_URL").expect("REDIS_URL must name a Redis server for these tests")
}

/// A key prefix that nothing else uses.
pub(crate) fn fresh_prefix() -> String {
    let id = contracts::ids::generate().simple().to_string();
    format!("t{}", &id[2..])
}

/// A gate with patience: a busy machine is no outage.
pub(crate) fn patient(url: &str) -> GateConfig {
    GateConfig {
        key_prefix: fresh_prefix(),
        reserve_timeout: std::time::Duration::from_secs(5),
        call_timeout: std::time::Duration::from_secs(5),
        ..GateConfig::new(url)
    }
}

/// A gate on the shared server with an open epoch; its keys go when it does.
pub(crate) struct TestGate {
    pub(crate) gate: Gate,
    pub(crate) prefix: String,
    pub(crate) epoch: String,
    pub(crate) raw: redis::aio::MultiplexedConnection,
}

impl TestGate {
    pub(crate) async fn new() -> Self {
        Self::on(&redis_url()).await
    }

    pub(crate) async fn on(url: &str) -> Self {
        let config = patient(url);
        let prefix = config.key_prefix.clone();
        let gate = Gate::new(config).expect("configuration");
        let epoch = open_new_epoch(&gate, None).await;
        Self {
            gate,
            prefix,
            epoch,
            raw: raw(url).await,
        }
    }

    pub(crate) fn key(&self, rest: &str) -> String {
        format!("{}:{{0}}:{}:{rest}", self.prefix, self.epoch)
    }

    pub(crate) fn meta(&self) -> String {
        format!("{}:{{0}}:meta", self.prefix)
    }

    /// All keys of the test and their serialized values.
    pub(crate) async fn dump(&mut self) -> Vec<(String, Vec<u8>)> {
        let mut keys = keys_of(&mut self.raw, &self.prefix).await;
        keys.sort();
        let mut out = Vec::new();
        for key in keys {
            let dump: Vec<u8> = redis::cmd("DUMP")
                .arg(&key)
                .query_async(&mut self.raw)
                .await
                .expect("dump");
            out.push((key, dump));
        }
        out
    }

    pub(crate) async fn run(&mut self, command: &str, args: &[&str]) {
        let _: redis::Value = redis::cmd(command)
            .arg(args)
            .query_async(&mut self.raw)
            .await
            .expect("a command of the test");
    }

    /// Calls a script as a stranger would.
    pub(crate) async fn eval(
        &mut self,
        script: &Script,
        keys: &[String],
        args: &[String],
    ) -> Result<Vec<String>, redis::RedisError> {
        redis::cmd("EVAL")
            .arg(script.text())
            .arg(keys.len())
            .arg(keys)
            .arg(args)
            .query_async(&mut self.raw)
            .await
    }

    pub(crate) async fn done(mut self) {
        wipe(&mut self.raw, &self.prefix).await;
    }
}

pub(crate) async fn raw(url: &str) -> redis::aio::MultiplexedConnection {
    redis::Client::open(url)
        .expect("url")
        .get_multiplexed_async_connection()
        .await
        .expect("REDIS_URL must name a server that answers")
}

pub(crate) async fn keys_of(
    raw: &mut redis::aio::MultiplexedConnection,
    prefix: &str,
) -> Vec<String> {
    let (mut cursor, mut keys) = (0_u64, Vec::new());
    loop {
        let (next, page): (u64, Vec<String>) = redis::cmd("SCAN")
            .arg(cursor)
            .arg("MATCH")
            .arg(format!("{prefix}:*"))
            .arg("COUNT")
            .arg(10_000)
            .query_async(raw)
            .await
            .expect("scan");
        keys.extend(page);
        cursor = next;
        if cursor == 0 {
            keys.sort();
            keys.dedup();
            return keys;
        }
    }
}

pub(crate) async fn wipe(raw: &mut redis::aio::MultiplexedConnection, prefix: &str) {
    let keys = keys_of(raw, prefix).await;
    if !keys.is_empty() {
        let _: u64 = redis::cmd("UNLINK")
            .arg(keys)
            .query_async(raw)
            .await
            .expect("unlink");
    }
}

pub(crate) async fn open_new_epoch(gate: &Gate, replaces: Option<&str>) -> String {
    let epoch = Gate::new_epoch_id();
    let begun = gate
        .begin_epoch(SHARD, &epoch, replaces)
        .await
        .expect("begin");
    assert_eq!(begun, EpochOutcome::Begun);
    let opened = gate.open_epoch(SHARD, &epoch).await.expect("open");
    assert_eq!(opened, EpochOutcome::Opened);
    epoch
}

pub(crate) fn sku(name: &str) -> Sku {
    Sku::parse(name).expect("sku")
}

pub(crate) fn buyer(name: &str) -> Buyer {
    Buyer {
        shop: Shop::parse("shop").expect("shop"),
        customer: CustomerId::parse(name).expect("customer"),
    }
}

pub(crate) fn hold_id(key: &str) -> HoldId {
    HoldId::derive("shop", "POST /v1/orders", key)
}

pub(crate) fn hold(key: &str, customer: &str, lines: &[(&str, i64)]) -> Hold {
    let lines = lines
        .iter()
        .map(|(name, units)| Line {
            sku: sku(name),
            quantity: Quantity::new(*units).expect("quantity"),
        })
        .collect();
    Hold {
        hold_id: hold_id(key),
        buyer: buyer(customer),
        lines,
    }
}

pub(crate) fn register(name: &str, version: i64, limit: i64) -> Register {
    Register {
        sku: sku(name),
        limit,
        version,
        opens_at_ms: None,
        closes_at_ms: None,
        per_customer_limit: None,
    }
}

/// Waits until the condition holds; fails after a minute.
pub(crate) async fn wait_for(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
    while !condition().await {
        assert!(
            tokio::time::Instant::now() < deadline,
            "waited in vain for {what}"
        );
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}
