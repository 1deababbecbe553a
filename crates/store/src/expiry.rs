//! Which orders are overdue, in two statements (P5).
//!
//! One statement is not enough: payment's guarded read locks the order FOR SHARE and leaves no new
//! row version, so a single statement that had waited for it would not look at payments again. The
//! first statement locks without looking at payments; the second, with a new snapshot, sees every
//! payment that was begun before the lock was had.

use chrono::{DateTime, Utc};
use contracts::{OrderId, Timestamp};
use uuid::Uuid;

use crate::{
    Tx,
    error::{Bounded, Result},
};

/// A place in the order of deadlines: where the next batch of a pass begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// The deadline of the last order seen.
    pub reserved_until: Timestamp,
    /// Its id.
    pub order_id: OrderId,
}

impl Cursor {
    /// Before all orders.
    pub const START: Self = Self {
        reserved_until: DateTime::<Utc>::UNIX_EPOCH,
        order_id: OrderId(Uuid::nil()),
    };

    /// At an order's row.
    pub(crate) fn at(reserved_until: Timestamp, order: Uuid) -> Self {
        Self {
            reserved_until,
            order_id: OrderId(order),
        }
    }
}

/// The key of the lock under which expiry decides and outages open and close.
const EXPIRY_LOCK: i64 = 0x686f_6c64_6578_7069;

/// Takes the expiry lock until the transaction ends; `false` when another process has it.
///
/// # Errors
/// The database.
pub async fn try_lock(tx: &mut Tx) -> Result<bool> {
    sqlx::query_scalar!(
        r#"select pg_try_advisory_xact_lock($1) as "got!""#,
        EXPIRY_LOCK
    )
    .fetch_one(&mut **tx)
    .answer("take the expiry lock")
    .await
}

/// Statement 1: locks overdue RESERVED orders after the cursor, without looking at payments. What
/// another transaction has locked is being decided by it and is skipped; so no lock is waited for,
/// and the order of locking (by deadline, as the index has it) can't deadlock.
///
/// # Errors
/// The database.
pub async fn lock_due(tx: &mut Tx, after: Cursor, limit: i64) -> Result<Vec<Cursor>> {
    let rows = sqlx::query!(
        r#"select id, reserved_until
           from orders
           where status = 'RESERVED'
             and reserved_until <= now()
             and (reserved_until, id) > ($1, $2)
           order by reserved_until, id
           limit $3
           for no key update skip locked"#,
        after.reserved_until,
        after.order_id.0,
        limit
    )
    .fetch_all(&mut **tx)
    .answer("lock due orders")
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| Cursor::at(row.reserved_until, row.id))
        .collect())
}

/// Statement 2: of locked orders, those that no payment in flight protects, sorted by id. For
/// `grace_seconds` after the deadline a payment protects its order while it is PENDING, and while
/// it is captured and the news is on its way to settlement, which applies it or refunds it. One that
/// settlement has flagged is not on its way: nothing will ever apply it.
///
/// # Errors
/// The database.
pub async fn without_payment(
    tx: &mut Tx,
    locked: &[OrderId],
    grace_seconds: f64,
) -> Result<Vec<OrderId>> {
    let ids: Vec<Uuid> = locked.iter().map(|id| id.0).collect();
    let ids = sqlx::query_scalar!(
        r#"select o.id
           from orders o
           where o.id = any($1)
             and o.status = 'RESERVED'
             and not exists (select
                             from payments p
                             where p.order_id = o.id
                               and (p.state = 'PENDING'
                                    or p.state = 'COMPLETED'
                                       and not p.applied
                                       and p.flagged is null
                                       and not exists (select
                                                       from refunds r
                                                       where r.payment_id = p.id))
                               and now() < o.reserved_until + make_interval(secs => $2))
           order by o.id"#,
        &ids,
        grace_seconds
    )
    .fetch_all(&mut **tx)
    .answer("drop orders with a payment in flight")
    .await?;
    Ok(ids.into_iter().map(OrderId).collect())
}
