//! Webhooks tell mostly what the answer to the same call has told already. They wait a moment, and
//! those that are known then are dropped after a plain read, so that the lane that records the
//! answers begins no transaction for them. The rest goes the way of all news.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use contracts::RefundKey;
use platform::Shutdown;
use store::{
    Store, StoreError,
    payments::{self, RecordedPayment},
    refund_executions,
};
use tokio::sync::mpsc;

use super::{
    News, Step,
    queue::{BATCH, Entry},
    same_order, step,
};

/// How long an answer may take longer than its webhook.
const PATIENCE: Duration = Duration::from_millis(50);

pub(super) async fn run(
    store: Store,
    mut hints: mpsc::Receiver<News>,
    queue: mpsc::Sender<Entry>,
    shutdown: Shutdown,
) {
    let mut batch = Vec::with_capacity(BATCH);
    while hints.recv_many(&mut batch, BATCH).await > 0 {
        tokio::select! {
            () = shutdown.begun() => {}
            () = tokio::time::sleep(PATIENCE) => {}
        }
        // While PostgreSQL is away nothing is known, and all of it waits in the lane.
        let known = Known::read(&store, &batch).await.unwrap_or_default();
        for news in batch.drain(..) {
            if known.has(&news) {
                metrics::counter!("payment_hints_known_total").increment(1);
                continue;
            }
            let entry = Entry {
                news,
                recorded: None,
            };
            if queue.send(entry).await.is_err() {
                return;
            }
        }
    }
}

#[derive(Default)]
struct Known {
    payments: BTreeMap<String, RecordedPayment>,
    refunds: BTreeSet<RefundKey>,
}

impl Known {
    async fn read(store: &Store, batch: &[News]) -> Result<Self, StoreError> {
        let (mut charges, mut refunds) = (Vec::new(), Vec::new());
        for news in batch {
            match news {
                News::Charge(charge) => charges.push(charge.key.clone()),
                News::Refund { key, .. } => refunds.push(key.clone()),
                News::ChargeUnknown { .. } | News::RefundUnknown { .. } => {}
            }
        }
        let mut known = Self::default();
        let mut conn = store.conn().await?;
        if !charges.is_empty() {
            let rows = payments::by_gateway_keys(&mut conn, &charges).await?;
            known.payments = rows
                .into_iter()
                .filter_map(|row| Some((row.gateway_key.clone()?, row)))
                .collect();
        }
        if !refunds.is_empty() {
            known.refunds = refund_executions::done(&mut conn, &refunds).await?;
        }
        Ok(known)
    }

    fn has(&self, news: &News) -> bool {
        match news {
            News::Charge(charge) => self.payments.get(&charge.key).is_some_and(|row| {
                step(row.state, &charge.outcome) == Step::Known
                    && same_order(charge.order_id, row.order_id, &charge.outcome)
            }),
            News::Refund { key, .. } => self.refunds.contains(key),
            News::ChargeUnknown { .. } | News::RefundUnknown { .. } => false,
        }
    }
}
