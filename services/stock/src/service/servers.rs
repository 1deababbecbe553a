//! PostgreSQL and Redis: reached and judged at the start, watched from then on.

use std::{sync::Arc, time::Duration};

use platform::{Ops, Shutdown, config::Unsafe, periodic};
use reservations::{Gate, GateConfig};
use secrecy::ExposeSecret;
use store::{Store, StoreOptions};
use tokio::time::sleep;

use super::StartError;
use crate::{Config, Stock, health::Health, leader::Leader};

/// How often they are looked at.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// How often an absent server is asked again at the start.
const START_RETRY: Duration = Duration::from_millis(500);

/// How long Redis may take to answer at the start before the service goes on without it.
const REDIS_AT_START: Duration = Duration::from_secs(2);

/// The pools and the gate, which connect when they are needed; refuses settings that are unsafe.
pub(super) fn connect(config: &Config) -> Result<(Stock, StoreOptions), StartError> {
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

/// Waits for PostgreSQL as long as it takes and for Redis a moment, and refuses when either is not
/// safe to work on. A Redis that comes later is judged by [`watch`].
pub(super) async fn wait_until_safe(
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
            Err(error) if error.is_transient() => pause(own).await,
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

/// Readiness: PostgreSQL decides it. Without Redis the service works, without the gate; a Redis that
/// evicts keys is no gate. Who leads the upkeep is told whether Redis answers here.
pub(super) fn watch(stock: &Stock, leader: &Leader, ops: &Ops, own: &Shutdown) {
    let (stock, leader, ops) = (stock.clone(), leader.clone(), ops.clone());
    let store = Arc::new(Health::new("asking PostgreSQL"));
    let gate = Arc::new(Health::new("asking Redis"));
    periodic::spawn(own, WATCH_EVERY, move || {
        let (stock, leader, ops) = (stock.clone(), leader.clone(), ops.clone());
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
            leader.gate_answers(checked.is_ok());
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

/// Before an absent server is asked again.
pub(super) async fn pause(own: &Shutdown) {
    tokio::select! {
        () = own.begun() => {}
        () = sleep(START_RETRY) => {}
    }
}
