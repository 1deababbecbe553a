//! The end of orders: the shared piece of settle, cancel and expiry. A conditional update on
//! (id, version) decides; stock, buyers' units, history and events follow from what it changed.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use contracts::{
    OrderId, Sku, Timestamp,
    events::{NewEvent, OrderEvent, StockEvent, StockSettled},
};
use domain::{BuyerView, OrderStatus};
use uuid::Uuid;

use super::Order;
use crate::{
    Tx, buyer_units,
    error::{Bounded, Result, StoreError, expect_rows},
    outbox,
    stock::{self, StockRow},
};

/// An order that is to end.
#[derive(Debug, Clone)]
pub struct Ending<'a> {
    /// As it was read; its version guards the update.
    pub order: &'a Order,
    /// CONFIRMED, CANCELED or EXPIRED.
    pub to: OrderStatus,
    /// For the history: `payment:ID`, `payment-failed:ID`, `cancel`, `deadline`.
    pub cause: String,
    /// For people and events.
    pub reason: String,
}

/// What became of an [`Ending`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transitioned {
    /// The order as it is now.
    Applied(Order),
    /// It had moved since it was read: read it again and decide again.
    Stale(OrderId),
}

/// Ends orders, in this lock order: orders (the caller has locked them with [`super::lock`]), buyers'
/// units, stock. History and the orders' events come before these: every accept of a SKU waits for its
/// stock row, so nothing is written under it that can be written before. One `STOCK_COMMITTED` or `STOCK_RELEASED` per SKU and
/// kind. `source` is the `ce_source` of the events. Returns one outcome per ending, in their order.
///
/// # Errors
/// [`crate::StoreError::Mismatch`] or `StockBounds` when stock does not hold what the orders say:
/// nothing may be committed. [`crate::StoreError::CatalogueMoved`]: run it again.
pub async fn transition(
    tx: &mut Tx,
    endings: &[Ending<'_>],
    now: Timestamp,
    source: &'static str,
) -> Result<Vec<Transitioned>> {
    let mut applied = update(tx, endings, now).await?;
    let outcomes: Vec<Transitioned> = endings
        .iter()
        .map(|ending| {
            if applied.remove(&ending.order.id) {
                Transitioned::Applied(ended(ending, now))
            } else {
                Transitioned::Stale(ending.order.id)
            }
        })
        .collect();
    let done: Vec<Done<'_>> = endings
        .iter()
        .zip(&outcomes)
        .filter_map(|(ending, outcome)| match outcome {
            Transitioned::Applied(order) => Some(Done { ending, order }),
            Transitioned::Stale(_) => None,
        })
        .collect();
    if done.is_empty() {
        return Ok(outcomes);
    }
    write_history(tx, &done, now).await?;
    outbox::insert(tx, &order_events(&done, source)?).await?;
    let events = settle_stock(tx, &done, source).await?;
    outbox::insert(tx, &events).await?;
    Ok(outcomes)
}

/// An ending that the update has applied, and the order after it.
struct Done<'a> {
    ending: &'a Ending<'a>,
    order: &'a Order,
}

fn ended(ending: &Ending<'_>, now: Timestamp) -> Order {
    Order {
        status: ending.to,
        version: ending.order.version + 1,
        ended_at: Some(now),
        end_reason: Some(ending.reason.clone()),
        ..ending.order.clone()
    }
}

/// The orders that were still RESERVED and of the version that was read.
async fn update(tx: &mut Tx, endings: &[Ending<'_>], now: Timestamp) -> Result<HashSet<OrderId>> {
    if let Some(ending) = endings.iter().find(|ending| !ending.to.is_end()) {
        return Err(StoreError::NotAnEnd(ending.to.as_str()));
    }
    let ids: Vec<Uuid> = endings.iter().map(|ending| ending.order.id.0).collect();
    let versions: Vec<i64> = endings.iter().map(|ending| ending.order.version).collect();
    let statuses: Vec<&str> = endings.iter().map(|ending| ending.to.as_str()).collect();
    let reasons: Vec<&str> = endings
        .iter()
        .map(|ending| ending.reason.as_str())
        .collect();
    let updated = sqlx::query_scalar!(
        "update orders
         set status     = ($3::text[])[array_position($1::uuid[], id)],
             end_reason = ($4::text[])[array_position($1::uuid[], id)],
             version    = version + 1,
             ended_at   = $5
         where id = any($1)
           and status = 'RESERVED'
           and version = ($2::bigint[])[array_position($1::uuid[], id)]
         returning id",
        &ids,
        &versions,
        &statuses as &[&str],
        &reasons as &[&str],
        now,
    )
    .fetch_all(&mut **tx)
    .answer("end orders")
    .await?;
    Ok(updated.into_iter().map(OrderId).collect())
}

fn order_events(done: &[Done<'_>], source: &'static str) -> Result<Vec<NewEvent>> {
    done.iter()
        .map(|Done { ending, order }| {
            let data = order.ended(&ending.reason);
            let event = match ending.to {
                OrderStatus::Confirmed => OrderEvent::Confirmed(data),
                OrderStatus::Canceled => OrderEvent::Canceled(data),
                OrderStatus::Expired => OrderEvent::Expired(data),
                OrderStatus::Reserved => return Err(StoreError::NotAnEnd(ending.to.as_str())),
            };
            Ok(NewEvent::order(source, order.id, order.version, &event))
        })
        .collect()
}

/// Units of one SKU that end in one way, and whose they were.
#[derive(Default)]
struct Units {
    quantity: i64,
    order_ids: Vec<OrderId>,
}

/// Moves held units to sold, or frees them; gives buyers' units back. Returns the stock events.
async fn settle_stock(
    tx: &mut Tx,
    done: &[Done<'_>],
    source: &'static str,
) -> Result<Vec<NewEvent>> {
    let mut committed: BTreeMap<Sku, Units> = BTreeMap::new();
    let mut released: BTreeMap<Sku, Units> = BTreeMap::new();
    let mut given_back = BuyerView::new();
    for Done { order, .. } in done {
        let confirmed = order.status == OrderStatus::Confirmed;
        for line in &order.lines {
            let quantity = i64::from(line.quantity.get());
            let kind = if confirmed {
                &mut committed
            } else {
                &mut released
            };
            let units = kind.entry(line.sku.clone()).or_default();
            units.quantity += quantity;
            units.order_ids.push(order.id);
            if !confirmed {
                let key = (line.sku.clone(), order.buyer.clone());
                *given_back.entry(key).or_default() += quantity;
            }
        }
    }
    let skus: BTreeSet<&Sku> = committed.keys().chain(released.keys()).collect();
    let skus: Vec<Sku> = skus.into_iter().cloned().collect();
    let buyers = if given_back.is_empty() {
        BuyerView::new()
    } else {
        buyer_units::lock_existing(tx, &given_back.keys().cloned().collect()).await?
    };
    let mut rows = stock::lock(tx, &skus).await?;
    if rows.len() != skus.len() {
        let (expected, found) = (skus.len(), rows.len());
        return Err(StoreError::Mismatch {
            doing: "lock stock",
            expected,
            found,
        });
    }
    let buyers = give_back(&given_back, &buyers, &rows)?;
    if !buyers.is_empty() {
        buyer_units::write(tx, &buyers).await?;
    }
    let mut events = Vec::with_capacity(committed.len() + released.len());
    for (kind, of) in [(Kind::Committed, committed), (Kind::Released, released)] {
        for (sku, units) in of {
            if let Some(row) = rows.get_mut(&sku) {
                events.push(settle_sku(kind, &sku, units, row, source)?);
            }
        }
    }
    stock::write(tx, &rows).await?;
    Ok(events)
}

/// What remains of the buyers' units, of SKUs that have a limit now that their rows are locked.
fn give_back(
    given_back: &BuyerView,
    buyers: &BuyerView,
    rows: &BTreeMap<Sku, StockRow>,
) -> Result<BuyerView> {
    let mut remain = BuyerView::new();
    for (key, units) in given_back {
        let sku = &key.0;
        if !rows.get(sku).is_some_and(|row| row.limited) {
            continue;
        }
        // No row although there is a limit: it came after the buyers were locked.
        let before = buyers.get(key).ok_or_else(|| StoreError::CatalogueMoved {
            sku: sku.to_string(),
        })?;
        if before < units {
            return Err(StoreError::StockBounds {
                sku: sku.to_string(),
            });
        }
        remain.insert(key.clone(), before - units);
    }
    Ok(remain)
}

#[derive(Clone, Copy)]
enum Kind {
    Committed,
    Released,
}

fn settle_sku(
    kind: Kind,
    sku: &Sku,
    units: Units,
    row: &mut StockRow,
    source: &'static str,
) -> Result<NewEvent> {
    if row.held < units.quantity {
        return Err(StoreError::StockBounds {
            sku: sku.to_string(),
        });
    }
    row.held -= units.quantity;
    row.version += 1;
    if matches!(kind, Kind::Committed) {
        row.sold += units.quantity;
    }
    let data = StockSettled {
        sku: sku.clone(),
        quantity: units.quantity,
        order_ids: units.order_ids,
        on_hand: row.on_hand,
        held: row.held,
        sold: row.sold,
        version: row.version,
    };
    let event = match kind {
        Kind::Committed => StockEvent::Committed(data),
        Kind::Released => StockEvent::Released(data),
    };
    Ok(NewEvent::stock(source, sku, row.version, &event))
}

async fn write_history(tx: &mut Tx, done: &[Done<'_>], now: Timestamp) -> Result<()> {
    let ids: Vec<Uuid> = done.iter().map(|done| done.order.id.0).collect();
    let versions: Vec<i64> = done.iter().map(|done| done.order.version).collect();
    let before: Vec<&str> = done
        .iter()
        .map(|done| done.ending.order.status.as_str())
        .collect();
    let after: Vec<&str> = done.iter().map(|done| done.order.status.as_str()).collect();
    let causes: Vec<&str> = done.iter().map(|done| done.ending.cause.as_str()).collect();
    let written = sqlx::query!(
        "insert into order_history (order_id, version, from_status, to_status, cause, at)
         select h.order_id, h.version, h.from_status, h.to_status, h.cause, $6
         from unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::text[])
                  as h (order_id, version, from_status, to_status, cause)",
        &ids,
        &versions,
        &before as &[&str],
        &after as &[&str],
        &causes as &[&str],
        now,
    )
    .execute(&mut **tx)
    .answer("write the history of orders")
    .await?;
    expect_rows(
        "write the history of orders",
        done.len(),
        written.rows_affected(),
    )
}
