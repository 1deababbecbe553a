//! What the sweeps of the gate ask PostgreSQL: which shards there are.

use std::collections::BTreeSet;

use domain::Shard;

use crate::{
    Store,
    error::{Bounded, Result},
};

/// All shards that have SKUs, and the default one, sorted: its gate is open before the first SKU
/// comes, so that no sale begins without it.
///
/// # Errors
/// No answer.
pub async fn shards(store: &Store) -> Result<Vec<Shard>> {
    let mut conn = store.conn().await?;
    let shards = sqlx::query_scalar!("select distinct shard from skus order by shard")
        .fetch_all(&mut *conn)
        .answer("read the shards")
        .await?;
    let shards: BTreeSet<Shard> = shards
        .into_iter()
        .map(Shard)
        .chain([Shard::default()])
        .collect();
    Ok(shards.into_iter().collect())
}
