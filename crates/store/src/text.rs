//! From columns to types that cannot be wrong, and back to arrays.

use contracts::{Currency, CustomerId, Money, PaymentMethod, Quantity, Shop, Sku};
use domain::{Buyer, OrderStatus};

use crate::error::{Result, StoreError};

fn malformed(column: &'static str, value: impl ToString) -> StoreError {
    StoreError::Malformed {
        column,
        value: value.to_string(),
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
    Money::new(amount_minor, currency).map_err(|_| malformed("amount_minor", amount_minor))
}

pub(crate) fn payment_method(text: &str) -> Result<PaymentMethod> {
    PaymentMethod::parse(text).map_err(|_| malformed("payment_method", text))
}

pub(crate) fn quantity(units: i32) -> Result<Quantity> {
    Quantity::new(i64::from(units)).map_err(|_| malformed("order_lines.quantity", units))
}

pub(crate) fn fingerprint(bytes: &[u8]) -> Result<[u8; 32]> {
    bytes
        .try_into()
        .map_err(|_| malformed("fingerprint", hex::encode(bytes)))
}

pub(crate) fn event_source(text: &str) -> String {
    text.to_owned()
}
