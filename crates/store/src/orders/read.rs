//! Reading orders, with their lines in one statement.

use contracts::{CustomerId, OrderId, Shop};
use domain::OrderStatus;

use super::Order;
use crate::{Conn, Store, Tx, error::Result};

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
    let _ = (store, id, shop);
    todo!()
}

/// Several orders, sorted by id; those that do not exist are left out.
///
/// # Errors
/// No answer.
pub async fn find_many(conn: &mut Conn, ids: &[OrderId]) -> Result<Vec<Order>> {
    let _ = (conn, ids);
    todo!()
}

/// Orders of a shop (or of all), newest first, older than `starting_after`.
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
    let _ = (store, shop, customer_id, status, limit, starting_after);
    todo!()
}

/// Locks orders, sorted by id, and reads them under the locks.
///
/// # Errors
/// 55P03.
pub async fn lock(tx: &mut Tx, ids: &[OrderId]) -> Result<Vec<Order>> {
    let _ = (tx, ids);
    todo!()
}
