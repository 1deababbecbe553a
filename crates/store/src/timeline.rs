//! The story of one order, for people: history, payments, refunds and events by time.

use contracts::{OrderId, Timestamp};
use uuid::Uuid;

use crate::{
    Conn, Store,
    error::{Bounded, Result},
};

/// How far from a moment of the order its events are looked for: a transaction takes its time from
/// PostgreSQL, waits for locks and writes them; ends of orders follow the news that caused them.
const NEAR: chrono::TimeDelta = chrono::TimeDelta::seconds(5);

/// The most rows of the outbox that are read around one moment.
const ROWS_MAX: i64 = 50_000;

/// Which events a timeline has. The outbox has no index by key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Events {
    /// Those written within 5 s of a moment at which the order, a payment or a refund changed, by
    /// what the rows say now: bounded work, whatever was sold. What was asked or sent again
    /// between such moments is not among them.
    Near,
    /// All, by a scan of the outbox: not for a hot path.
    All,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// When.
    pub at: Timestamp,
    /// What: `RESERVED -> CONFIRMED`, `payment COMPLETED`, `ORDER_CONFIRMED`.
    pub what: String,
    /// Where: the table, or the topic of an event.
    pub place: String,
    /// Who: the cause, or the source of an event.
    pub by: String,
    /// Of the order or the event.
    pub version: Option<i64>,
    /// Of an event: its position in the outbox, and its id.
    pub event: Option<(i64, Uuid)>,
}

/// All steps of an order, with these events, by time; empty when there is no such order.
///
/// # Errors
/// No answer.
pub async fn of_order(store: &Store, id: OrderId, events: Events) -> Result<Vec<Step>> {
    let mut conn = store.conn().await?;
    let (mut steps, moments) = changes(&mut conn, id).await?;
    steps.extend(match events {
        Events::Near => events_near(&mut conn, id, moments).await?,
        Events::All => all_events(&mut conn, id).await?,
    });
    steps.sort_by_key(|step| (step.at, step.event));
    Ok(steps)
}

/// What the tables say of an order and its money, and all the moments in it.
async fn changes(conn: &mut Conn, id: OrderId) -> Result<(Vec<Step>, Vec<Timestamp>)> {
    let rows = sqlx::query!(
        r#"select at as "at!", began, what as "what!", place as "place!", by as "by!", version
           from (
               select h.at, null::timestamptz as began,
                      coalesce(h.from_status || ' -> ', '') || h.to_status as what,
                      'order_history' as place, h.cause as by, h.version
               from order_history h where h.order_id = $1
               union all
               select p.updated_at, p.created_at, 'payment ' || p.state, 'payments', p.id, p.version
               from payments p where p.order_id = $1
               union all
               select r.created_at, null, 'refund REQUESTED', 'refunds', r.reason, null
               from refunds r where r.payment_id in (select id from payments where order_id = $1)
               union all
               select r.closed_at, null, 'refund ' || r.state, 'refunds', r.refund_key, null
               from refunds r
               where r.payment_id in (select id from payments where order_id = $1)
                 and r.closed_at is not null) steps
           order by at"#,
        id.0,
    )
    .fetch_all(conn)
    .answer("read a timeline")
    .await?;
    let moments = rows
        .iter()
        .flat_map(|row| std::iter::once(row.at).chain(row.began))
        .collect();
    let steps = rows.into_iter().map(|row| Step {
        at: row.at,
        what: row.what,
        place: row.place,
        by: row.by,
        version: row.version,
        event: None,
    });
    Ok((steps.collect(), moments))
}

struct Event {
    id: i64,
    event_id: Uuid,
    event_type: String,
    topic: String,
    source: String,
    version: i64,
    at: Timestamp,
}

impl From<Event> for Step {
    fn from(event: Event) -> Self {
        Self {
            at: event.at,
            what: event.event_type,
            place: event.topic,
            by: event.source,
            version: Some(event.version),
            event: Some((event.id, event.event_id)),
        }
    }
}

/// Spans of time around moments, apart from each other.
fn spans(mut moments: Vec<Timestamp>) -> (Vec<Timestamp>, Vec<Timestamp>) {
    moments.sort_unstable();
    let (mut begins, mut ends) = (Vec::new(), Vec::<Timestamp>::new());
    for moment in moments {
        match ends.last_mut() {
            Some(end) if moment - NEAR <= *end => *end = moment + NEAR,
            _ => {
                begins.push(moment - NEAR);
                ends.push(moment + NEAR);
            }
        }
    }
    (begins, ends)
}

async fn events_near(conn: &mut Conn, id: OrderId, moments: Vec<Timestamp>) -> Result<Vec<Step>> {
    let (begins, ends) = spans(moments);
    // `offset 0`: the ends of a span are looked for once, not for each row. No order before the limit:
    // all would be read to be sorted.
    let events = sqlx::query_as!(
        Event,
        r#"select o.id as "id!", o.event_id as "event_id!", o.type as "event_type!",
                  o.topic as "topic!", o.source as "source!", o.aggregate_version as "version!",
                  o.at as "at!"
           from unnest($2::timestamptz[], $3::timestamptz[]) as span (begins, ends)
                    cross join lateral (
               select outbox_since(span.begins) as low, outbox_since(span.ends) as high
               offset 0) ids
                    cross join lateral (
               select id, event_id, type, topic, source, aggregate_version, at, key
               from outbox where id >= ids.low and id < ids.high limit $4) o
           where o.key = $1"#,
        id.to_string(),
        &begins,
        &ends,
        ROWS_MAX,
    )
    .fetch_all(conn)
    .answer("read the events of a timeline")
    .await?;
    Ok(events.into_iter().map(Step::from).collect())
}

async fn all_events(conn: &mut Conn, id: OrderId) -> Result<Vec<Step>> {
    let events = sqlx::query_as!(
        Event,
        r#"select id, event_id, type as event_type, topic, source, aggregate_version as version, at
           from outbox where key = $1"#,
        id.to_string(),
    )
    .fetch_all(conn)
    .slowly("read all events of a timeline")
    .await?;
    Ok(events.into_iter().map(Step::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_close_to_each_other_are_one_span() {
        let at = |seconds| chrono::DateTime::UNIX_EPOCH + chrono::TimeDelta::seconds(seconds);
        let (begins, ends) = spans(vec![at(100), at(40), at(49), at(45)]);
        assert_eq!(begins, [at(35), at(95)]);
        assert_eq!(ends, [at(54), at(105)]);
    }
}
