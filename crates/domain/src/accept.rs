//! Planning a batch of accepts: first come, first served, all lines of an order or none (P1 step 5).

use std::collections::BTreeMap;

use contracts::{HoldId, Line, Money, OrderId, PaymentMethod, Sku, Timestamp, events::PricedLine};

use crate::gate::{Buyer, Shard};

/// An order that someone asks for. Its lines are canonical: sorted by SKU, one line per SKU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderRequest {
    /// The hash of who asks, where and with which key.
    pub hold_id: HoldId,
    /// SHA-256 of the canonical body: another one under the same key is refused.
    pub fingerprint: [u8; 32],
    /// The id that the order gets if it is accepted.
    pub order_id: OrderId,
    /// Who asks.
    pub buyer: Buyer,
    /// What for.
    pub lines: Vec<Line>,
    /// How the buyer pays.
    pub payment_method: PaymentMethod,
}

/// A SKU as locked by the accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkuView {
    /// `on_hand - held - sold`.
    pub available: i64,
    /// The price of one unit.
    pub unit_price: Money,
    /// The most units that one buyer may hold and own.
    pub per_customer_limit: Option<i64>,
    /// The sale is closed before.
    pub opens_at: Option<Timestamp>,
    /// The sale is closed from then on.
    pub closes_at: Option<Timestamp>,
    /// How long a reservation lasts, in seconds.
    pub ttl_seconds: i32,
    /// Where its gate lives.
    pub shard: Shard,
}

/// Units that a buyer holds and owns of a SKU with a limit.
pub type BuyerView = BTreeMap<(Sku, Buyer), i64>;

/// Why an order is not accepted. A refusal stores nothing (but the answer to a request by Kafka).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Not enough units of it.
    SoldOut { sku: Sku },
    /// The buyer would have more than one buyer may.
    PurchaseLimit { sku: Sku },
    /// Its sale opens later.
    NotOpen {
        sku: Sku,
        opens_at: Option<Timestamp>,
    },
    /// Its sale has ended.
    SaleOver { sku: Sku },
    /// No such SKU.
    UnknownSku { sku: Sku },
    /// The lines have several currencies, or the total is beyond the greatest amount.
    Total,
}

/// An order as it is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// Its lines with the catalogue's prices.
    pub lines: Vec<PricedLine>,
    /// What it costs.
    pub total: Money,
    /// The smallest ttl of its SKUs, in seconds.
    pub ttl_seconds: i32,
}

/// What becomes of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It is accepted.
    Accept(Accepted),
    /// A rule says no.
    Refuse(Refusal),
}

/// What becomes of a batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// One per request, in their order.
    pub decisions: Vec<Decision>,
    /// Units taken per SKU.
    pub taken: BTreeMap<Sku, i64>,
    /// Units taken per buyer, of SKUs with a limit.
    pub bought: BuyerView,
}

/// Decides a batch, each request seeing those before it. `skus` holds every SKU that exists,
/// `buyers` the present units of every buyer of a limited SKU (absent means 0), `now` is
/// PostgreSQL's clock under the locks.
///
/// Precedence of refusals, over all lines of an order: unknown, total, not open, over, limit,
/// sold out; within one kind the first SKU in sort order is named.
#[must_use]
pub fn plan_batch(
    requests: &[OrderRequest],
    skus: &BTreeMap<Sku, SkuView>,
    buyers: &BuyerView,
    now: Timestamp,
) -> Plan {
    let mut plan = Plan::default();
    for request in requests {
        let decision = match decide(request, skus, buyers, &plan, now) {
            Ok(accepted) => {
                take(request, skus, &mut plan);
                Decision::Accept(accepted)
            }
            Err(refusal) => Decision::Refuse(refusal),
        };
        plan.decisions.push(decision);
    }
    plan
}

fn decide(
    request: &OrderRequest,
    skus: &BTreeMap<Sku, SkuView>,
    buyers: &BuyerView,
    plan: &Plan,
    now: Timestamp,
) -> Result<Accepted, Refusal> {
    let mut found = Vec::with_capacity(request.lines.len());
    for line in &request.lines {
        let view = skus.get(&line.sku).ok_or_else(|| Refusal::UnknownSku {
            sku: line.sku.clone(),
        })?;
        found.push((line, view));
    }
    let accepted = price(&found)?;
    for (line, view) in &found {
        if view.opens_at.is_some_and(|opens_at| now < opens_at) {
            return Err(Refusal::NotOpen {
                sku: line.sku.clone(),
                opens_at: view.opens_at,
            });
        }
    }
    for (line, view) in &found {
        if view.closes_at.is_some_and(|closes_at| now >= closes_at) {
            return Err(Refusal::SaleOver {
                sku: line.sku.clone(),
            });
        }
    }
    for (line, view) in &found {
        if let Some(limit) = view.per_customer_limit {
            let key = (line.sku.clone(), request.buyer.clone());
            let before = buyers.get(&key).copied().unwrap_or(0)
                + plan.bought.get(&key).copied().unwrap_or(0);
            if before + i64::from(line.quantity.get()) > limit {
                return Err(Refusal::PurchaseLimit {
                    sku: line.sku.clone(),
                });
            }
        }
    }
    for (line, view) in &found {
        let taken = plan.taken.get(&line.sku).copied().unwrap_or(0);
        if view.available - taken < i64::from(line.quantity.get()) {
            return Err(Refusal::SoldOut {
                sku: line.sku.clone(),
            });
        }
    }
    Ok(accepted)
}

fn price(found: &[(&Line, &SkuView)]) -> Result<Accepted, Refusal> {
    let mut total: Option<Money> = None;
    let mut ttl_seconds = i32::MAX;
    let mut lines = Vec::with_capacity(found.len());
    for (line, view) in found {
        let cost = view.unit_price.times(line.quantity).ok_or(Refusal::Total)?;
        total = Some(match total {
            None => cost,
            Some(sum) => sum.plus(cost).ok_or(Refusal::Total)?,
        });
        ttl_seconds = ttl_seconds.min(view.ttl_seconds);
        lines.push(PricedLine {
            sku: line.sku.clone(),
            quantity: line.quantity,
            unit_price: view.unit_price,
        });
    }
    let total = total.ok_or(Refusal::Total)?;
    Ok(Accepted {
        lines,
        total,
        ttl_seconds,
    })
}

fn take(request: &OrderRequest, skus: &BTreeMap<Sku, SkuView>, plan: &mut Plan) {
    for line in &request.lines {
        let units = i64::from(line.quantity.get());
        *plan.taken.entry(line.sku.clone()).or_insert(0) += units;
        if skus
            .get(&line.sku)
            .is_some_and(|view| view.per_customer_limit.is_some())
        {
            *plan
                .bought
                .entry((line.sku.clone(), request.buyer.clone()))
                .or_insert(0) += units;
        }
    }
}
