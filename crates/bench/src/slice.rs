//! One slice of a paired measure: clients in a closed loop against one side, for a while.

use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use hdrhistogram::Histogram;
use platform::clock;
use serde::Serialize;
use serde_json::json;
use tokio::task::JoinSet;

use crate::{
    Client,
    counters::{Database, Work},
    number,
};

/// What everyone wants.
pub(crate) const SKU: &str = "HOT";

/// After an answer that is no order: a client that spins would take the processor from both.
const PAUSE: Duration = Duration::from_millis(50);

/// What one slice saw.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Slice {
    /// Orders a second that are committed and whose client knows it.
    pub(crate) accepts_per_second: f64,
    /// From sending to the answer.
    pub(crate) p99_ms: f64,
    /// Orders that are committed and whose client knows it.
    pub(crate) accepted: i64,
    /// Orders that are committed.
    pub(crate) committed: i64,
    /// Answers that were no 201.
    pub(crate) other_answers: i64,
    /// WAL bytes of the server per order.
    pub(crate) wal_bytes_per_order: f64,
}

/// Who is asked, and by whom: connections live from slice to slice.
pub(crate) struct Side<C> {
    pub(crate) name: &'static str,
    pub(crate) url: String,
    pub(crate) key: &'static str,
    pub(crate) database: Database,
    pub(crate) clients: Vec<C>,
}

struct Seen<C> {
    client: C,
    accepted: i64,
    others: i64,
    latencies: Histogram<u64>,
}

/// Has `clients` ask for `length`, and counts what became committed.
pub(crate) async fn slice<C: Client>(
    side: &mut Side<C>,
    clients: usize,
    length: Duration,
) -> anyhow::Result<Slice> {
    while side.clients.len() < clients {
        side.clients.push(C::new(&side.url, side.key)?);
    }
    let run = contracts::ids::generate().simple().to_string();
    let before = side.database.orders().await?;
    let work = Work::read(&side.database.url).await?;
    let begun = clock::monotonic();
    let mut tasks = JoinSet::new();
    for (number, client) in side.clients.drain(..).enumerate() {
        tasks.spawn(one_client(
            client,
            format!("{run}-{number}"),
            begun + length,
        ));
    }
    let (mut accepted, mut others) = (0, 0);
    let mut latencies = histogram()?;
    while let Some(seen) = tasks.join_next().await {
        let seen = seen?.with_context(|| format!("a client of {}", side.name))?;
        accepted += seen.accepted;
        others += seen.others;
        latencies.add(&seen.latencies)?;
        side.clients.push(seen.client);
    }
    let seconds = begun.elapsed().as_secs_f64();
    let wal_bytes = Work::read(&side.database.url).await?.wal_bytes - work.wal_bytes;
    let committed = side.database.orders().await? - before;
    // A 201 without its row is a broken promise. A row whose client was told that nobody knows is
    // none, and does not count.
    anyhow::ensure!(
        accepted <= committed,
        "{}: {accepted} orders were answered with 201 and {committed} are committed",
        side.name
    );
    anyhow::ensure!(accepted > 0, "{}: no order was accepted", side.name);
    let micros = i64::try_from(latencies.value_at_quantile(0.99))?;
    Ok(Slice {
        accepts_per_second: number(accepted) / seconds,
        p99_ms: number(micros) / 1_000.0,
        accepted,
        committed,
        other_answers: others,
        wal_bytes_per_order: number(wal_bytes) / number(committed),
    })
}

async fn one_client<C: Client>(
    mut client: C,
    name: String,
    until: Instant,
) -> anyhow::Result<Seen<C>> {
    let mut latencies = histogram()?;
    let (mut accepted, mut others) = (0, 0);
    let body = json!({
        "customer_id": format!("c-{name}"),
        "lines": [{ "sku": SKU, "quantity": 1 }],
        "payment_method": "card",
    });
    let body = Bytes::from(body.to_string());
    for count in 0_u32.. {
        let sent = clock::monotonic();
        if sent >= until {
            break;
        }
        let key = format!("{name}-{count}");
        let status = client
            .send("POST", "/v1/orders", Some(&key), Some(body.clone()))
            .await?;
        latencies.saturating_record(u64::try_from(sent.elapsed().as_micros())?);
        if status == 201 {
            accepted += 1;
        } else {
            others += 1;
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(Seen {
        client,
        accepted,
        others,
        latencies,
    })
}

/// Microseconds, up to a minute.
fn histogram() -> anyhow::Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 60_000_000, 2)?)
}
