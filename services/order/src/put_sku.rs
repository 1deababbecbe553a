//! Creates a SKU with its opening stock, or changes its price, window, limit and ttl.
//!
//! Steps: write catalogue and stock, with the opening adjustment and `STOCK_ADJUSTED` when the SKU is
//! new, in one transaction; commit; tell the gate.
//! When the process dies: before the commit nothing happened; after it a repeat changes nothing, and
//! the audit tells the gate within 8 s.

use contracts::{HoldId, Sku};
use domain::Shard;
use store::{
    Store, StoreError,
    skus::{self, Put, SkuPut, SkuRow, WaitingRoom},
};

use crate::{
    catalogue::{Catalogue, Seen},
    parse::sku::SkuDraft,
    rerun::{self, GivenUp},
    sync_gate::SyncGate,
};

/// Scope and route of the opening adjustment's id: one per SKU.
const ROUTE: &str = "PUT /v1/skus/{sku}";

/// What became of a SKU.
#[derive(Debug, Clone)]
pub(crate) enum SkuPlaced {
    /// It is new.
    Created(SkuRow),
    /// It was there.
    Updated(SkuRow),
    /// It is new and nobody said how many units there are.
    OnHandRequired,
}

/// Creates or changes a SKU.
///
/// # Errors
/// The database.
pub(crate) async fn put(
    store: &Store,
    sync: &SyncGate,
    catalogue: &Catalogue,
    sku: &Sku,
    draft: &SkuDraft,
) -> Result<SkuPlaced, StoreError> {
    if draft.on_hand.is_none() && skus::get(store, sku).await?.is_none() {
        return Ok(SkuPlaced::OnHandRequired);
    }
    let wanted = SkuPut {
        sku: sku.clone(),
        on_hand: draft.on_hand.unwrap_or_default(),
        unit_price: draft.unit_price,
        per_customer_limit: draft.per_customer_limit,
        opens_at: draft.opens_at,
        closes_at: draft.closes_at,
        reservation_ttl_seconds: draft.reservation_ttl_seconds,
        waiting_room: WaitingRoom::parse(draft.waiting_room.as_str()).unwrap_or_default(),
        shard: Shard::default(),
    };
    let done = rerun::until_known(|run| transact(store.clone(), wanted.clone(), run)).await?;
    // It stands by now, so a read that fails does not mean that nothing was done.
    let read = skus::get(store, sku).await;
    let Some(row) = read.map_err(|_| StoreError::no_answer())? else {
        return Err(StoreError::Mismatch {
            doing: "read a SKU back",
            expected: 1,
            found: 0,
        });
    };
    catalogue.learn_one(
        sku,
        Seen {
            shard: row.shard,
            limited: row.per_customer_limit.is_some(),
            ttl_seconds: row.reservation_ttl_seconds,
        },
    );
    sync.sku_now(sku.clone()).await;
    Ok(match done {
        Put::Created => SkuPlaced::Created(row),
        Put::Updated => SkuPlaced::Updated(row),
    })
}

async fn transact(store: Store, wanted: SkuPut, run: GivenUp) -> Result<Put, StoreError> {
    let mut tx = store.begin().await?;
    let id = HoldId::derive("opening", ROUTE, wanted.sku.as_str());
    let done = skus::put(&mut tx, &wanted, id).await?;
    run.commit(tx).await?;
    Ok(done)
}
