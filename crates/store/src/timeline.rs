//! The story of one order, for people: history, payments, refunds and events by time.

use contracts::{OrderId, Timestamp};

use crate::{
    Store,
    error::{Bounded, Result},
};

struct Found {
    at: Timestamp,
    what: String,
    place: String,
    by: String,
    version: Option<i64>,
    outbox_id: Option<i64>,
    event_id: Option<uuid::Uuid>,
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
    pub event: Option<(i64, uuid::Uuid)>,
}

/// All steps of an order (its events are found by a scan of the outbox: not for a hot path), by time; empty when there is no such order.
///
/// # Errors
/// No answer.
pub async fn of_order(store: &Store, id: OrderId) -> Result<Vec<Step>> {
    let mut conn = store.conn().await?;
    let rows = sqlx::query_as!(
        Found,
        r#"select at as "at!", what as "what!", place as "place!", by as "by!", version,
                  outbox_id, event_id
           from (
               select h.at, coalesce(h.from_status || ' -> ', '') || h.to_status as what,
                      'order_history' as place, h.cause as by, h.version,
                      null::bigint as outbox_id, null::uuid as event_id
               from order_history h where h.order_id = $1
               union all
               select p.updated_at, 'payment ' || p.state, 'payments', p.id, p.version, null, null
               from payments p where p.order_id = $1
               union all
               select r.created_at, 'refund REQUESTED', 'refunds', r.reason, null, null, null
               from refunds r where r.payment_id in (select id from payments where order_id = $1)
               union all
               select r.closed_at, 'refund ' || r.state, 'refunds', r.refund_key, null, null, null
               from refunds r
               where r.payment_id in (select id from payments where order_id = $1)
                 and r.closed_at is not null
               union all
               select o.at, o.type, o.topic, o.source, o.aggregate_version, o.id, o.event_id
               from outbox o where o.key = $2) steps
           order by at, outbox_id nulls first"#,
        id.0,
        id.to_string(),
    )
    .fetch_all(&mut *conn)
    .answer("read a timeline")
    .await?;
    let step = |row| {
        let Found {
            at,
            what,
            place,
            by,
            version,
            outbox_id,
            event_id,
        } = row;
        Step {
            at,
            what,
            place,
            by,
            version,
            event: outbox_id.zip(event_id),
        }
    };
    Ok(rows.into_iter().map(step).collect())
}
