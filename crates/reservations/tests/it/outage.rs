//! A server that is away, silent, or another one than before.

use std::time::Duration;

use reservations::{Gate, GateConfig, ReserveOutcome};
use tokio::{net::TcpListener, time::Instant};

use crate::{
    server::{PrivateServer, free_port},
    support::{SHARD, hold, open_new_epoch, raw, register, wait_for},
};

#[tokio::test]
async fn a_service_starts_while_redis_is_down_and_an_outage_stays_cheap() {
    let port = free_port();
    let gate = Gate::new(GateConfig::new(format!("redis://127.0.0.1:{port}"))).unwrap();
    let one = hold("1", "c", &[("A", 1)]);
    let holds = std::slice::from_ref(&one);
    assert_eq!(
        gate.reserve(SHARD, 0, holds).await,
        [ReserveOutcome::NoGate]
    );
    assert!(!gate.is_available());
    let start = Instant::now();
    for _ in 0..1_000 {
        assert_eq!(
            gate.reserve(SHARD, 0, holds).await,
            [ReserveOutcome::NoGate]
        );
    }
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "{:?} for 1,000",
        start.elapsed()
    );
    assert!(
        gate.keep(SHARD, holds, &[], Duration::from_secs(30))
            .await
            .is_err()
    );

    let server = PrivateServer::start_at(port).await;
    wait_for("the gate to be back", async || gate.is_available()).await;
    open_new_epoch(&gate, None).await;
    gate.put_registers(SHARD, &[register("A", 1, 10)])
        .await
        .unwrap();
    wait_for("an answer", async || {
        gate.reserve(SHARD, 0, holds).await[0] != ReserveOutcome::NoGate
    })
    .await;
    drop(server);
}

#[tokio::test]
async fn a_silent_server_costs_one_wait_and_then_none() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let gate = Gate::new(GateConfig::new(url)).unwrap();
    let one = hold("1", "c", &[("A", 1)]);
    let start = Instant::now();
    assert_eq!(
        gate.reserve(SHARD, 0, std::slice::from_ref(&one)).await,
        [ReserveOutcome::NoGate]
    );
    assert!(start.elapsed() >= Duration::from_millis(50));
    let start = Instant::now();
    for _ in 0..100 {
        gate.reserve(SHARD, 0, std::slice::from_ref(&one)).await;
    }
    assert!(
        start.elapsed() < Duration::from_millis(500),
        "{:?} for 100",
        start.elapsed()
    );
}

#[tokio::test]
async fn a_restarted_server_is_told_from_the_one_before() {
    let server = PrivateServer::start().await;
    let port = server.port();
    let gate = Gate::new(GateConfig::new(server.url())).unwrap();
    let mut seen = gate.server();
    gate.ping().await.unwrap();
    let first = seen.borrow_and_update().clone();
    assert!(first.run_id.is_some());
    assert_eq!(first.changes, 0);
    drop(server);

    let server = PrivateServer::start_at(port).await;
    wait_for("a new connection", async || gate.ping().await.is_ok()).await;
    assert!(seen.has_changed().unwrap());
    let second = seen.borrow_and_update().clone();
    assert_eq!(second.changes, 1);
    assert_ne!(second.run_id, first.run_id);

    let id: i64 = redis::cmd("CLIENT")
        .arg("ID")
        .query_async(&mut raw(&server.url()).await)
        .await
        .unwrap();
    assert!(id > 0);
    let mut other = raw(&server.url()).await;
    let _: i64 = redis::cmd("CLIENT")
        .arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"])
        .query_async(&mut other)
        .await
        .unwrap();
    wait_for("a new connection", async || gate.ping().await.is_ok()).await;
    assert!(
        !seen.has_changed().unwrap(),
        "a new connection to the same server is no news"
    );
}

#[tokio::test]
async fn a_cut_connection_is_replaced_within_the_call() {
    let server = PrivateServer::start().await;
    let mut config = GateConfig::new(server.url());
    config.reserve_timeout = Duration::from_secs(5);
    let gate = Gate::new(config).unwrap();
    open_new_epoch(&gate, None).await;
    gate.put_registers(SHARD, &[register("A", 1, 10)])
        .await
        .unwrap();
    let one = hold("1", "c", &[("A", 1)]);
    assert_eq!(
        gate.reserve(SHARD, 0, std::slice::from_ref(&one)).await,
        [ReserveOutcome::Ok]
    );
    let mut other = raw(&server.url()).await;
    let cut: i64 = redis::cmd("CLIENT")
        .arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"])
        .query_async(&mut other)
        .await
        .unwrap();
    assert!(cut >= 1);
    assert_eq!(
        gate.reserve(SHARD, 0, &[one]).await,
        [ReserveOutcome::Known]
    );
}
