//! What a run must have reached at least once, or it has proved nothing about it.

use std::collections::BTreeMap;

use serde::Serialize;
use sqlx::PgConnection;

use crate::{
    conductor::Row,
    faults::{Site, crashes},
    ledger::Seen,
    logs,
};

/// The share that must be reached.
pub const NEEDED: f64 = 0.9;

/// One state that a run should reach.
#[derive(Debug, Clone, Serialize)]
pub struct Reached {
    /// In words.
    pub what: String,
    /// How often.
    pub times: u64,
    /// Where that was read.
    pub from: &'static str,
}

/// Where a count comes from.
enum From {
    /// A counter of the services, with words that its labels hold.
    Metric(&'static str, &'static [&'static str]),
    /// A statement that counts.
    Sql(&'static str),
    /// Words in the logs of the services.
    Log(&'static str),
}

const LIST: &[(&str, From)] = &[
    (
        "an order ended otherwise while its payment was in flight, and the money went back",
        From::Sql(
            "select count(*) from orders o join payments p on p.order_id = o.id
             where o.status in ('EXPIRED', 'CANCELED') and p.captured_minor > 0
               and p.refunded_minor = p.captured_minor",
        ),
    ),
    (
        "PostgreSQL refused what the gate had let through",
        From::Metric("accept_refused_after_gate_total", &[]),
    ),
    (
        "a batch ran again",
        From::Metric("accept_reruns_total", &[]),
    ),
    (
        "an unknown COMMIT was found committed",
        From::Metric("accept_unknown_commits_total", &["\"committed\""]),
    ),
    (
        "an unknown COMMIT was run again",
        From::Metric("accept_unknown_commits_total", &["\"run_again\""]),
    ),
    (
        "a look-up turned a refusal of the gate into a replay",
        From::Metric("look_ups_total", &["\"replayed\""]),
    ),
    (
        "an accept past its deadline was refused",
        From::Metric("accept_late_total", &[]),
    ),
    (
        "the inbox dropped a duplicate",
        From::Metric("events_handled_total", &["\"duplicate\""]),
    ),
    (
        "the relay began again with a new producer or leader",
        From::Log("relay leads"),
    ),
    (
        "a leader of the relay stood down",
        From::Log("relay stands down"),
    ),
    (
        "the gate was rebuilt",
        From::Metric("gate_rebuilds_total", &[]),
    ),
    (
        "DIRECT mode served a 201",
        From::Metric("orders_accepted_total", &["\"direct\""]),
    ),
    (
        "the breaker of the gate opened",
        From::Metric("gate_breaker_opened_total", &[]),
    ),
    (
        "drift of the gate was repaired",
        From::Metric("drift_repairs_total", &[]),
    ),
    (
        "the sweep released a hold without an order",
        From::Metric("holds_swept_total", &[]),
    ),
    (
        "a refund was paid",
        From::Sql("select count(*) from refunds where state = 'CLOSED'"),
    ),
    (
        "an unknown outcome of the gateway was asked for",
        From::Metric("payments_swept_total", &[]),
    ),
    (
        "a payment was begun too late and not charged",
        From::Metric("payments_too_late_total", &[]),
    ),
    (
        "an outage of ours paused expiry",
        From::Sql("select count(*) from outages where closed_at is not null"),
    ),
    (
        "deadlines were moved by an outage",
        From::Sql("select count(*) from outages where moved > 0"),
    ),
    (
        "an order expired",
        From::Sql("select count(*) from orders where status = 'EXPIRED'"),
    ),
    (
        "a capture of the wrong amount was refunded",
        From::Sql(
            "select count(*) from payments where captured_minor <> amount_minor
             and captured_minor > 0 and refunded_minor = captured_minor",
        ),
    ),
    (
        "a payment was declined for good",
        From::Sql("select count(*) from payments where state = 'FAILED'"),
    ),
    (
        "a request by Kafka was accepted",
        From::Sql("select count(*) from idempotency where by_kafka and order_id is not null"),
    ),
    (
        "a request by Kafka was refused for good",
        From::Sql("select count(*) from idempotency where rejected is not null"),
    ),
    (
        "a consumer waited through a failure and went on",
        From::Metric("consumer_retries_total", &[]),
    ),
    (
        "a webhook came",
        From::Metric("webhooks_received_total", &[]),
    ),
];

/// The whole list with its counts; each fault of the schedule is on it.
///
/// # Errors
/// The database can't be read.
pub async fn list(
    site: &Site,
    conn: &mut PgConnection,
    rows: &[Row],
) -> anyhow::Result<Vec<Reached>> {
    let mut reached = Vec::new();
    for (what, from) in LIST {
        let (times, from) = match from {
            From::Metric(name, labels) => (whole(site.metrics.sum(name, labels)), "metrics"),
            From::Sql(statement) => {
                let count: i64 = sqlx::query_scalar(*statement).fetch_one(&mut *conn).await?;
                (u64::try_from(count).unwrap_or(0), "database")
            }
            From::Log(words) => (logs::lines(&site.plant.dir, words), "logs"),
        };
        reached.push(Reached {
            what: (*what).to_owned(),
            times,
            from,
        });
    }
    reached.extend(by_clients(site));
    reached.extend(
        crashes::bites(site)
            .into_iter()
            .map(|(bite, times)| Reached {
                what: format!("crash point bit: {bite}"),
                times,
                from: "crash points",
            }),
    );
    reached.extend(by_kind(rows));
    Ok(reached)
}

/// A kind that came twice is one state.
fn by_kind(rows: &[Row]) -> Vec<Reached> {
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    for row in rows {
        let what = format!("{} bit: {}", row.id, row.title);
        *kinds.entry(what).or_default() += row.bites;
    }
    let reached = kinds.into_iter().map(|(what, times)| Reached {
        what,
        times,
        from: "the fault",
    });
    reached.collect()
}

fn by_clients(site: &Site) -> Vec<Reached> {
    let inner = site.ledger.inner();
    let tries = || inner.requests.values().flat_map(|request| &request.tries);
    let count = |wanted: &dyn Fn(&Seen) -> bool| {
        u64::try_from(tries().filter(|one| wanted(&one.seen)).count()).unwrap_or(0)
    };
    let refused =
        |status: u16| count(&|seen| matches!(seen, Seen::Refused(got, _) if *got == status));
    let of = |what: &str, times: u64| Reached {
        what: what.to_owned(),
        times,
        from: "clients",
    };
    vec![
        of(
            "a stored 201 was replayed",
            count(&|seen| matches!(seen, Seen::Accepted { replayed: true, .. })),
        ),
        of("a key with another body was refused", inner.reused),
        of(
            "a request got no answer",
            count(&|seen| *seen == Seen::Unknown),
        ),
        of(
            "an answer said that the outcome is unknown",
            count(&|seen| matches!(seen, Seen::Later(503, code) if code.contains("unknown"))),
        ),
        of("sold out", refused(410)),
        of("over the purchase limit", refused(409)),
        of(
            "an accepted order was canceled",
            u64::try_from(inner.cancels.iter().filter(|c| c.status == 200).count()).unwrap_or(0),
        ),
        of(
            "a cancel came too late",
            u64::try_from(inner.cancels.iter().filter(|c| c.status == 409).count()).unwrap_or(0),
        ),
    ]
}

/// A counter as a count.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counters are whole, and below 2^53"
)]
pub fn whole(counter: f64) -> u64 {
    counter.max(0.0).round() as u64
}
