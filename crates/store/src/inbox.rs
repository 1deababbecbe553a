//! Which events a consumer has handled. A row is written in the transaction of the event's effect.

use std::collections::{BTreeSet, HashSet};

use contracts::ConsumerName;

use crate::{
    Conn, Tx,
    error::{Bounded, Result},
};

/// An event: (`ce_source`, `ce_id`).
pub type EventKey = (String, String);

/// Records events as handled, sorted; returns those that were not yet. Waits for a twin in flight.
///
/// # Errors
/// 55P03 when a twin takes longer.
pub async fn insert(
    tx: &mut Tx,
    consumer: ConsumerName,
    events: &[EventKey],
) -> Result<HashSet<EventKey>> {
    let events: BTreeSet<&EventKey> = events.iter().collect();
    let (sources, ids) = columns(events.iter().copied());
    let rows = sqlx::query!(
        "insert into inbox (consumer, source, event_id)
         select $1, e.source, e.event_id
         from unnest($2::text[], $3::text[]) with ordinality as e (source, event_id, position)
         order by e.position
         on conflict do nothing
         returning source, event_id",
        consumer.as_str(),
        &sources as &[&str],
        &ids as &[&str],
    )
    .fetch_all(&mut **tx)
    .answer("record events as handled")
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| (row.source, row.event_id))
        .collect())
}

fn columns<'a>(events: impl Iterator<Item = &'a EventKey>) -> (Vec<&'a str>, Vec<&'a str>) {
    events
        .map(|(source, id)| (source.as_str(), id.as_str()))
        .unzip()
}

/// Whether an event is recorded as handled.
///
/// # Errors
/// No answer.
pub async fn knows(tx: &mut Tx, consumer: ConsumerName, event: &EventKey) -> Result<bool> {
    sqlx::query_scalar!(
        r#"select exists (select from inbox
                          where consumer = $1 and source = $2 and event_id = $3) as "knows!""#,
        consumer.as_str(),
        event.0,
        event.1,
    )
    .fetch_one(&mut **tx)
    .answer("look for a handled event")
    .await
}

/// Deletes at most `limit` rows older than `age`; returns how many.
///
/// # Errors
/// No answer.
pub async fn prune(conn: &mut Conn, age: std::time::Duration, limit: i64) -> Result<u64> {
    // By ctid: rows of the inbox are never updated, and a join by key would cost a sort.
    let done = sqlx::query!(
        "delete from inbox
         where ctid = any (array(
             select ctid from inbox where at < now() - make_interval(secs => $1) limit $2))",
        age.as_secs_f64(),
        limit,
    )
    .execute(conn)
    .slowly("prune the inbox")
    .await?;
    Ok(done.rows_affected())
}
