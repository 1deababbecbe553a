//! Later deadlines, by the rules of [`domain::deadline::HoldRules`].

use contracts::{OrderId, Timestamp};

use crate::{
    Tx,
    error::{Bounded, Result},
    text::uuids,
};

/// Gives RESERVED orders, which this transaction has locked, later deadlines; never an earlier one.
/// Returns how many were moved.
///
/// # Errors
/// The database.
pub async fn renew(tx: &mut Tx, deadlines: &[(OrderId, Timestamp)]) -> Result<u64> {
    if deadlines.is_empty() {
        return Ok(0);
    }
    let ids: Vec<OrderId> = deadlines.iter().map(|(id, _)| *id).collect();
    let ids = uuids(&ids);
    let until: Vec<Timestamp> = deadlines.iter().map(|(_, until)| *until).collect();
    let done = sqlx::query!(
        "update orders
         set reserved_until = ($2::timestamptz[])[array_position($1::uuid[], id)],
             first_until = coalesce(first_until, reserved_until)
         where id = any($1)
           and status = 'RESERVED'
           and reserved_until < ($2::timestamptz[])[array_position($1::uuid[], id)]",
        &ids,
        &until,
    )
    .execute(&mut **tx)
    .answer("renew holds")
    .await?;
    Ok(done.rows_affected())
}
