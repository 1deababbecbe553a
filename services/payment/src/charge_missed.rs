//! Charges orders that lived through an outage of ours and that nobody looks at any more. Guarantee:
//! when an outage has closed, each RESERVED order has a payment, or too little time for one.
//!
//! `ORDER_RESERVED` may be consumed while the outage still takes the order's time and before stock
//! has noticed it; then the order is too late for a charge, and the event does not come again. When
//! the outage closes, the deadline moves (P5).
//!
//! Steps, at the start and whenever another outage has closed:
//! 1. Page the RESERVED orders without a payment, by deadline. Those that are younger than a lease
//!    are on their way. A deadline moves to later only, so none is passed over.
//! 2. Per page what the consumer does ([`crate::charge_payments`]): guarded read, PENDING rows,
//!    COMMIT, then the pool. Dies before or after: as there; the next start begins anew.
//! 3. When all pages are done, remember which outage it was. Dies: the same.

use contracts::{OrderId, Timestamp};
use store::{Store, StoreError, expiry::Cursor, outages, payments};
use tokio::sync::Mutex;

use crate::{LEASE, charge_payments::ChargePayments};

/// Orders of one transaction.
const PAGE: i64 = 200;

/// The look, and which outage it has seen the end of.
#[derive(Debug)]
pub struct ChargeMissed {
    store: Store,
    charges: ChargePayments,
    /// `None`: it has not looked yet.
    seen: Mutex<Option<Option<Timestamp>>>,
}

impl ChargeMissed {
    /// A look that charges through `charges`.
    #[must_use]
    pub fn new(store: Store, charges: ChargePayments) -> Self {
        Self {
            store,
            charges,
            seen: Mutex::default(),
        }
    }

    /// Looks, when there is a reason; returns how many orders it found.
    ///
    /// # Errors
    /// The database; the next look begins anew.
    pub async fn look(&self) -> Result<usize, StoreError> {
        let mut seen = self.seen.lock().await;
        let closed = {
            let mut conn = self.store.conn().await?;
            outages::last_closed_at(&mut conn).await?
        };
        if *seen == Some(closed) {
            return Ok(0);
        }
        let found = self.charge_all().await?;
        *seen = Some(closed);
        if found > 0 {
            metrics::counter!("payments_missed_total")
                .increment(u64::try_from(found).unwrap_or(u64::MAX));
            tracing::info!(
                orders = found,
                "orders without a payment were found and looked at again"
            );
        }
        Ok(found)
    }

    async fn charge_all(&self) -> Result<usize, StoreError> {
        let (mut after, mut found) = (Cursor::START, 0);
        loop {
            let page = {
                let mut conn = self.store.conn().await?;
                payments::orders_without(&mut conn, after, LEASE, PAGE).await?
            };
            let Some(last) = page.last() else {
                return Ok(found);
            };
            after = *last;
            found += page.len();
            let orders: Vec<OrderId> = page.iter().map(|place| place.order_id).collect();
            self.charges.begin(&orders).await?;
        }
    }
}
