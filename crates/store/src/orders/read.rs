//! Reading orders, with their lines in one statement.

use contracts::{CustomerId, HoldId, OrderId, Shop, Timestamp, events::PricedLine};
use domain::OrderStatus;
use uuid::Uuid;

use super::Order;
use crate::{
    Conn, Store, Tx,
    error::{Bounded, Result, StoreError},
    text::{self, uuids},
};

struct Row {
    id: Uuid,
    hold_id: Uuid,
    shop: String,
    customer_id: String,
    status: String,
    version: i64,
    total_minor: i64,
    currency: String,
    payment_method: String,
    reserved_until: Timestamp,
    first_until: Option<Timestamp>,
    created_at: Timestamp,
    ended_at: Option<Timestamp>,
    end_reason: Option<String>,
    skus: Vec<String>,
    quantities: Vec<i32>,
    prices: Vec<i64>,
}

impl TryFrom<Row> for Order {
    type Error = StoreError;
    fn try_from(row: Row) -> Result<Self> {
        let lines = row
            .skus
            .iter()
            .zip(&row.quantities)
            .zip(&row.prices)
            .map(|((sku, quantity), price)| {
                Ok(PricedLine {
                    sku: text::sku(sku)?,
                    quantity: text::quantity(*quantity)?,
                    unit_price: text::money(*price, &row.currency)?,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            id: OrderId(row.id),
            hold_id: HoldId(row.hold_id),
            buyer: text::buyer(&row.shop, &row.customer_id)?,
            status: text::status(&row.status)?,
            version: row.version,
            total: text::money(row.total_minor, &row.currency)?,
            payment_method: text::payment_method(&row.payment_method)?,
            reserved_until: row.reserved_until,
            first_until: row.first_until,
            created_at: row.created_at,
            ended_at: row.ended_at,
            end_reason: row.end_reason,
            lines,
        })
    }
}

/// Orders with their lines, for any condition on `o`.
macro_rules! orders {
    ($condition:tt, $($bind:expr),*) => {
        sqlx::query_as!(
            Row,
            "select o.id, o.hold_id, o.shop, o.customer_id, o.status, o.version, o.total_minor,
                    o.currency, o.payment_method, o.reserved_until, o.first_until, o.created_at,
                    o.ended_at, o.end_reason, l.skus as \"skus!\", l.quantities as \"quantities!\",
                    l.prices as \"prices!\"
             from orders o
                      cross join lateral (
                 select array_agg(s.sku)              as skus,
                        array_agg(s.quantity)         as quantities,
                        array_agg(s.unit_price_minor) as prices
                 from (select sku, quantity, unit_price_minor
                       from order_lines where order_id = o.id order by sku) s) l "
                + $condition,
            $($bind),*
        )
    };
}

/// Some orders of a list, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The orders.
    pub orders: Vec<Order>,
    /// Whether older ones follow.
    pub has_more: bool,
}

/// One order; of this shop only, when given.
///
/// # Errors
/// No answer.
pub async fn get(store: &Store, id: OrderId, shop: Option<&Shop>) -> Result<Option<Order>> {
    let mut conn = store.conn().await?;
    let found = find_many(&mut conn, &[id]).await?.pop();
    Ok(found.filter(|order| shop.is_none_or(|shop| order.buyer.shop == *shop)))
}

/// Several orders, sorted by id; those that do not exist are left out.
///
/// # Errors
/// No answer.
pub async fn find_many(conn: &mut Conn, ids: &[OrderId]) -> Result<Vec<Order>> {
    let rows = orders!("where o.id = any($1) order by o.id", &uuids(ids))
        .fetch_all(conn)
        .answer("find orders")
        .await?;
    rows.into_iter().map(Order::try_from).collect()
}

/// Those of these orders that have ended, in order of id: whoever waits for many asks again and again,
/// and most are still RESERVED.
///
/// # Errors
/// No answer.
pub async fn find_ended(conn: &mut Conn, ids: &[OrderId]) -> Result<Vec<Order>> {
    let rows = orders!(
        "where o.id = any($1) and o.status <> 'RESERVED' order by o.id",
        &uuids(ids)
    )
    .fetch_all(conn)
    .answer("find ended orders")
    .await?;
    rows.into_iter().map(Order::try_from).collect()
}

/// Orders of a shop (or of all), newest first, older than `starting_after`. Each way has its index, so
/// that a page costs what it holds, however rare a status or large the table: by customer, which may go
/// through the orders of that customer; by how they ended; those that are RESERVED, which may go through
/// all that are. Of all orders alone, another shop's are passed over.
///
/// # Errors
/// No answer.
pub async fn list(
    store: &Store,
    shop: Option<&Shop>,
    customer_id: Option<&CustomerId>,
    status: Option<OrderStatus>,
    limit: u16,
    starting_after: Option<OrderId>,
) -> Result<Page> {
    let mut conn = store.conn().await?;
    let ask = Ask {
        shop: shop.map(Shop::as_str),
        before: starting_after.map_or_else(Uuid::max, |id| id.0),
        // One more than asked for tells whether others follow.
        limit: i64::from(limit) + 1,
    };
    let rows = match (customer_id, status) {
        (Some(customer), status) => ask.of_customer(&mut conn, customer, status).await,
        (None, None) => ask.of_any(&mut conn).await,
        (None, Some(OrderStatus::Reserved)) => ask.reserved(&mut conn).await,
        (
            None,
            Some(status @ (OrderStatus::Confirmed | OrderStatus::Canceled | OrderStatus::Expired)),
        ) => ask.ended(&mut conn, status).await,
    }?;
    let mut orders = rows
        .into_iter()
        .map(Order::try_from)
        .collect::<Result<Vec<_>>>()?;
    let has_more = orders.len() > usize::from(limit);
    orders.truncate(usize::from(limit));
    Ok(Page { orders, has_more })
}

/// What all lists have in common.
struct Ask<'a> {
    shop: Option<&'a str>,
    before: Uuid,
    limit: i64,
}

impl Ask<'_> {
    async fn of_customer(
        &self,
        conn: &mut Conn,
        customer: &CustomerId,
        status: Option<OrderStatus>,
    ) -> Result<Vec<Row>> {
        let status = status.map(OrderStatus::as_str);
        let Some(shop) = self.shop else {
            return self.of_namesakes(conn, customer, status).await;
        };
        orders!(
            "where o.shop = $1 and o.customer_id = $2 and ($3::text is null or o.status = $3)
               and o.id < $4
             order by o.id desc limit $5",
            shop,
            customer.as_str(),
            status,
            self.before,
            self.limit
        )
        .fetch_all(conn)
        .answer("list the orders of a customer")
        .await
    }

    /// A customer of any shop: shops are few, and the index by customer begins with them.
    async fn of_namesakes(
        &self,
        conn: &mut Conn,
        customer: &CustomerId,
        status: Option<&str>,
    ) -> Result<Vec<Row>> {
        orders!(
            "where o.shop = any (array(
                 with recursive shops as (
                     (select shop from orders order by shop limit 1)
                     union all
                     select (select n.shop from orders n where n.shop > s.shop order by n.shop limit 1)
                     from shops s where s.shop is not null)
                 select shop from shops where shop is not null))
               and o.customer_id = $1 and ($2::text is null or o.status = $2) and o.id < $3
             order by o.id desc limit $4",
            customer.as_str(),
            status,
            self.before,
            self.limit
        )
        .fetch_all(conn)
        .answer("list the orders of a customer of any shop")
        .await
    }

    async fn of_any(&self, conn: &mut Conn) -> Result<Vec<Row>> {
        orders!(
            "where ($1::text is null or o.shop = $1) and o.id < $2 order by o.id desc limit $3",
            self.shop,
            self.before,
            self.limit
        )
        .fetch_all(conn)
        .answer("list orders")
        .await
    }

    async fn reserved(&self, conn: &mut Conn) -> Result<Vec<Row>> {
        orders!(
            "where o.status = 'RESERVED' and ($1::text is null or o.shop = $1) and o.id < $2
             order by o.id desc limit $3",
            self.shop,
            self.before,
            self.limit
        )
        .fetch_all(conn)
        .answer("list the orders that wait")
        .await
    }

    async fn ended(&self, conn: &mut Conn, status: OrderStatus) -> Result<Vec<Row>> {
        // The second condition is the index's own: a plan for any status can't prove it.
        orders!(
            "where o.status = $1 and o.status <> 'RESERVED' and ($2::text is null or o.shop = $2)
               and o.id < $3
             order by o.id desc limit $4",
            status.as_str(),
            self.shop,
            self.before,
            self.limit
        )
        .fetch_all(conn)
        .answer("list the orders that ended so")
        .await
    }
}

/// Locks orders, sorted by id, and reads them under the locks.
///
/// # Errors
/// 55P03.
pub async fn lock(tx: &mut Tx, ids: &[OrderId]) -> Result<Vec<Order>> {
    let rows = orders!(
        "where o.id = any($1) order by o.id for no key update of o",
        &uuids(ids)
    )
    .fetch_all(&mut **tx)
    .answer("lock orders")
    .await?;
    rows.into_iter().map(Order::try_from).collect()
}
