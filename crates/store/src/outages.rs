//! Outages of ours: expiry pauses, and the buyers get the lost time back (P5). All of this runs
//! under the expiry lock ([`crate::expiry::try_lock`]).

use contracts::Timestamp;
use uuid::Uuid;

use crate::{
    Conn, Tx,
    error::{Bounded, Result},
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
        "select id, reason, opened_at from outages where closed_at is null"
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

/// Closes an outage as of `closed_at` and moves the deadlines of RESERVED orders by the time that
/// each lost: since the outage began, or since the order did. Returns how many were moved; 0 when
/// the outage was closed before. Orders are locked sorted, as settlement locks them.
///
/// # Errors
/// The database.
pub async fn close(tx: &mut Tx, id: Uuid, closed_at: Timestamp) -> Result<i64> {
    let moved = sqlx::query_scalar!(
        r#"with closed as (
               update outages set closed_at = $2 where id = $1 and closed_at is null
               returning opened_at),
           waiting as materialized (
               select o.id
               from orders o
               where o.status = 'RESERVED'
                 and o.created_at < $2
                 and exists (select from closed)
               order by o.id
               for no key update of o),
           moved as (
               update orders o
               set reserved_until = o.reserved_until
                       + lost_to_outage(c.opened_at, o.created_at, $2),
                   first_until = coalesce(o.first_until, o.reserved_until)
               from closed c, waiting w
               where o.id = w.id
                 and o.status = 'RESERVED'
               returning 1)
           select count(*) as "moved!" from moved"#,
        id,
        closed_at
    )
    .fetch_one(&mut **tx)
    .slowly("close an outage")
    .await?;
    sqlx::query!(
        "update outages set moved = $2 where id = $1 and moved is null",
        id,
        moved
    )
    .execute(&mut **tx)
    .answer("note moved deadlines")
    .await?;
    Ok(moved)
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
