//! Receives or writes off units of a SKU. The key makes a repeat answer as the first did; units that
//! are held or sold can't be written off.
//!
//! Steps: lock the stock row, look for the key, change the row, record the adjustment and
//! `STOCK_ADJUSTED` in the same transaction, commit, tell the gate the new limit.
//! When the process dies: before the commit nothing happened; after it a repeat finds its adjustment,
//! and the audit tells the gate within 8 s.

use contracts::{HoldId, Sku};
use store::{
    Store, StoreError,
    adjustments::{self, Adjusted, NewAdjustment},
};

use crate::{
    parse::adjustment::AdjustmentDraft,
    rerun::{self, GivenUp},
    sync_gate::SyncGate,
};

/// Where the key counts.
const ROUTE: &str = "POST /v1/skus/{sku}/adjustments";

/// Makes an adjustment, once per key.
///
/// # Errors
/// The database.
pub(crate) async fn adjust(
    store: &Store,
    sync: &SyncGate,
    sku: &Sku,
    key: &str,
    draft: &AdjustmentDraft,
) -> Result<Adjusted, StoreError> {
    let new = NewAdjustment {
        request_id: HoldId::derive("operator", ROUTE, key),
        fingerprint: draft.fingerprint(sku),
        sku: sku.clone(),
        delta: draft.delta,
        reason: draft.reason.clone(),
    };
    let adjusted = rerun::until_known(|run| transact(store.clone(), new.clone(), run)).await?;
    if let Adjusted::Done(adjustment) | Adjusted::Repeat(adjustment) = &adjusted {
        sync.sku_now(adjustment.sku.clone()).await;
    }
    Ok(adjusted)
}

async fn transact(store: Store, new: NewAdjustment, run: GivenUp) -> Result<Adjusted, StoreError> {
    let mut tx = store.begin().await?;
    match adjustments::insert(&mut tx, &new).await {
        Ok(done @ Adjusted::Done(_)) => {
            run.commit(tx).await?;
            Ok(done)
        }
        Ok(other) => {
            tx.rollback().await?;
            Ok(other)
        }
        // The same key at the same moment for another SKU: whoever was first is what it stands for.
        Err(error) if error.constraint() == Some("stock_adjustments_request_once") => {
            tx.rollback().await?;
            match adjustments::find(&store, new.request_id).await? {
                Some(before) => Ok(Adjusted::Repeat(before)),
                None => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}
