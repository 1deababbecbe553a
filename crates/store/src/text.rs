//! From columns to types that cannot be wrong, and back to arrays.

use contracts::{Currency, CustomerId, HoldId, Money, OrderId, PaymentMethod, Quantity, Shop, Sku};
use domain::{Buyer, OrderStatus};
use uuid::Uuid;

use crate::error::{Result, StoreError};

fn malformed(column: &'static str, value: impl Into<String>) -> StoreError {
    StoreError::Malformed {
        column,
        value: value.into(),
    }
}

pub(crate) fn sku(text: &str) -> Result<Sku> {
    Sku::parse(text).map_err(|_| malformed("sku", text))
}

pub(crate) fn buyer(shop: &str, customer: &str) -> Result<Buyer> {
    Ok(Buyer {
        shop: Shop::parse(shop).map_err(|_| malformed("shop", shop))?,
        customer: CustomerId::parse(customer).map_err(|_| malformed("customer_id", customer))?,
    })
}

pub(crate) fn status(word: &str) -> Result<OrderStatus> {
    OrderStatus::parse(word).ok_or_else(|| malformed("orders.status", word))
}

pub(crate) fn money(amount_minor: i64, currency: &str) -> Result<Money> {
    let currency = Currency::parse(currency).map_err(|_| malformed("currency", currency))?;
    Money::new(amount_minor, currency)
        .map_err(|_| malformed("amount_minor", amount_minor.to_string()))
}

pub(crate) fn payment_method(text: &str) -> Result<PaymentMethod> {
    PaymentMethod::parse(text).map_err(|_| malformed("payment_method", text))
}

pub(crate) fn quantity(units: i32) -> Result<Quantity> {
    Quantity::new(i64::from(units))
        .map_err(|_| malformed("order_lines.quantity", units.to_string()))
}

pub(crate) fn fingerprint(bytes: &[u8]) -> Result<[u8; 32]> {
    bytes
        .try_into()
        .map_err(|_| malformed("fingerprint", hex::encode(bytes)))
}

/// One column of rows, for `unnest`.
pub(crate) fn column<'a, T, V>(rows: &'a [T], of: impl Fn(&'a T) -> V) -> Vec<V> {
    rows.iter().map(of).collect()
}

/// For `= any($1)`.
pub(crate) fn uuids<T: Copy + Into<Id>>(ids: &[T]) -> Vec<Uuid> {
    ids.iter().map(|id| (*id).into().0).collect()
}

/// Either kind of id, as a column holds it.
pub(crate) struct Id(Uuid);

impl From<HoldId> for Id {
    fn from(id: HoldId) -> Self {
        Self(id.0)
    }
}

impl From<OrderId> for Id {
    fn from(id: OrderId) -> Self {
        Self(id.0)
    }
}

/// The columns of buyers' keys; a map's keys are sorted already.
pub(crate) struct BuyerColumns<'a> {
    pub(crate) skus: Vec<&'a str>,
    pub(crate) shops: Vec<&'a str>,
    pub(crate) customers: Vec<&'a str>,
}

impl<'a> BuyerColumns<'a> {
    pub(crate) fn of(keys: impl Iterator<Item = &'a (Sku, Buyer)>) -> Self {
        let mut columns = Self {
            skus: vec![],
            shops: vec![],
            customers: vec![],
        };
        for (sku, buyer) in keys {
            columns.skus.push(sku.as_str());
            columns.shops.push(buyer.shop.as_str());
            columns.customers.push(buyer.customer.as_str());
        }
        columns
    }
}
