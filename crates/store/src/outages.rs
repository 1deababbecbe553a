//! Outages of ours: expiry pauses, and the buyers get the lost time back (P5). All of this runs
//! under the expiry lock ([`crate::expiry::try_lock`]).

use contracts::Timestamp;
use uuid::Uuid;

use crate::{
    Conn, Tx,
    error::{Bounded, Result},
    expiry::Cursor,
};

/// What speaks for and against an outage, as of one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Signals {
    /// PostgreSQL's clock.
    pub now: Timestamp,
    /// When the oldest outbox row that is not published was written.
    pub oldest_unpublished: Option<Timestamp>,
    /// Whether any order is RESERVED: otherwise an outage costs nobody anything.
    pub anyone_waits: bool,
    /// Required consumers and when each was last alive; `None`: never.
    pub heartbeats: Vec<(String, Option<Timestamp>)>,
    /// The outage that is open.
    pub open: Option<Outage>,
    /// The last one that was closed.
    pub last_closed: Option<ClosedOutage>,
}

/// An outage that lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outage {
    /// Its id.
    pub id: Uuid,
    /// Why.
    pub reason: String,
    /// Since when.
    pub opened_at: Timestamp,
    /// When all was well again; since then deadlines are being moved, by [`close`].
    pub ended_at: Option<Timestamp>,
}

/// How far an outage is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    /// Deadlines up to this place have moved; those behind it come next.
    Upto(Cursor),
    /// It is closed: so many deadlines have moved in all.
    Closed(i64),
}

/// An outage that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClosedOutage {
    /// Since when.
    pub opened_at: Timestamp,
    /// Until when.
    pub closed_at: Timestamp,
}

/// Reads the signals.
///
/// # Errors
/// The database.
pub async fn signals(tx: &mut Tx, required: &[&str]) -> Result<Signals> {
    let required: Vec<String> = required.iter().map(|&name| name.to_owned()).collect();
    let oldest = sqlx::query!(
        r#"select clock_timestamp() as "now!",
                  (select o.at
                   from outbox o
                   where o.id > (select greatest(low, sent)
                                 from relay_watermark where name = 'outbox')
                   order by o.id
                   limit 1) as oldest,
                  exists (select from orders where status = 'RESERVED') as "anyone_waits!""#
    )
    .fetch_one(&mut **tx)
    .answer("read the oldest unpublished event")
    .await?;
    let heartbeats = sqlx::query!(
        r#"select n.name as "name!", h.at as "at?"
           from unnest($1::text[]) as n(name)
                    left join heartbeats h on h.name = n.name"#,
        &required
    )
    .fetch_all(&mut **tx)
    .answer("read heartbeats")
    .await?;
    let open = sqlx::query_as!(
        Outage,
        "select id, reason, opened_at, ended_at from outages where closed_at is null"
    )
    .fetch_optional(&mut **tx)
    .answer("read the open outage")
    .await?;
    let last_closed = sqlx::query_as!(
        ClosedOutage,
        r#"select opened_at, closed_at as "closed_at!"
           from outages
           where closed_at is not null
           order by closed_at desc
           limit 1"#
    )
    .fetch_optional(&mut **tx)
    .answer("read the last outage")
    .await?;
    Ok(Signals {
        now: oldest.now,
        oldest_unpublished: oldest.oldest,
        anyone_waits: oldest.anyone_waits,
        heartbeats: heartbeats
            .into_iter()
            .map(|row| (row.name, row.at))
            .collect(),
        open,
        last_closed,
    })
}

/// Opens an outage that began at `opened_at`.
///
/// # Errors
/// The database; a second open outage breaks `outages_one_open`.
pub async fn open(tx: &mut Tx, reason: &str, opened_at: Timestamp) -> Result<()> {
    sqlx::query!(
        "insert into outages (id, reason, opened_at) values ($1, $2, $3)",
        contracts::ids::generate(),
        reason,
        opened_at
    )
    .execute(&mut **tx)
    .answer("open an outage")
    .await?;
    Ok(())
}

/// Closes an outage as of `ended_at`, or of the end that an earlier call has noted, by a step: moves
/// the deadlines of RESERVED orders by the time that each lost, since the outage began or since the
/// order did, among the next `limit` of them after the place `after`. Call it, each time in a
/// transaction of its own, until it says [`Closing::Closed`]; what was closed before is closed.
///
/// `again` says since when something has been wrong since `ended_at`. The earliest that was said is the
/// beginning of another outage, which the last step opens: it may be over by then, and its time is the
/// buyers' all the same.
///
/// Begun anew at any place it moves no order twice, since each carries the outage that it was moved
/// for. Begun at [`Cursor::START`] it passes none over: deadlines move to later ones only, by whomever.
///
/// # Errors
/// The database.
pub async fn close(
    tx: &mut Tx,
    id: Uuid,
    ended_at: Timestamp,
    again: Option<Timestamp>,
    after: Cursor,
    limit: i64,
) -> Result<Closing> {
    let outage = sqlx::query!(
        r#"select opened_at, coalesce(ended_at, $2) as "ended_at!", closed_at, moved
           from outages where id = $1 for no key update"#,
        id,
        ended_at
    )
    .fetch_optional(&mut **tx)
    .answer("read the end of an outage")
    .await?;
    let Some(outage) = outage.filter(|outage| outage.closed_at.is_none()) else {
        return Ok(Closing::Closed(0));
    };
    let page = waiting(tx, after, limit).await?;
    let moved = move_deadlines(tx, id, outage.opened_at, outage.ended_at, &page).await?;
    let moved = outage.moved.unwrap_or(0) + moved;
    let is_full = i64::try_from(page.len()).is_ok_and(|count| count >= limit);
    let next = page.last().copied().filter(|_| is_full);
    let again = sqlx::query_scalar!(
        "update outages
         set ended_at = $2::timestamptz, moved = $3, again_since = least(again_since, $5),
             closed_at = case when $4 then $2::timestamptz end
         where id = $1
         returning again_since",
        id,
        outage.ended_at,
        moved,
        next.is_none(),
        again
    )
    .fetch_one(&mut **tx)
    .answer("note moved deadlines")
    .await?;
    match (next, again) {
        (Some(next), _) => Ok(Closing::Upto(next)),
        (None, Some(again)) => {
            open(tx, "another outage, while deadlines moved", again).await?;
            Ok(Closing::Closed(moved))
        }
        (None, None) => Ok(Closing::Closed(moved)),
    }
}

/// The next RESERVED orders by deadline.
async fn waiting(tx: &mut Tx, after: Cursor, limit: i64) -> Result<Vec<Cursor>> {
    let rows = sqlx::query!(
        "select id, reserved_until
         from orders
         where status = 'RESERVED' and (reserved_until, id) > ($1, $2)
         order by reserved_until, id
         limit $3",
        after.reserved_until,
        after.order_id.0,
        limit
    )
    .fetch_all(&mut **tx)
    .answer("find the next deadlines")
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| Cursor::at(row.reserved_until, row.id))
        .collect())
}

/// Moves those that lived in the outage and were not moved for it. They are locked sorted, as
/// settlement locks them; what has become of one meanwhile counts.
async fn move_deadlines(
    tx: &mut Tx,
    outage: Uuid,
    opened_at: Timestamp,
    ended_at: Timestamp,
    page: &[Cursor],
) -> Result<i64> {
    let ids: Vec<Uuid> = page.iter().map(|place| place.order_id.0).collect();
    sqlx::query_scalar!(
        r#"with waiting as materialized (
               select o.id
               from orders o
               where o.id = any($1)
                 and o.status = 'RESERVED'
                 and o.created_at < $4
                 and o.moved_for is distinct from $2
               order by o.id
               for no key update of o),
           moved as (
               update orders o
               set reserved_until = o.reserved_until + lost_to_outage($3, o.created_at, $4),
                   first_until = coalesce(o.first_until, o.reserved_until),
                   moved_for = $2
               from waiting w
               where o.id = w.id
                 and o.status = 'RESERVED'
               returning 1)
           select count(*) as "moved!" from moved"#,
        &ids,
        outage,
        opened_at,
        ended_at
    )
    .fetch_one(&mut **tx)
    .slowly("move deadlines")
    .await
}

/// When the last outage closed that has closed: whoever remembers it knows whether deadlines have
/// moved since.
///
/// # Errors
/// The database.
pub async fn last_closed_at(conn: &mut Conn) -> Result<Option<Timestamp>> {
    sqlx::query_scalar!("select max(closed_at) from outages")
        .fetch_one(conn)
        .answer("read the end of the last outage")
        .await
}
