//! What the comparison with the gateway's own journal reads and writes (I16).

use std::time::Duration;

use super::{PendingPayment, RawRecorded, RecordedPayment};
use crate::{
    Conn, Tx,
    error::{Bounded, Result},
};

/// The payments with one of these gateway keys, without a lock.
///
/// # Errors
/// The database, or a row that breaks the contract.
pub async fn by_gateway_keys(
    conn: &mut Conn,
    gateway_keys: &[String],
) -> Result<Vec<RecordedPayment>> {
    let rows = sqlx::query_as!(
        RawRecorded,
        r#"select id, order_id, gateway_key, state, amount_minor, currency, method,
                  captured_minor, refunded_minor, reason_code, version
           from payments
           where gateway_key = any($1)"#,
        gateway_keys
    )
    .fetch_all(conn)
    .answer("read payments by their gateway keys")
    .await?;
    rows.into_iter().map(RawRecorded::read).collect()
}

/// Inserts the PENDING row of a charge that the gateway has made and that is not here. The sweep
/// looks at it `lease` from now. `false` when its key or its id is there.
///
/// # Errors
/// The database.
pub async fn adopt(tx: &mut Tx, payment: &PendingPayment, lease: Duration) -> Result<bool> {
    let done = sqlx::query!(
        r#"insert into payments (id, order_id, gateway_key, state, amount_minor, currency, method,
                                 next_attempt_at)
           values ($1, $2, $3, 'PENDING', $4, $5, $6, clock_timestamp() + make_interval(secs => $7))
           on conflict do nothing"#,
        payment.id.to_string(),
        payment.order_id.0,
        payment.gateway_key,
        payment.amount.amount_minor,
        payment.amount.currency.to_string(),
        payment.method.to_string(),
        lease.as_secs_f64()
    )
    .execute(&mut **tx)
    .answer("adopt a charge of the gateway")
    .await?;
    Ok(done.rows_affected() == 1)
}
