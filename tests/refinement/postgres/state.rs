//! A world of its own, and the state of both sides.

use std::{collections::BTreeMap, time::Duration};

use contracts::{HoldId, Timestamp};
use model::protocol::{
    BUYERS, OrderNo, SKUS,
    gate::Gate,
    money::{PaymentState, RefundState},
    pg::{Pg, Sku},
};
use order::Catalogue;
use rand::rngs::StdRng;
use sqlx::Row;
use stock::{ExpireOrders, SettleOrders, Stock};
use store::skus::{SkuPut, WaitingRoom};

use super::{Walk, stock_and_time};
use crate::{
    agreement::{Agreed, History, Rows, same, same_rows},
    coverage::Coverage,
    names::{self, Holds, SHARD, UNIT_PRICE},
    scripts,
};

/// The id of the order that does not exist.
pub(super) const UNKNOWN: u128 = 0x0190_0000_0000_7000_8000_0000_0000_0001;

/// All rows that the model knows of, as [`Walk::modelled_rows`] writes them.
const ROWS: &str = r"
    select concat_ws(' ', 'stock', sku, on_hand, held, sold, version) from stock
    union all
    select concat_ws(' ', 'bought', sku, customer_id, units) from buyer_units where units > 0
    union all
    select concat_ws(' ', 'key', hold_id, get_byte(fingerprint, 0), order_id) from idempotency
    union all
    select concat_ws(' ', 'order', o.id, o.hold_id, o.customer_id, o.status, o.version,
                     o.total_minor,
                     (select string_agg(l.sku || '=' || l.quantity, ',' order by l.sku)
                      from order_lines l where l.order_id = o.id),
                     case when o.reserved_until > now() + interval '6 hours' then 'Early'
                          when o.reserved_until > now() then 'Tight'
                          when o.reserved_until > now() - interval '10 hours' then 'Due'
                          else 'PastGrace' end,
                     p.id)
    from orders o left join payments p on p.order_id = o.id and p.applied
    union all
    select concat_ws(' ', 'payment', id, order_id, state, captured_minor, refunded_minor, applied,
                     flagged)
    from payments
    union all
    select concat_ws(' ', 'refund', payment_id, order_id, amount_minor, state) from refunds";

impl Walk {
    /// Two SKUs that are sold, the first with a limit per customer; the third does not exist, is not
    /// open yet, or over. A gate that was rebuilt.
    pub(super) async fn new(rng: StdRng, third: u64) -> Self {
        let world = tests::World::without_services(tests::Options::default()).await;
        let config = reservations::GateConfig {
            // Every hold is due at once.
            due_after: Duration::from_millis(1),
            next_check: Duration::from_millis(1),
            ..scripts::gate(&world.redis_url, &world.key_prefix)
        };
        let stock = Stock {
            store: world.store.clone(),
            gate: reservations::Gate::new(config).unwrap(),
        };
        let on_sale = |on_hand, per_customer| Sku {
            on_hand,
            per_customer,
            ..Sku::default()
        };
        let third = match third {
            0 => None,
            1 => Some(Sku {
                opens: Some(1),
                ..on_sale(50, None)
            }),
            _ => Some(Sku {
                closes: Some(0),
                ..on_sale(50, None)
            }),
        };
        let mut walk = Self {
            pool: sqlx::PgPool::connect(&world.database_url).await.unwrap(),
            redis: scripts::raw(&world.redis_url).await,
            settle: SettleOrders::new(stock.clone()),
            expiry: ExpireOrders::new(stock.clone(), Vec::new())
                .with_payment_grace(stock_and_time::GRACE),
            world,
            stock,
            catalogue: Catalogue::default(),
            pg: Pg {
                skus: [Some(on_sale(90, Some(20))), Some(on_sale(70, None)), third],
                ..Pg::default()
            },
            gate: Gate::default(),
            rng,
            holds: Holds::default(),
            ids: BTreeMap::new(),
            numbers: std::collections::HashMap::new(),
            payments: 0,
            adjustments: 0,
            events: 0,
            epochs: 0,
            coverage: Coverage::default(),
            history: History::default(),
        };
        for sku in 0..SKUS {
            walk.put_sku(sku).await;
        }
        // Nobody publishes here, which is no outage.
        walk.execute(format!("update relay_watermark set low = {}", i64::MAX))
            .await;
        walk.rebuild().await;
        walk
    }

    pub(super) async fn execute(&self, statement: String) {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement))
            .execute(&self.pool)
            .await
            .unwrap();
    }

    async fn put_sku(&mut self, number: usize) {
        let Some(sku) = &mut self.pg.skus[number] else {
            return;
        };
        // The year 2200, and 1970.
        let late = Timestamp::UNIX_EPOCH + Duration::from_secs(7_258_118_400);
        let put = SkuPut {
            sku: names::sku(number),
            on_hand: i64::from(sku.on_hand),
            unit_price: names::money(1),
            per_customer_limit: sku.per_customer,
            opens_at: sku.opens.map(|_| late),
            closes_at: sku.closes.map(|_| Timestamp::UNIX_EPOCH),
            reservation_ttl_seconds: *domain::deadline::TTL_SECONDS.end(),
            waiting_room: WaitingRoom::Off,
            shard: SHARD,
        };
        let mut tx = self.stock.store.begin().await.unwrap();
        let request = HoldId::derive("model", "sku", put.sku.as_str());
        store::skus::put(&mut tx, &put, request).await.unwrap();
        tx.commit().await.unwrap();
        // What its opening stock counts as.
        let version: i64 = sqlx::query_scalar("select version from stock where sku = $1")
            .bind(put.sku.as_str())
            .fetch_one(&self.pool)
            .await
            .unwrap();
        sku.version = u32::try_from(version).unwrap();
    }

    /// After each call.
    pub(super) async fn compare(&self) -> Agreed {
        same_rows(&self.real_rows().await, &self.modelled_rows())?;
        let sound = self.pg.counts_are_right() && !self.pg.oversold();
        same("whether the counts are right", &true, &sound)?;
        let sound = self.gate.held_is_the_sum_of_holds();
        same("whether `held` is the sum of its holds", &true, &sound)
    }

    pub(super) async fn real_rows(&self) -> Rows {
        let rows = sqlx::query(ROWS).fetch_all(&self.pool).await.unwrap();
        let mut all: Rows = rows.into_iter().map(|row| row.get(0)).collect();
        let seen = self.stock.gate.snapshot(SHARD).await.unwrap();
        // Its names are the product's; which is the newest shows in what it holds.
        let newest = self.gate.epoch.map_or(u32::MAX, |epoch| epoch.id);
        all.extend(names::rows(&self.holds.modelled(&seen, |_| newest)));
        all.extend(seen.damaged);
        all
    }

    pub(super) fn modelled_rows(&self) -> Rows {
        let mut rows = names::rows(&self.gate);
        for (n, sku) in self.pg.skus.iter().enumerate() {
            if let Some(sku) = sku {
                rows.insert(format!(
                    "stock {} {} {} {} {}",
                    names::sku(n),
                    sku.on_hand,
                    sku.held,
                    sku.sold,
                    sku.version
                ));
            }
        }
        for (n, buyers) in self.pg.bought.iter().enumerate() {
            for buyer in 0..u8::try_from(BUYERS).unwrap() {
                let units = buyers[usize::from(buyer)];
                if units > 0 {
                    let customer = names::customer(buyer);
                    rows.insert(format!("bought {} {customer} {units}", names::sku(n)));
                }
            }
        }
        for (key, row) in &self.pg.keys {
            let (hold, order) = (self.holds.id(*key), self.ids[&row.order]);
            rows.insert(format!("key {hold} {} {order}", row.body));
        }
        self.modelled_orders(&mut rows);
        self.modelled_money(&mut rows);
        rows
    }

    fn modelled_orders(&self, rows: &mut Rows) {
        for (number, order) in &self.pg.orders {
            let lines = order.hold.lines();
            let lines: Vec<String> = lines
                .map(|(n, units)| format!("{}={units}", names::sku(n)))
                .collect();
            let mut row = format!(
                "order {} {} {} {} {} {} {} {:?}",
                self.ids[number],
                self.holds.id(order.key),
                names::customer(order.hold.buyer),
                order.status,
                order.version,
                i64::from(order.hold.units()) * UNIT_PRICE,
                lines.join(","),
                order.moment
            );
            if let Some(payment) = order.applied {
                row += &format!(" {}", names::payment_id(payment));
            }
            rows.insert(row);
        }
    }

    fn modelled_money(&self, rows: &mut Rows) {
        for (number, row) in &self.pg.payments {
            let state = match row.state {
                PaymentState::Pending => "PENDING",
                PaymentState::Completed => "COMPLETED",
                PaymentState::Failed => "FAILED",
            };
            let mut text = format!(
                "payment {} {} {state} {} {} {}",
                names::payment_id(*number),
                self.order_id(row.order),
                i64::from(row.captured) * UNIT_PRICE,
                i64::from(row.refunded) * UNIT_PRICE,
                if row.applied { "t" } else { "f" },
            );
            if let Some(flag) = row.flagged {
                text += &format!(" {}", flag.as_str());
            }
            rows.insert(text);
        }
        for (number, row) in &self.pg.refunds {
            let state = match row.state {
                RefundState::Requested => "REQUESTED",
                RefundState::Closed => "CLOSED",
                RefundState::External => "EXTERNAL",
            };
            rows.insert(format!(
                "refund {} {} {} {state}",
                names::payment_id(*number),
                self.order_id(self.pg.payments[number].order),
                i64::from(row.amount) * UNIT_PRICE,
            ));
        }
    }

    pub(super) fn order_id(&self, order: OrderNo) -> contracts::OrderId {
        let unknown = contracts::OrderId(uuid::Uuid::from_u128(UNKNOWN));
        self.ids.get(&order).copied().unwrap_or(unknown)
    }

    /// How an order stands, for the coverage.
    pub(super) fn status_of(&self, order: OrderNo) -> &'static str {
        let order = self.pg.orders.get(&order);
        order.map_or("no order", |order| order.status.as_str())
    }
}
