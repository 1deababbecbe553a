//! What PostgreSQL says of holds at the gate: for sync, sweep and rebuild (P5, P7, P10). An order
//! whose SKUs lie in several shards is one view per shard, each with that shard's lines.

use std::collections::HashMap;

use contracts::{HoldId, Line, OrderId, Timestamp};
use domain::{Hold, HoldState, HoldView, OrderStatus, Shard};
use uuid::Uuid;

use crate::{
    Store,
    error::{Bounded, Result},
    text::{self, uuids},
};

/// One order's lines in one shard.
struct Row {
    id: Uuid,
    hold_id: Uuid,
    shop: String,
    customer_id: String,
    status: String,
    reserved_until: Timestamp,
    shard: i32,
    skus: Vec<String>,
    quantities: Vec<i32>,
}

impl Row {
    fn view(self) -> Result<(Shard, HoldView)> {
        let lines = self
            .skus
            .iter()
            .zip(&self.quantities)
            .map(|(sku, units)| {
                Ok(Line {
                    sku: text::sku(sku)?,
                    quantity: text::quantity(*units)?,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let hold = Hold {
            hold_id: HoldId(self.hold_id),
            buyer: text::buyer(&self.shop, &self.customer_id)?,
            lines,
        };
        let state = state_of(text::status(&self.status)?);
        Ok((Shard(self.shard), HoldView { hold, state }))
    }
}

/// What is to become of the hold of an order.
pub(crate) fn state_of(status: OrderStatus) -> HoldState {
    match status {
        OrderStatus::Reserved => HoldState::Live,
        OrderStatus::Confirmed => HoldState::Committed,
        OrderStatus::Canceled | OrderStatus::Expired => HoldState::Released,
    }
}

/// Where a page of live holds ended. The deadline moves forward only, so that no order that lives
/// all the while is missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveCursor {
    reserved_until: Timestamp,
    id: OrderId,
}

/// Some holds of live orders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LivePage {
    /// The holds.
    pub holds: Vec<HoldView>,
    /// Where the next page begins; `None` when this is the last.
    pub next: Option<LiveCursor>,
}

/// What is to become of the holds of these orders; unknown orders are absent.
///
/// # Errors
/// No answer.
pub async fn of_orders(store: &Store, ids: &[OrderId]) -> Result<Vec<(Shard, HoldView)>> {
    let mut conn = store.conn().await?;
    let rows = sqlx::query_as!(
        Row,
        r#"select o.id, o.hold_id, o.shop, o.customer_id, o.status, o.reserved_until, l.shard,
                l.skus as "skus!", l.quantities as "quantities!"
         from orders o
                  cross join lateral (
                 select k.shard, array_agg(s.sku) as skus, array_agg(s.quantity) as quantities
                 from (select sku, quantity from order_lines
                       where order_id = o.id order by sku) s
                          join skus k on k.sku = s.sku
                 group by k.shard) l
         where o.id = any($1)
         order by o.id, l.shard"#,
        &uuids(ids),
    )
    .fetch_all(&mut *conn)
    .answer("read holds of orders")
    .await?;
    rows.into_iter().map(Row::view).collect()
}

/// What is to become of these holds, by key; a hold without an order is absent: it is released.
///
/// # Errors
/// No answer.
pub async fn by_hold(
    store: &Store,
    holds: &[HoldId],
) -> Result<HashMap<HoldId, Vec<(Shard, HoldView)>>> {
    let mut conn = store.conn().await?;
    let rows = sqlx::query_as!(
        Row,
        r#"select o.id, o.hold_id, o.shop, o.customer_id, o.status, o.reserved_until, l.shard,
                l.skus as "skus!", l.quantities as "quantities!"
         from idempotency i
                  join orders o on o.id = i.order_id
                  cross join lateral (
                 select k.shard, array_agg(s.sku) as skus, array_agg(s.quantity) as quantities
                 from (select sku, quantity from order_lines
                       where order_id = o.id order by sku) s
                          join skus k on k.sku = s.sku
                 group by k.shard) l
         where i.hold_id = any($1)
         order by o.id, l.shard"#,
        &uuids(holds),
    )
    .fetch_all(&mut *conn)
    .answer("read holds by key")
    .await?;
    let mut views: HashMap<HoldId, Vec<(Shard, HoldView)>> = HashMap::new();
    for row in rows {
        let (shard, view) = row.view()?;
        views
            .entry(view.hold.hold_id)
            .or_default()
            .push((shard, view));
    }
    Ok(views)
}

/// Holds of RESERVED orders of a shard, by deadline.
///
/// # Errors
/// No answer.
pub async fn live_page(
    store: &Store,
    shard: Shard,
    after: Option<LiveCursor>,
    limit: i64,
) -> Result<LivePage> {
    let mut conn = store.conn().await?;
    let (reserved_until, id) = after.map_or((Timestamp::UNIX_EPOCH, Uuid::nil()), |cursor| {
        (cursor.reserved_until, cursor.id.0)
    });
    let rows = sqlx::query_as!(
        Row,
        r#"select o.id, o.hold_id, o.shop, o.customer_id, o.status, o.reserved_until, l.shard,
                l.skus as "skus!", l.quantities as "quantities!"
         from orders o
                  cross join lateral (
                 select k.shard, array_agg(s.sku) as skus, array_agg(s.quantity) as quantities
                 from (select sku, quantity from order_lines
                       where order_id = o.id order by sku) s
                          join skus k on k.sku = s.sku
                 group by k.shard) l
         where o.status = 'RESERVED'
           and (o.reserved_until, o.id) > ($2, $3)
           and l.shard = $1
         order by o.reserved_until, o.id
         limit $4"#,
        shard.0,
        reserved_until,
        id,
        limit,
    )
    .fetch_all(&mut *conn)
    .answer("page live holds")
    .await?;
    let full = i64::try_from(rows.len()).is_ok_and(|rows| rows == limit);
    let next = rows.last().filter(|_| full).map(|row| LiveCursor {
        reserved_until: row.reserved_until,
        id: OrderId(row.id),
    });
    let holds = rows
        .into_iter()
        .map(|row| row.view().map(|(_, view)| view))
        .collect::<Result<_>>()?;
    Ok(LivePage { holds, next })
}
