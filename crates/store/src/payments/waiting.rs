//! Which orders may be charged: RESERVED, with time left, and locked against their end (P5).

use std::time::Duration;

use contracts::{Money, OrderId, PaymentMethod};
use domain::deadline::PAUSED_AT_MOST;

use crate::{
    Conn, Tx,
    error::{Bounded, Result},
    expiry::Cursor,
    text,
};

/// An order that waits for its payment, locked against its end until this transaction ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingOrder {
    /// Which.
    pub order_id: OrderId,
    /// What it costs.
    pub total: Money,
    /// How the buyer pays.
    pub method: PaymentMethod,
    /// When it was accepted.
    pub created_at: contracts::Timestamp,
    /// Its deadline.
    pub reserved_until: contracts::Timestamp,
    /// The server's clock at the guarded read.
    pub now: contracts::Timestamp,
}

/// The guarded read (P5): those orders that are RESERVED and have more than `min_left_max`, or a
/// quarter of their time, left. What an open outage of ours has taken from them is theirs again
/// when its deadline moves, so it counts as left until then. They are locked, so that none ends before this transaction
/// does.
///
/// # Errors
/// The database, or a row that breaks the contract.
pub async fn lock_waiting_orders(
    tx: &mut Tx,
    orders: &[OrderId],
    min_left_max: Duration,
) -> Result<Vec<WaitingOrder>> {
    if orders.is_empty() {
        return Ok(Vec::new());
    }
    let (waiting, outage) = lock_waiting(tx, orders, min_left_max).await?;
    if !outage {
        return Ok(waiting);
    }
    // The read may have waited for an outage to close, and then it saw the deadline moved by it and
    // the outage still open. Under the locks neither can change: what a second read sees is true.
    let locked: Vec<OrderId> = waiting.iter().map(|order| order.order_id).collect();
    Ok(lock_waiting(tx, &locked, min_left_max).await?.0)
}

/// One read, and whether an outage of ours counted in it.
async fn lock_waiting(
    tx: &mut Tx,
    orders: &[OrderId],
    min_left_max: Duration,
) -> Result<(Vec<WaitingOrder>, bool)> {
    let ids: Vec<uuid::Uuid> = orders.iter().map(|id| id.0).collect();
    let rows = sqlx::query!(
        r#"select o.id, o.total_minor, o.currency, o.payment_method, o.created_at,
                  o.reserved_until, clock_timestamp() as "now!", x.id is not null as "outage!"
           from orders o
                    left join outages x on x.closed_at is null
           where o.id = any($1) and o.status = 'RESERVED'
             and clock_timestamp() < o.reserved_until
                 + case when x.id is null or o.moved_for = x.id then interval '0'
                        else lost_to_outage(x.opened_at, o.created_at,
                                            least(clock_timestamp(), x.ended_at,
                                                  x.opened_at + make_interval(secs => $3))) end
                 - least(make_interval(secs => $2), (o.reserved_until - o.created_at) / 4)
           order by o.id
           for share of o"#,
        &ids,
        min_left_max.as_secs_f64(),
        PAUSED_AT_MOST.as_secs_f64()
    )
    .fetch_all(&mut **tx)
    .answer("lock the orders that wait for a payment")
    .await?;
    let outage = rows.iter().any(|row| row.outage);
    let waiting = rows
        .into_iter()
        .map(|row| {
            Ok(WaitingOrder {
                order_id: OrderId(row.id),
                total: text::money(row.total_minor, &row.currency)?,
                method: text::payment_method(&row.payment_method)?,
                created_at: row.created_at,
                reserved_until: row.reserved_until,
                now: row.now,
            })
        })
        .collect::<Result<_>>()?;
    Ok((waiting, outage))
}

/// The next RESERVED orders after the cursor, by deadline, that are older than `older_than` and for
/// which nobody has begun a payment.
///
/// # Errors
/// The database.
pub async fn orders_without(
    conn: &mut Conn,
    after: Cursor,
    older_than: Duration,
    limit: i64,
) -> Result<Vec<Cursor>> {
    let rows = sqlx::query!(
        r#"select o.id, o.reserved_until
           from orders o
           where o.status = 'RESERVED'
             and (o.reserved_until, o.id) > ($1, $2)
             and o.created_at < clock_timestamp() - make_interval(secs => $3)
             and not exists (select from payments p where p.order_id = o.id)
           order by o.reserved_until, o.id
           limit $4"#,
        after.reserved_until,
        after.order_id.0,
        older_than.as_secs_f64(),
        limit
    )
    .fetch_all(conn)
    .answer("find orders without a payment")
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| Cursor::at(row.reserved_until, row.id))
        .collect())
}
