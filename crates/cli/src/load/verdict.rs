//! What the sale came to: the clients' log joined to the databases (I11).

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use anyhow::Context;
use contracts::OrderId;
use hdrhistogram::Histogram;
use serde::Serialize;
use store::{
    Store,
    verify::sale::{self, Standing},
};

use super::{
    clients::{Answered, Sent},
    plan::Planned,
};

/// The JSON of `holdfast load flash`.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    /// Requests that were sent, duplicates included.
    pub requested: usize,
    /// Answers per status; `none` counts broken connections.
    pub answers: BTreeMap<String, u64>,
    /// Distinct orders that a 201 named.
    pub accepted: usize,
    /// Of those.
    pub confirmed: usize,
    /// Of those.
    pub canceled: usize,
    /// Of those.
    pub expired: usize,
    /// Units taken beyond on_hand.
    pub oversold: i64,
    /// Orders that a 201 named and that do not exist or have not ended.
    pub lost: usize,
    /// Keys that were answered with two orders, orders with two ends, 201s followed by a refusal.
    pub double_effects: i64,
    /// Minor units captured for no confirmed order and not refunded.
    pub unrefunded: i64,
    /// Requests that repeated a key and got the first answer.
    pub duplicates_absorbed: usize,
    /// From the first request to the last answer.
    pub seconds: f64,
    /// Orders confirmed a second, from the first request to the last end.
    pub confirmed_per_second: f64,
    /// Answers a second.
    pub answers_per_second: f64,
    /// From the intended send time to a 201.
    pub accept_ms: Percentiles,
    /// From the intended send time to CONFIRMED.
    pub confirm_ms: Percentiles,
    /// CPU seconds per 1,000 confirmed orders, per process group; empty without a state directory.
    pub cpu_seconds_per_1000: BTreeMap<String, f64>,
    /// Whether every promise was kept.
    pub ok: bool,
}

/// Milliseconds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Percentiles {
    /// Half are faster.
    pub p50: f64,
    /// 99 of 100 are faster.
    pub p99: f64,
}

pub(super) async fn judge(
    store: &Store,
    skus: &[String],
    since: OrderId,
    planned: &[Planned],
    sent: Sent,
    all_ended: bool,
    cpu: Option<BTreeMap<String, f64>>,
) -> anyhow::Result<Verdict> {
    let keys = Keys::of(planned, &sent.answered);
    let orders: Vec<OrderId> = keys.orders.values().copied().collect();
    let standings = sale::standings(store, &orders)
        .await
        .context("PostgreSQL can't be reached")?;
    let count = |status: &str| standings.values().filter(|s| s.status == status).count();
    let (confirmed, canceled, expired) = (count("CONFIRMED"), count("CANCELED"), count("EXPIRED"));
    let lost = orders.len() - (confirmed + canceled + expired);
    let oversold = oversold(store, skus).await?;
    let double_effects = keys.contradictions + sale::double_effects(store, since).await?;
    let unrefunded = sale::unrefunded(store, since).await?;
    let unanswered = sent
        .answered
        .iter()
        .filter(|a| !is_definite(a.status))
        .count();
    let confirmed_per_second = rate(confirmed, span(&standings));
    let per_1000 = |seconds: f64| seconds * 1000.0 / to_f64(confirmed.max(1));
    let answers: u64 = sent.statuses.values().sum();
    Ok(Verdict {
        requested: planned.len(),
        answers: sent
            .statuses
            .iter()
            .map(|(status, n)| (name(*status), *n))
            .collect(),
        accepted: orders.len(),
        confirmed,
        canceled,
        expired,
        oversold,
        lost,
        double_effects,
        unrefunded,
        duplicates_absorbed: keys.absorbed,
        seconds: sent.took.as_secs_f64(),
        confirmed_per_second,
        answers_per_second: rate(usize::try_from(answers).unwrap_or(0), sent.took),
        accept_ms: accept_ms(&sent.answered),
        confirm_ms: confirm_ms(&sent.answered, &standings),
        cpu_seconds_per_1000: cpu
            .map(|cpu| cpu.into_iter().map(|(g, s)| (g, per_1000(s))).collect())
            .unwrap_or_default(),
        ok: all_ended
            && unanswered == 0
            && oversold == 0
            && lost == 0
            && double_effects == 0
            && unrefunded == 0,
    })
}

/// Whether the answer says what became of the request. 5xx other than 503 are definite faults of
/// ours and make the verdict red through this as well.
fn is_definite(status: Option<u16>) -> bool {
    matches!(status, Some(201 | 403 | 409 | 410))
}

fn name(status: u16) -> String {
    if status == 0 {
        "none".to_owned()
    } else {
        status.to_string()
    }
}

/// The clients' log by key.
struct Keys {
    orders: HashMap<String, OrderId>,
    absorbed: usize,
    contradictions: i64,
}

impl Keys {
    /// A key answered with two orders is a double effect. A refusal that was sent and answered
    /// wholly after a 201 would be one too, but requests of one key overlap here, so their true
    /// order is not known; tests with ordered requests hold that rule.
    fn of(planned: &[Planned], answered: &[Answered]) -> Self {
        let mut keys = Self {
            orders: HashMap::new(),
            absorbed: 0,
            contradictions: 0,
        };
        for answer in answered {
            let request = &planned[answer.index];
            if request.duplicate && answer.replayed {
                keys.absorbed += 1;
            }
            let Some(order) = answer.order else { continue };
            match keys.orders.insert(request.key.clone(), order) {
                Some(before) if before != order => keys.contradictions += 1,
                Some(_) if !answer.replayed && request.duplicate => keys.absorbed += 1,
                _ => {}
            }
        }
        keys
    }
}

async fn oversold(store: &Store, skus: &[String]) -> anyhow::Result<i64> {
    let stock = store::verify::facts::stock(store).await?;
    Ok(stock
        .iter()
        .filter(|(sku, _)| skus.contains(sku))
        .map(|(_, s)| (s.held + s.sold - s.on_hand).max(0))
        .sum())
}

fn span(standings: &BTreeMap<OrderId, Standing>) -> Duration {
    let first = standings.values().map(|s| s.created_at).min();
    let last = standings
        .values()
        .filter(|s| s.status == "CONFIRMED")
        .filter_map(|s| s.ended_at)
        .max();
    match (first, last) {
        (Some(first), Some(last)) => (last - first).to_std().unwrap_or_default(),
        _ => Duration::ZERO,
    }
}

fn rate(count: usize, span: Duration) -> f64 {
    if span.is_zero() {
        0.0
    } else {
        to_f64(count) / span.as_secs_f64()
    }
}

fn to_f64(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

fn accept_ms(answered: &[Answered]) -> Percentiles {
    let accepted = answered.iter().filter(|a| a.status == Some(201));
    percentiles(accepted.map(|a| a.latency))
}

/// A request's latency up to its 201, and from the order's row to its end in PostgreSQL's clock.
fn confirm_ms(answered: &[Answered], standings: &BTreeMap<OrderId, Standing>) -> Percentiles {
    percentiles(
        answered
            .iter()
            .filter(|a| !a.replayed)
            .filter_map(|answer| {
                let standing = standings
                    .get(&answer.order?)
                    .filter(|s| s.status == "CONFIRMED")?;
                let rest = (standing.ended_at? - standing.created_at).to_std().ok()?;
                Some(answer.latency + rest)
            }),
    )
}

fn percentiles(latencies: impl Iterator<Item = Duration>) -> Percentiles {
    // In microseconds, up to an hour: what is beyond counts as an hour.
    let Ok(mut histogram) = Histogram::<u64>::new_with_bounds(1, 3_600_000_000, 3) else {
        return Percentiles::default();
    };
    for latency in latencies {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        histogram.saturating_record(micros);
    }
    let at = |quantile: f64| {
        let micros = u32::try_from(histogram.value_at_quantile(quantile)).unwrap_or(u32::MAX);
        f64::from(micros) / 1000.0
    };
    Percentiles {
        p50: at(0.5),
        p99: at(0.99),
    }
}
