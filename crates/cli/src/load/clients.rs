//! The clients: each one connection, each one request at a time, as a shop's backend behaves: a
//! request without a definite answer is sent again with the same key.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use contracts::OrderId;
use http::{Method, StatusCode};

use super::{FlashArgs, plan::Planned};
use crate::http_client::HttpClient;

/// Tries of one request that got no definite answer.
const TRIES: u32 = 30;

/// The last definite answer to one request.
#[derive(Debug, Clone)]
pub(super) struct Answered {
    /// Where the request stands in the plan.
    pub(super) index: usize,
    /// Its status; `None` when no try got an answer.
    pub(super) status: Option<u16>,
    /// The order of a 201.
    pub(super) order: Option<OrderId>,
    /// Whether the answer was a replay.
    pub(super) replayed: bool,
    /// From the intended send time to the answer.
    pub(super) latency: Duration,
}

/// What all clients saw.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) answered: Vec<Answered>,
    /// Answers per status, those that were tried again included; 0 counts broken connections.
    pub(super) statuses: std::collections::BTreeMap<u16, u64>,
    pub(super) took: Duration,
}

/// What the progress line reads.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) sent: AtomicUsize,
    pub(super) accepted: AtomicUsize,
    pub(super) sold_out: AtomicUsize,
    /// Latencies since the last line, in microseconds.
    pub(super) recent: Mutex<Vec<u64>>,
}

struct Shared {
    planned: Arc<Vec<Planned>>,
    next: AtomicUsize,
    begun: Instant,
    rate: Option<u32>,
    tally: Arc<Tally>,
}

pub(super) async fn send(
    args: &FlashArgs,
    planned: Arc<Vec<Planned>>,
    tally: Arc<Tally>,
) -> anyhow::Result<Sent> {
    let shared = Arc::new(Shared {
        planned,
        next: AtomicUsize::new(0),
        begun: Instant::now(),
        rate: args.rate,
        tally,
    });
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..args.clients {
        let client = HttpClient::new(&args.target.url, Some(args.target.key()))?;
        clients.spawn(one_client(client, Arc::clone(&shared)));
    }
    let mut answered = Vec::with_capacity(shared.planned.len());
    let mut statuses = std::collections::BTreeMap::new();
    while let Some(done) = clients.join_next().await {
        let (own, counts) = done?;
        answered.extend(own);
        for (status, count) in counts {
            *statuses.entry(status).or_insert(0) += count;
        }
    }
    answered.sort_by_key(|answer| answer.index);
    Ok(Sent {
        answered,
        statuses,
        took: shared.begun.elapsed(),
    })
}

type Counts = std::collections::BTreeMap<u16, u64>;

async fn one_client(mut client: HttpClient, shared: Arc<Shared>) -> (Vec<Answered>, Counts) {
    let mut answered = Vec::new();
    let mut counts = Counts::new();
    loop {
        let index = shared.next.fetch_add(1, Ordering::Relaxed);
        let Some(planned) = shared.planned.get(index) else {
            break;
        };
        let intended = match shared.rate {
            None => Instant::now(),
            Some(rate) => {
                let offset = u32::try_from(index).unwrap_or(u32::MAX);
                let due = shared.begun + Duration::from_secs(1) * offset / rate.max(1);
                tokio::time::sleep_until(due.into()).await;
                due
            }
        };
        shared.tally.sent.fetch_add(1, Ordering::Relaxed);
        let answer = until_definite(&mut client, planned, index, intended, &mut counts).await;
        match answer.status {
            Some(201) => shared.tally.accepted.fetch_add(1, Ordering::Relaxed),
            Some(410) => shared.tally.sold_out.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        let micros = u64::try_from(answer.latency.as_micros()).unwrap_or(u64::MAX);
        shared
            .tally
            .recent
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(micros);
        answered.push(answer);
    }
    (answered, counts)
}

/// Sends until the answer says what became of the request. 409 in flight, 429, 503 and a broken
/// connection do not: the same key is sent again.
async fn until_definite(
    client: &mut HttpClient,
    planned: &Planned,
    index: usize,
    intended: Instant,
    counts: &mut Counts,
) -> Answered {
    let mut last = None;
    for attempt in 0..TRIES {
        let body = Some(planned.body.clone());
        let answer = client
            .send(Method::POST, "/v1/orders", Some(&planned.key), body)
            .await;
        let pause = match answer {
            Ok(answer) => {
                let status = answer.status.as_u16();
                *counts.entry(status).or_insert(0) += 1;
                last = Some(status);
                let json = if status == 503 || status == 409 || status == 201 {
                    answer.json()
                } else {
                    serde_json::Value::Null
                };
                if !is_indefinite(answer.status, &json) {
                    return Answered {
                        index,
                        status: Some(status),
                        order: json["order_id"].as_str().and_then(|id| id.parse().ok()),
                        replayed: answer.replayed(),
                        latency: intended.elapsed(),
                    };
                }
                answer.retry_after().unwrap_or(Duration::from_millis(100))
            }
            Err(error) => {
                *counts.entry(0).or_insert(0) += 1;
                tracing::debug!(%error, attempt, "no answer");
                Duration::from_millis(100)
            }
        };
        tokio::time::sleep(pause.min(Duration::from_secs(1))).await;
    }
    Answered {
        index,
        status: last,
        order: None,
        replayed: false,
        latency: intended.elapsed(),
    }
}

fn is_indefinite(status: StatusCode, json: &serde_json::Value) -> bool {
    match status.as_u16() {
        409 => json["code"] == "request-in-flight",
        429 | 503 => true,
        _ => false,
    }
}
