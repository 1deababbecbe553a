//! Accepted orders a second on one hot SKU: the order service against `SELECT … FOR UPDATE`.
//!
//! Both run in this process on one PostgreSQL, each with a database of its own and a pool of ten,
//! each behind HTTP, asked by the same clients in a closed loop. Slices alternate (A B A B), so
//! that both meet the same noise. A slice counts the orders that are committed and answered with
//! 201, until the answer to its last request. Nothing relays on either side.

use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use platform::{Shutdown, clock};
use serde_json::json;
use store::{Store, StoreOptions, verify::Payments};

use crate::{
    Client, Line, Spread,
    counters::{Database, Rows},
    for_update,
    slice::{SKU, Side, Slice, slice},
};

/// Where the servers are.
#[derive(Debug, Clone)]
pub struct Servers {
    /// PostgreSQL, as one who may create databases.
    pub database_url: String,
    /// Redis.
    pub redis_url: String,
    /// Kafka.
    pub kafka_brokers: String,
}

/// How many clients, and what the ratio must reach and should.
const ROUNDS: [(usize, Option<f64>, Option<f64>); 2] =
    [(50, None, None), (1_000, Some(3.0), Some(12.0))];
const PAIRS: usize = 7;
const SLICE: Duration = Duration::from_secs(2);
const WARM_UP: Duration = Duration::from_secs(1);
const CONNECTIONS: u32 = 10;

const UNITS: i64 = 1_000_000_000;
/// Nothing falls due, and nobody waits for the relay.
const TTL_SECONDS: i32 = 86_400;
const SHOP_KEY: &str = "bench-key-of-the-shop";
const OPERATOR_KEY: &str = "bench-key-of-the-operator";
const READY_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Of the events: the one difference is the precision of their times.
const SAME_LENGTH: f64 = 0.05;

/// Measures every round.
///
/// # Errors
/// A server did not start, an invariant is broken, or the sides did unequal work.
pub async fn run<C: Client>(servers: &Servers) -> anyhow::Result<Vec<Line>> {
    let ours = Database::create(&servers.database_url, "holdfast_bench_ours").await?;
    let other = Database::create(&servers.database_url, "holdfast_bench_for_update").await?;
    let shutdown = Shutdown::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}", listener.local_addr()?);
    let config = order_config(servers, &ours.url, listener)?;
    let service = tokio::spawn(order::run(config, shutdown.clone()));
    for_update::put_sku(&other.url, SKU, UNITS, TTL_SECONDS).await?;
    let (address, baseline) = for_update::serve(&other.url, CONNECTIONS).await?;
    let mut ours = Side {
        name: "ours",
        url,
        key: SHOP_KEY,
        database: ours,
        clients: Vec::new(),
    };
    let mut other = Side {
        name: "for update",
        url: format!("http://{address}"),
        key: SHOP_KEY,
        database: other,
        clients: Vec::new(),
    };
    let measured = tokio::select! {
        measured = measure::<C>(&mut ours, &mut other) => measured,
        ended = service => Err(match ended {
            Ok(Err(error)) => anyhow::Error::from(error).context("the order service"),
            _ => anyhow::anyhow!("the order service ended by itself"),
        }),
    };
    shutdown.begin();
    baseline.abort();
    shutdown.finished(Duration::from_secs(10)).await;
    for side in [&ours, &other] {
        side.database.drop().await?;
    }
    measured
}

fn order_config(
    servers: &Servers,
    database_url: &str,
    listener: std::net::TcpListener,
) -> anyhow::Result<order::Config> {
    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        config: order::Config,
    }
    let flags = [
        "order".to_owned(),
        format!("--database-url={database_url}"),
        format!("--redis-url={}", servers.redis_url),
        format!("--kafka-brokers={}", servers.kafka_brokers),
        // A new one each time: the keys of an earlier run are of another database.
        format!(
            "--key-prefix=bench-{:x}",
            contracts::ids::generate().as_u128() >> 64
        ),
        format!("--db-connections={CONNECTIONS}"),
        "--relay=false".to_owned(),
        format!("--api-key={SHOP_KEY}"),
        format!("--operator-key={OPERATOR_KEY}"),
    ];
    let mut config = Flags::try_parse_from(flags)?.config;
    config.listener = Some(listener);
    Ok(config)
}

async fn measure<C: Client>(ours: &mut Side<C>, other: &mut Side<C>) -> anyhow::Result<Vec<Line>> {
    open_sale::<C>(&ours.url).await?;
    let mut lines = Vec::new();
    for (clients, gate, goal) in ROUNDS {
        let mut pairs = Vec::new();
        for side in [&mut *ours, &mut *other] {
            slice(side, clients, WARM_UP).await?;
        }
        for number in 1..=PAIRS {
            let pair = [
                slice(ours, clients, SLICE).await?,
                slice(other, clients, SLICE).await?,
            ];
            eprintln!(
                "{clients} clients, pair {number} of {PAIRS}: {:.0} against {:.0} a second",
                pair[0].accepts_per_second, pair[1].accepts_per_second
            );
            pairs.push(pair);
        }
        lines.push(line(clients, gate, goal, &pairs)?);
    }
    let rows = [verified(ours).await?, verified(other).await?];
    let [ours, other] = rows.map(|rows| rows.event_bytes);
    anyhow::ensure!(
        (ours - other).abs() <= other * SAME_LENGTH,
        "unequal work: events of {ours:.0} bytes against {other:.0}"
    );
    Ok(lines)
}

fn line(
    clients: usize,
    gate: Option<f64>,
    goal: Option<f64>,
    pairs: &[[Slice; 2]],
) -> anyhow::Result<Line> {
    let median = |side: usize| {
        Spread::of(pairs.iter().map(|pair| pair[side].accepts_per_second)).context("no pair")
    };
    let ratio = Spread::of(
        pairs
            .iter()
            .map(|[a, b]| a.accepts_per_second / b.accepts_per_second),
    )
    .context("no pair")?;
    let p99 = Spread::of(pairs.iter().map(|[a, b]| a.p99_ms / b.p99_ms));
    let wal = Spread::of(
        pairs
            .iter()
            .map(|[a, b]| a.wal_bytes_per_order / b.wal_bytes_per_order),
    );
    Ok(Line {
        name: format!("accepts_{clients}_clients"),
        ours: median(0)?.median,
        other: Some(median(1)?.median),
        ratio: Some(ratio),
        unit: "accepts/s",
        gate,
        goal,
        ok: gate.is_none_or(|gate| ratio.median >= gate),
        details: json!({
            "clients": clients,
            "connections": CONNECTIONS,
            "slice_seconds": SLICE.as_secs_f64(),
            "front": "HTTP, in the process of the clients, both sides",
            "p99_ratio": p99,
            "wal_bytes_per_order_ratio": wal,
            "pairs": pairs.iter().map(|[a, b]| json!({ "ours": a, "other": b }))
                .collect::<Vec<_>>(),
        }),
    })
}

/// Waits for the order service and puts the SKU.
async fn open_sale<C: Client>(url: &str) -> anyhow::Result<()> {
    let mut operator = C::new(url, OPERATOR_KEY)?;
    let begun = clock::monotonic();
    loop {
        let ready = operator.send("GET", "/readyz", None, None).await;
        if matches!(ready, Ok(200)) {
            break;
        }
        anyhow::ensure!(
            begun.elapsed() < READY_WITHIN,
            "the order service is not ready after {READY_WITHIN:?}: {ready:?}"
        );
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let sku = json!({
        "on_hand": UNITS,
        "unit_price": { "amount_minor": 12_900, "currency": "KRW" },
        "per_customer_limit": null,
        "opens_at": null,
        "closes_at": null,
        "reservation_ttl_seconds": TTL_SECONDS,
        "waiting_room": "off",
    });
    let path = format!("/v1/skus/{SKU}");
    let status = operator
        .send("PUT", &path, None, Some(sku.to_string().into()))
        .await?;
    anyhow::ensure!(status == 201, "putting the SKU was answered with {status}");
    Ok(())
}

/// The invariants of a side, and that each order left one row of each kind.
async fn verified<C>(side: &Side<C>) -> anyhow::Result<Rows> {
    let store = Store::connect(&StoreOptions::background(
        &side.database.url,
        "holdfast bench",
    ))?;
    let checks = store::verify::run(&store, Payments::Internal).await?;
    store.close().await;
    // I17 is about the relay, and none runs here.
    let red = checks.iter().find(|check| check.id != "I17" && !check.ok);
    if let Some(check) = red {
        anyhow::bail!(
            "{}: {} is broken: {} {:?}",
            side.name,
            check.id,
            check.rule,
            check.offenders
        );
    }
    let rows = side.database.rows().await?;
    anyhow::ensure!(
        rows.held == rows.orders && rows.others.iter().all(|count| *count == rows.orders),
        "unequal work: {} left {rows:?}",
        side.name
    );
    Ok(rows)
}
