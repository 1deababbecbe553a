//! SKUs and orders, written as the accept writes them, and their end by a cancel.

use contracts::{Currency, CustomerId, HoldId, Line, Money, OrderId, Quantity, Shop, Sku};
use domain::{Buyer, Hold};
use store::skus::{SkuPut, WaitingRoom};

use super::{PRICE, SHARD, World};

#[derive(Debug, Clone)]
pub(crate) struct Placed {
    pub(crate) order: OrderId,
    pub(crate) hold: Hold,
    pub(crate) total: Money,
}

pub(crate) fn money(amount_minor: i64) -> Money {
    Money::new(amount_minor, Currency::parse("KRW").unwrap()).unwrap()
}

pub(crate) fn dollars(amount_minor: i64) -> Money {
    Money::new(amount_minor, Currency::parse("USD").unwrap()).unwrap()
}

pub(crate) fn sku(name: &str) -> Sku {
    Sku::parse(name).unwrap()
}

pub(crate) fn hold(key: &str, customer: &str, lines: &[(&str, i64)]) -> Hold {
    Hold {
        hold_id: HoldId::derive("shop", "orders", key),
        buyer: Buyer {
            shop: Shop::parse("shop").unwrap(),
            customer: CustomerId::parse(customer).unwrap(),
        },
        lines: lines
            .iter()
            .map(|(name, units)| Line {
                sku: sku(name),
                quantity: Quantity::new(*units).unwrap(),
            })
            .collect(),
    }
}

impl World {
    pub(crate) async fn sku(&self, name: &str, on_hand: i64, limit: Option<i32>) {
        let put = SkuPut {
            sku: sku(name),
            on_hand,
            unit_price: money(PRICE),
            per_customer_limit: limit,
            opens_at: None,
            closes_at: None,
            reservation_ttl_seconds: 600,
            waiting_room: WaitingRoom::Off,
            shard: SHARD,
        };
        let mut tx = self.stock.store.begin().await.unwrap();
        let request = HoldId::derive("test", "sku", name);
        store::skus::put(&mut tx, &put, request).await.unwrap();
        tx.commit().await.unwrap();
    }

    /// A RESERVED order, written as the accept writes it; due `ttl_seconds` from now. Its hold is
    /// not at the gate.
    pub(crate) async fn place(
        &self,
        customer: &str,
        lines: &[(&str, i64)],
        ttl_seconds: f64,
    ) -> Placed {
        let order = OrderId::generate();
        let hold = hold(&format!("{order}"), customer, lines);
        let total: i64 = lines.iter().map(|(_, units)| units * PRICE).sum();
        let mut statement = format!(
            "begin;
             insert into idempotency (hold_id, fingerprint, order_id) values ('{hold}', '', '{order}');
             insert into orders (id, hold_id, shop, customer_id, status, total_minor, currency,
                                 payment_method, reserved_until, created_at)
             values ('{order}', '{hold}', 'shop', '{customer}', 'RESERVED', {total}, 'KRW', 'card',
                     clock_timestamp() + make_interval(secs => {ttl_seconds}), clock_timestamp());
             insert into order_history (order_id, version, to_status, cause, at)
             values ('{order}', 1, 'RESERVED', 'accept', clock_timestamp());",
            hold = hold.hold_id,
        );
        for (name, units) in lines {
            statement += &format!(
                "insert into order_lines (order_id, sku, quantity, unit_price_minor)
                 values ('{order}', '{name}', {units}, {PRICE});
                 insert into buyer_units (sku, shop, customer_id, units)
                 select sku, 'shop', '{customer}', {units} from stock where sku = '{name}' and limited
                 on conflict (sku, shop, customer_id)
                     do update set units = buyer_units.units + excluded.units;
                 update stock set held = held + {units} where sku = '{name}';"
            );
        }
        self.execute(&(statement + "commit;")).await;
        Placed {
            order,
            hold,
            total: money(total),
        }
    }

    /// A RESERVED order whose hold is at the gate.
    pub(crate) async fn place_with_hold(&self, customer: &str, lines: &[(&str, i64)]) -> Placed {
        let placed = self.place(customer, lines, 600.0).await;
        let report = stock::sync_gate::sync_orders(&self.stock, &[placed.order])
            .await
            .unwrap();
        assert_eq!(report.added, 1);
        placed
    }

    pub(crate) async fn cancel(&self, order: OrderId) -> bool {
        let mut tx = self.stock.store.begin().await.unwrap();
        let orders = store::orders::lock(&mut tx, &[order]).await.unwrap();
        let ending = store::orders::Ending {
            order: &orders[0],
            to: domain::OrderStatus::Canceled,
            cause: "cancel".to_owned(),
            reason: "canceled".to_owned(),
        };
        let now = store::settlement::now(&mut tx).await.unwrap();
        let outcome = store::orders::transition(&mut tx, &[ending], now, "/holdfast/order")
            .await
            .unwrap();
        tx.commit().await.unwrap();
        matches!(outcome[0], store::orders::Transitioned::Applied(_))
    }
}
