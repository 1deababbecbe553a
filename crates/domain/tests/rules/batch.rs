//! Batches in short: what the tests of the accept are written with.

use std::collections::BTreeMap;

use contracts::{Currency, HoldId, Line, Money, OrderId, Quantity, Sku, Timestamp};
use domain::{
    Accepted, Buyer, BuyerView, Decision, OrderRequest, Plan, Refusal, Shard, SkuView, plan_batch,
};
use uuid::Uuid;

pub(crate) fn now() -> Timestamp {
    Timestamp::from_timestamp(1_772_366_400, 0).expect("a time")
}

pub(crate) fn after_now(seconds: i64) -> Timestamp {
    now() + chrono::TimeDelta::seconds(seconds)
}

pub(crate) fn sku(name: &str) -> Sku {
    name.parse().expect("a SKU")
}

pub(crate) fn money(amount_minor: i64, currency: &str) -> Money {
    Money::new(amount_minor, Currency::parse(currency).expect("a currency")).expect("an amount")
}

pub(crate) fn buyer(name: &str) -> Buyer {
    Buyer {
        shop: "shop-1".parse().expect("a shop"),
        customer: name.parse().expect("a customer"),
    }
}

/// A SKU at 100 KRW without limit or window.
pub(crate) fn view(available: i64) -> SkuView {
    SkuView {
        available,
        unit_price: money(100, "KRW"),
        per_customer_limit: None,
        opens_at: None,
        closes_at: None,
        ttl_seconds: 600,
        shard: Shard::default(),
    }
}

/// An order of a customer for lines like `A=2 B=1`, which are sorted already.
pub(crate) fn request(number: u128, customer: &str, lines: &str) -> OrderRequest {
    OrderRequest {
        hold_id: HoldId(Uuid::from_u128(number)),
        fingerprint: [0; 32],
        order_id: OrderId(Uuid::from_u128(number)),
        buyer: buyer(customer),
        lines: lines
            .split_whitespace()
            .map(|line| {
                let (name, units) = line.split_once('=').expect("SKU=UNITS");
                let quantity = Quantity::new(units.parse().expect("a number")).expect("1 to 1,000");
                Line {
                    sku: sku(name),
                    quantity,
                }
            })
            .collect(),
        payment_method: "card".parse().expect("a method"),
    }
}

#[derive(Debug)]
pub(crate) struct Shelf {
    pub(crate) skus: BTreeMap<Sku, SkuView>,
    pub(crate) buyers: BuyerView,
}

impl Shelf {
    pub(crate) fn of<const N: usize>(skus: [(&str, SkuView); N]) -> Self {
        Self {
            skus: skus
                .into_iter()
                .map(|(name, view)| (sku(name), view))
                .collect(),
            buyers: BuyerView::new(),
        }
    }

    pub(crate) fn owning(mut self, name: &str, customer: &str, units: i64) -> Self {
        self.buyers.insert((sku(name), buyer(customer)), units);
        self
    }

    pub(crate) fn plan(&self, requests: &[OrderRequest]) -> Plan {
        plan_batch(requests, &self.skus, &self.buyers, now())
    }

    /// What becomes of orders, written `CUSTOMER SKU=UNITS ...`.
    pub(crate) fn decide(&self, orders: &[&str]) -> Vec<String> {
        let requests: Vec<OrderRequest> = (1..)
            .zip(orders)
            .map(|(number, order)| {
                let (customer, lines) = order.split_once(' ').expect("CUSTOMER LINES");
                request(number, customer, lines)
            })
            .collect();
        self.plan(&requests)
            .decisions
            .iter()
            .map(in_words)
            .collect()
    }
}

pub(crate) fn in_words(decision: &Decision) -> String {
    match decision {
        Decision::Accept(Accepted {
            total, ttl_seconds, ..
        }) => {
            format!(
                "yes {} {} for {ttl_seconds} s",
                total.amount_minor, total.currency
            )
        }
        Decision::Refuse(Refusal::SoldOut { sku }) => format!("sold out {sku}"),
        Decision::Refuse(Refusal::PurchaseLimit { sku }) => format!("limit {sku}"),
        Decision::Refuse(Refusal::NotOpen { sku, .. }) => format!("not open {sku}"),
        Decision::Refuse(Refusal::SaleOver { sku }) => format!("over {sku}"),
        Decision::Refuse(Refusal::UnknownSku { sku }) => format!("unknown {sku}"),
        Decision::Refuse(Refusal::Total) => "total".to_owned(),
    }
}
