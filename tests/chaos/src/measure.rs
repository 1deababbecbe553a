//! Figures of a run, from the database and from the faults.

use serde::Serialize;
use sqlx::PgConnection;

use crate::{
    conductor::Row,
    faults::{GATE_EXACT, Site},
};

/// One figure.
#[derive(Debug, Clone, Serialize)]
pub struct Measure {
    /// Its number among the targets, and what it is.
    pub what: String,
    /// Its value.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
}

const LATENESS: &[(&str, &str, &str)] = &[
    (
        "T16 orders that expired",
        "count",
        "select count(*)::float8 from orders where status = 'EXPIRED'",
    ),
    (
        "T16 expiry late, p50, all faults included",
        "s",
        "select percentile_cont(0.5) within group
             (order by extract(epoch from ended_at - reserved_until))::float8
         from orders where status = 'EXPIRED'",
    ),
    (
        "T16 expiry late, p99, all faults included",
        "s",
        "select percentile_cont(0.99) within group
             (order by extract(epoch from ended_at - reserved_until))::float8
         from orders where status = 'EXPIRED'",
    ),
    (
        "T16 expired early",
        "count",
        "select count(*)::float8 from orders where status = 'EXPIRED' and ended_at < reserved_until",
    ),
    (
        "T17 refunds closed",
        "count",
        "select count(*)::float8 from refunds where state = 'CLOSED'",
    ),
    (
        "T17 from the need of a refund to its end, p50, all faults included",
        "s",
        "select percentile_cont(0.5) within group
             (order by extract(epoch from closed_at - created_at))::float8
         from refunds where state = 'CLOSED'",
    ),
    (
        "T17 from the need of a refund to its end, p99, all faults included",
        "s",
        "select percentile_cont(0.99) within group
             (order by extract(epoch from closed_at - created_at))::float8
         from refunds where state = 'CLOSED'",
    ),
];

/// What faults measured: in words, the fault, the measure. Of several the worst; -1 is never.
const FAULTS: &[(&str, &str, &str)] = &[
    (
        "T10 kill -9 of an order service: its start to its first 201",
        "F1",
        "served_after_start_s",
    ),
    (
        "T10 kill -9 of a payment service: its start to ready",
        "F2",
        "ready_after_start_s",
    ),
    (
        "T10 kill -9 of a stock service: its start to ready",
        "F3",
        "ready_after_start_s",
    ),
    ("T11 FLUSHALL: gate exact again", "F25", GATE_EXACT),
    (
        "T12 last writes of Redis lost: from its start to exact",
        "F24",
        GATE_EXACT,
    ),
    (
        "T12 stale copy of Redis: from its start to exact",
        "F26",
        GATE_EXACT,
    ),
    (
        "T12 Redis killed: from its start to exact",
        "F23",
        GATE_EXACT,
    ),
    (
        "T12 Redis down for long: from its start to exact",
        "F28",
        GATE_EXACT,
    ),
    (
        "F10 a blocked order service: until it ended itself",
        "F10",
        "ended_after_that_s",
    ),
    ("T13 Kafka down: seconds", "F11", "down_s"),
    (
        "T13 Kafka down: tries turned away",
        "F11",
        "tries_turned_away",
    ),
    (
        "T13 Kafka down: accepted meanwhile",
        "F11",
        "accepted_meanwhile",
    ),
    (
        "T13 Kafka back: backlog drained",
        "F11",
        "backlog_drained_s",
    ),
    (
        "T14 PostgreSQL restart: first refusal",
        "F33",
        "first_refusal_s",
    ),
    (
        "T14 PostgreSQL restart: first 201 after it is up",
        "F33",
        "first_201_after_up_s",
    ),
    (
        "T18 rolling restart: tries without an answer",
        "F9",
        "tries_without_answer",
    ),
    ("T19 SIGTERM to exit, slowest", "F9", "slowest_end_s"),
];

/// COMMITs of unknown outcome: in words, a label of their counter.
const COMMITS: &[(&str, &str)] = &[
    (
        "T15 unknown COMMITs of the accept found committed",
        "\"committed\"",
    ),
    (
        "T15 unknown COMMITs of the accept run again",
        "\"run_again\"",
    ),
];

/// The greater; what never happened (-1) is worse than any.
fn worst(one: f64, other: f64) -> f64 {
    if one < 0.0 || other < 0.0 {
        -1.0
    } else {
        one.max(other)
    }
}

/// All figures.
///
/// # Errors
/// The database can't be read.
pub async fn all(
    site: &Site,
    conn: &mut PgConnection,
    rows: &[Row],
) -> anyhow::Result<Vec<Measure>> {
    let mut measures = Vec::new();
    for (what, outcome) in COMMITS {
        measures.push(Measure {
            what: (*what).to_owned(),
            value: site
                .metrics
                .sum("accept_unknown_commits_total", &[*outcome]),
            unit: "count",
        });
    }
    for (what, unit, statement) in LATENESS {
        let value: Option<f64> = sqlx::query_scalar(*statement).fetch_one(&mut *conn).await?;
        measures.push(Measure {
            what: (*what).to_owned(),
            value: value.unwrap_or(0.0),
            unit,
        });
    }
    for (what, ids, name) in FAULTS {
        let of = rows.iter().filter(|row| row.id == *ids);
        let found = of.filter_map(|row| row.measured.iter().find(|(of, _)| of == name));
        if let Some(value) = found.map(|(_, value)| *value).reduce(worst) {
            let unit = if name.ends_with("_s") { "s" } else { "count" };
            measures.push(Measure {
                what: (*what).to_owned(),
                value,
                unit,
            });
        }
    }
    Ok(measures)
}
