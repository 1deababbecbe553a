//! What the sweeps of the gate ask PostgreSQL: which shards there are.

use domain::Shard;

use crate::{
    Store,
    error::{Doing, Result},
};

/// All shards that have SKUs, sorted.
///
/// # Errors
/// No answer.
pub async fn shards(store: &Store) -> Result<Vec<Shard>> {
    let mut conn = store.conn().await?;
    let shards = sqlx::query_scalar!("select distinct shard from skus order by shard")
        .fetch_all(&mut *conn)
        .await
        .doing("read the shards")?;
    Ok(shards.into_iter().map(Shard).collect())
}
