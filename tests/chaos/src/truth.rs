//! The clients' log against the database (I11): who heard 201 has its order, and nobody who has an
//! order was told otherwise afterwards.

use std::collections::BTreeMap;

use anyhow::Context;
use bytes::Bytes;
use contracts::{HoldId, Topic};
use futures::StreamExt;
use http::Method;
use serde::Serialize;
use sqlx::{PgConnection, Row};

use crate::{
    http::Http,
    ledger::{Inner, Ledger, Request, Seen},
    load::{Load, SOURCE},
    plan::plan,
    plant::SHOP_KEY,
};

/// The scope of the shop's keys, and the route (`services/order`).
const SHOP: &str = "shop";
const ROUTE: &str = "POST /v1/orders";
const OFFENDERS: usize = 20;

/// One rule about what clients were told.
#[derive(Debug, Clone, Serialize)]
pub struct Told {
    /// The rule.
    pub rule: &'static str,
    /// How many answers or keys it was held against.
    pub judged: usize,
    /// Who broke it, a few of them.
    pub offenders: Vec<String>,
    /// How many there are.
    pub broken: usize,
}

impl Told {
    fn of(rule: &'static str, judged: usize, offenders: Vec<String>) -> Self {
        let broken = offenders.len();
        Self {
            rule,
            judged,
            offenders: offenders.into_iter().take(OFFENDERS).collect(),
            broken,
        }
    }
}

/// Asks every key that has no definite answer again, and every key whose last answer was a refusal
/// although it has an order, and a sample of the accepted ones: all must be answered now.
///
/// # Errors
/// The database can't be read.
pub async fn ask_again(load: &Load, conn: &mut PgConnection) -> anyhow::Result<usize> {
    let rows = keys(conn).await?;
    let open: Vec<(String, &'static str)> = {
        let inner = load.ledger.inner();
        let all = inner
            .requests
            .values()
            .filter(|one| one.key.starts_with("k-"));
        all.enumerate()
            .filter(|(number, one)| match last_definite(one) {
                None => true,
                Some(Seen::Accepted { .. }) => number % 10 == 0,
                Some(_) => rows.contains_key(&hold_of(&one.key)),
            })
            .map(|(_, one)| (one.key.clone(), one.what))
            .collect()
    };
    let asked = open.len();
    let asking = open.into_iter().map(|(key, what)| async move {
        let number = key[2..].parse().unwrap_or(0);
        let planned = plan(load.seed, number, load.urls.len());
        let mut https = Vec::new();
        for url in &load.urls {
            https.push(Http::new(url, SHOP_KEY)?);
        }
        let body = Bytes::from(planned.body.to_string());
        load.until_definite(&mut https, &key, what, planned.replica, &body)
            .await;
        anyhow::Ok(())
    });
    let mut asking = futures::stream::iter(asking).buffer_unordered(16);
    while let Some(asked) = asking.next().await {
        asked?;
    }
    Ok(asked)
}

fn hold_of(key: &str) -> uuid::Uuid {
    HoldId::derive(SHOP, ROUTE, key).0
}

fn last_definite(request: &Request) -> Option<&Seen> {
    let definite = |seen: &&Seen| matches!(seen, Seen::Accepted { .. } | Seen::Refused(..));
    request
        .tries
        .iter()
        .rev()
        .map(|one| &one.seen)
        .find(definite)
}

/// Every rule.
///
/// # Errors
/// The database can't be read.
pub async fn judge(ledger: &Ledger, conn: &mut PgConnection) -> anyhow::Result<Vec<Told>> {
    let rows = keys(conn).await?;
    let statuses = statuses(conn).await?;
    let inner = ledger.inner();
    Ok(vec![
        has_its_order(&inner, &rows, &statuses),
        one_answer(&inner),
        never_taken_back(&inner),
        last_word(&inner, &rows),
        answered(&inner),
        canceled(&inner, &statuses),
        by_kafka(&inner, &rows),
        Told::of(
            "I12 no observer saw an order's version fall, or its end change",
            inner.orders.len(),
            inner.backwards.clone(),
        ),
        Told::of(
            "no sane request is answered 500 or 4xx, no accepted order is unknown to cancel, no used key takes another body",
            inner
                .statuses
                .values()
                .map(|n| usize::try_from(*n).unwrap_or(0))
                .sum(),
            inner.broken.clone(),
        ),
    ])
}

/// Key rows: hold id to order id; `None` for a stored rejection.
type Rows = BTreeMap<uuid::Uuid, Option<uuid::Uuid>>;

async fn keys(conn: &mut PgConnection) -> anyhow::Result<Rows> {
    let rows = sqlx::query("select hold_id, order_id from idempotency")
        .fetch_all(conn)
        .await
        .context("reading the keys")?;
    let mut keys = Rows::new();
    for row in rows {
        keys.insert(row.try_get(0)?, row.try_get(1)?);
    }
    Ok(keys)
}

async fn statuses(conn: &mut PgConnection) -> anyhow::Result<BTreeMap<String, String>> {
    let rows = sqlx::query("select id::text, status from orders")
        .fetch_all(conn)
        .await
        .context("reading the orders")?;
    let mut statuses = BTreeMap::new();
    for row in rows {
        statuses.insert(row.try_get(0)?, row.try_get(1)?);
    }
    Ok(statuses)
}

fn accepted(request: &Request) -> impl Iterator<Item = (&str, u64)> {
    request.tries.iter().filter_map(|one| match &one.seen {
        Seen::Accepted { order, body, .. } => Some((order.as_str(), *body)),
        _ => None,
    })
}

fn has_its_order(inner: &Inner, rows: &Rows, statuses: &BTreeMap<String, String>) -> Told {
    let mut judged = 0;
    let mut offenders = Vec::new();
    for request in inner.requests.values() {
        let named = rows.get(&hold_of(&request.key)).copied().flatten();
        for (order, _) in accepted(request) {
            judged += 1;
            if named.map(|id| id.to_string()).as_deref() != Some(order)
                || !statuses.contains_key(order)
            {
                offenders.push(format!(
                    "{}: 201 with {order}, the key names {named:?}",
                    request.key
                ));
            }
        }
    }
    Told::of(
        "I11 every 201 has its order, and its key names it",
        judged,
        offenders,
    )
}

fn one_answer(inner: &Inner) -> Told {
    let mut judged = 0;
    let mut offenders = Vec::new();
    for request in inner.requests.values() {
        let mut all = accepted(request);
        let Some(first) = all.next() else { continue };
        for other in all {
            judged += 1;
            if other != first {
                offenders.push(format!("{}: {first:?}, then {other:?}", request.key));
            }
        }
    }
    Told::of("I11 a key's 201s all have the same body", judged, offenders)
}

fn never_taken_back(inner: &Inner) -> Told {
    let mut offenders = Vec::new();
    let mut judged = 0;
    for request in inner.requests.values() {
        let first = request
            .tries
            .iter()
            .filter(|one| matches!(one.seen, Seen::Accepted { .. }))
            .map(|one| one.done)
            .min();
        let Some(first) = first else { continue };
        judged += 1;
        for one in &request.tries {
            if one.sent > first
                && let Seen::Refused(status, code) = &one.seen
            {
                offenders.push(format!("{}: {status} {code} after its 201", request.key));
            }
        }
    }
    Told::of(
        "I11 no key that was answered 201 is refused afterwards",
        judged,
        offenders,
    )
}

fn last_word(inner: &Inner, rows: &Rows) -> Told {
    let mut judged = 0;
    let mut offenders = Vec::new();
    for request in inner.requests.values() {
        let Some(last) = last_definite(request) else {
            continue;
        };
        judged += 1;
        let has = rows
            .get(&hold_of(&request.key))
            .is_some_and(Option::is_some);
        if has != matches!(last, Seen::Accepted { .. }) {
            offenders.push(format!(
                "{}: told {last:?}; has an order: {has}",
                request.key
            ));
        }
    }
    Told::of(
        "I11 a key's last definite answer agrees with the database",
        judged,
        offenders,
    )
}

fn answered(inner: &Inner) -> Told {
    let open = inner
        .requests
        .values()
        .filter(|one| last_definite(one).is_none());
    let open: Vec<String> = open
        .map(|one| format!("{}: {:?}", one.key, one.tries.last()))
        .collect();
    Told::of(
        "every key has a definite answer in the end",
        inner.requests.len(),
        open,
    )
}

fn canceled(inner: &Inner, statuses: &BTreeMap<String, String>) -> Told {
    let wrong = inner.cancels.iter().filter_map(|cancel| {
        let status = statuses.get(&cancel.order).map_or("gone", String::as_str);
        // A cancel that came after another end by cancel (a decline) is told 409 rightly.
        let wrong = match cancel.status {
            200 => status != "CANCELED",
            409 => false,
            _ => status == "CANCELED",
        };
        wrong.then(|| {
            format!(
                "{}: cancel said {}, it is {status}",
                cancel.order, cancel.status
            )
        })
    });
    Told::of(
        "I11 an order whose cancel was answered 200 is CANCELED",
        inner.cancels.len(),
        wrong.collect(),
    )
}

fn by_kafka(inner: &Inner, rows: &Rows) -> Told {
    let route = Topic::OrderRequests.as_str();
    let lost = inner.by_kafka.iter().filter(|id| {
        let hold = HoldId::derive(&format!("kafka:{SOURCE}"), route, id);
        !rows.contains_key(&hold.0)
    });
    Told::of(
        "every acknowledged request by Kafka has its order or its stored rejection",
        inner.by_kafka.len(),
        lost.map(|id| format!("{id}: no row")).collect(),
    )
}

/// `GET` answers of a path, for races.
///
/// # Errors
/// No answer.
pub async fn get(http: &mut Http, path: &str) -> anyhow::Result<serde_json::Value> {
    let answer = http.send(Method::GET, path, None, None).await?;
    anyhow::ensure!(answer.status == 200, "{path}: {}", answer.text());
    Ok(answer.json())
}
