//! News of payments, and the payments of our own service.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use contracts::{
    ConsumerName, OrderId, PaymentMethod, RefundKey, Timestamp, Topic,
    events::{PaymentCompleted, PaymentEvent, PaymentFailed, PaymentRefunded},
};
use messaging::{Handler, Inbound, Position};
use model::protocol::{
    OrderNo, PaymentNo,
    money::{News, Told},
};
use rand::{RngExt, seq::IteratorRandom};
use store::{
    payments::{self, PendingPayment},
    settlement,
};

use super::{NO_ORDER, RULES, Walk, stock_and_time::MIN_LEFT};
use crate::{
    agreement::{Agreed, same},
    names,
};

/// Payments of our own service; the others are upstream's.
const OURS: PaymentNo = 1_000_000;
/// No order gets so far, so it has no payment of ours.
const NOT_CHARGED: OrderNo = 999_999;

fn gateway_key(order: OrderNo) -> String {
    format!("order-{order}")
}

impl Walk {
    fn price(&self, order: OrderNo) -> i32 {
        let found = self.pg.orders.get(&order);
        found.map_or(2, |found| found.hold.units())
    }

    /// A known payment, each kind of them as often as every other; or a new one.
    fn payment(&mut self) -> (PaymentNo, OrderNo) {
        if self.rng.random_bool(0.7) {
            let mut kinds: BTreeMap<String, Vec<PaymentNo>> = BTreeMap::new();
            for (number, row) in &self.pg.payments {
                let kind = self.payment_is(*number, row.order);
                kinds.entry(kind).or_default().push(*number);
            }
            let kind = kinds.into_values().choose(&mut self.rng);
            if let Some(payment) = kind.and_then(|all| all.into_iter().choose(&mut self.rng)) {
                return (payment, self.pg.payments[&payment].order);
            }
        }
        self.payments += 1;
        (self.payments, self.any_order())
    }

    fn news(&mut self) -> News {
        let (payment, order) = self.payment();
        let order = match self.percent() {
            0..=3 => self.some_order(),
            4..=6 => NO_ORDER,
            _ => order,
        };
        let amount = self.price(order) + i32::from(self.rng.random_bool(0.12));
        match self.percent() {
            0..=34 => News::Completed {
                payment,
                order,
                amount,
            },
            35..=66 => News::Failed {
                payment,
                order,
                is_final: self.rng.random_bool(0.5),
            },
            _ => {
                let asked = self.pg.refunds.get(&payment).map(|one| one.amount);
                // Now and then a part of it, or more than was asked for.
                let other = [-1, 1][usize::from(self.rng.random_bool(0.5))];
                let by = if self.rng.random_bool(0.3) { other } else { 0 };
                News::Refunded {
                    payment,
                    order,
                    amount: (asked.unwrap_or(amount) + by).max(1),
                }
            }
        }
    }

    fn inbound(&self, id: u32, news: News) -> Inbound<PaymentEvent> {
        let order_id = self.order_id(news.order());
        let event = match news {
            News::Completed {
                payment, amount, ..
            } => PaymentEvent::Completed(PaymentCompleted {
                payment_id: names::payment_id(payment),
                order_id,
                amount: names::money(amount),
                method: PaymentMethod::parse("card").unwrap(),
                completed_at: Timestamp::UNIX_EPOCH,
            }),
            News::Failed {
                payment, is_final, ..
            } => PaymentEvent::Failed(PaymentFailed {
                payment_id: names::payment_id(payment),
                order_id,
                reason_code: "declined".to_owned(),
                is_final,
            }),
            News::Refunded {
                payment, amount, ..
            } => PaymentEvent::Refunded(PaymentRefunded {
                refund_key: RefundKey::of(&names::payment_id(payment)),
                payment_id: names::payment_id(payment),
                order_id,
                amount: names::money(amount),
            }),
        };
        Inbound {
            source: "/refinement".to_owned(),
            event_id: format!("e-{id}"),
            time: None,
            aggregate_version: None,
            traceparent: None,
            position: Position {
                topic: Arc::from(Topic::Payments.as_str()),
                partition: 0,
                offset: 0,
            },
            event,
        }
    }

    /// As the consumer's runner does it: inbox, handler, commit, `after_commit`. Now and then the
    /// process dies before the offsets are stored, and the inbox knows the whole batch.
    pub(super) async fn settle_news(&mut self) -> Agreed {
        let count = self.rng.random_range(1..=8);
        let news: Vec<News> = (0..count).map(|_| self.news()).collect();
        let syncs = self.rng.random_bool(0.5);
        self.history.tell(format!("settle {news:?}, syncs {syncs}"));
        let events: Vec<_> = news
            .iter()
            .map(|news| {
                self.events += 1;
                self.inbound(self.events, *news)
            })
            .collect();
        let mut keys: Vec<_> = events
            .iter()
            .map(|one| (one.source.clone(), one.event_id.clone()))
            .collect();
        keys.sort();
        let store = &self.stock.store;
        let mut tx = store.begin().await.unwrap();
        let new = store::inbox::insert(&mut tx, ConsumerName::Stock, &keys).await;
        same("the inbox", &new.unwrap().len(), &events.len())?;
        let asides = self.settle.handle(&mut tx, &events, ()).await.unwrap();
        tx.commit().await.unwrap();
        let mut tx = store.begin().await.unwrap();
        let new = store::inbox::insert(&mut tx, ConsumerName::Stock, &keys).await;
        same("the inbox, asked again", &new.unwrap().len(), &0)?;
        tx.rollback().await.unwrap();
        let states: Vec<String> = news.iter().map(|news| self.news_meets(*news)).collect();
        let told = self.pg.settle(&news, RULES);
        for ((index, told), state) in told.iter().enumerate().zip(states) {
            let aside = asides.iter().find(|aside| aside.index == index);
            // Why it went aside; that its money goes back as well shows in the refunds.
            let real = aside.map(|aside| aside.reason.split(';').next().unwrap_or(""));
            let (word, model) = match told {
                Told::Handled(cell) => (format!("{cell:?}"), None),
                Told::UnknownOrder => (format!("{told:?}"), Some("the order does not exist")),
                Told::OtherOrder => (
                    format!("{told:?}"),
                    Some("the payment belongs to another order"),
                ),
                Told::UnknownPayment => (format!("{told:?}"), Some("the payment does not exist")),
            };
            self.coverage.note("settle", state, &word);
            same(&format!("{:?}", news[index]), &real, &model)?;
        }
        if syncs {
            self.settle.after_commit(&events).await;
            let orders: BTreeSet<OrderNo> = news.iter().map(|news| news.order()).collect();
            self.tell_orders(&orders);
        }
        Ok(())
    }

    /// As the batch began; what its own events change shows in the answers.
    fn news_meets(&self, news: News) -> String {
        let (kind, payment) = match news {
            News::Completed { payment, .. } => ("completed", payment),
            News::Failed {
                payment, is_final, ..
            } => (if is_final { "failed" } else { "failed once" }, payment),
            News::Refunded { payment, .. } => ("refunded", payment),
        };
        format!("{kind}, {}", self.payment_is(payment, news.order()))
    }

    /// A payment, as news of it find it that name this order.
    fn payment_is(&self, payment: PaymentNo, order: OrderNo) -> String {
        let status = self.status_of(order);
        let Some(row) = self.pg.payments.get(&payment) else {
            return format!("{status}, new");
        };
        if row.order != order {
            return "of another order".to_owned();
        }
        let state = if row.applied {
            "applied".to_owned()
        } else {
            format!("{:?}", row.state)
        };
        let refund = self.pg.refunds.get(&payment);
        let refund = refund.map_or(String::new(), |one| format!(", refund {:?}", one.state));
        format!("{status}, {state}{refund}")
    }

    /// The guarded read and the PENDING row.
    pub(super) async fn begin_payments(&mut self) -> Agreed {
        let mut orders = BTreeSet::new();
        for _ in 0..self.rng.random_range(1..=5) {
            orders.insert(self.any_order());
        }
        self.history.tell(format!("begin payments of {orders:?}"));
        let ids: Vec<OrderId> = orders.iter().map(|number| self.order_id(*number)).collect();
        let mut tx = self.stock.store.begin().await.unwrap();
        let waiting = payments::lock_waiting_orders(&mut tx, &ids, MIN_LEFT).await;
        let pending: Vec<PendingPayment> = waiting
            .unwrap()
            .into_iter()
            .map(|order| {
                let number = self.numbers[&order.order_id];
                PendingPayment {
                    id: names::payment_id(OURS + number),
                    order_id: order.order_id,
                    gateway_key: gateway_key(number),
                    amount: order.total,
                    method: order.method,
                    attempts: 0,
                }
            })
            .collect();
        let lease = Duration::from_secs(600);
        let begun = payments::insert_pending(&mut tx, &pending, lease).await;
        tx.commit().await.unwrap();
        let mut model = 0;
        for number in orders {
            let state = self.guard_meets(number);
            let begins = self
                .pg
                .begin_payment(number, OURS.saturating_add(number), RULES);
            model += u64::from(begins);
            let word = if begins { "begun" } else { "refused" };
            self.coverage.note("begin", state, word);
        }
        same("payments that are begun", &begun.unwrap(), &model)
    }

    fn guard_meets(&self, number: OrderNo) -> String {
        let status = self.status_of(number);
        let waits = self.pg.orders.get(&number);
        let Some(order) = waits.filter(|order| !order.status.is_end()) else {
            return status.to_owned();
        };
        let paying = if self.pg.is_paying(number) {
            ", paying"
        } else {
            ""
        };
        format!("{status}, {:?}{paying}", order.moment)
    }

    /// One of ours, of a status and state as often as of any other; or one that does not exist.
    fn our_payment(&mut self) -> PaymentNo {
        let mut kinds: BTreeMap<String, Vec<PaymentNo>> = BTreeMap::new();
        for number in self.pg.payments.range(OURS..).map(|(number, _)| *number) {
            let kind = self.charge_is(number);
            kinds.entry(kind).or_default().push(number);
        }
        let kind = kinds.into_values().choose(&mut self.rng);
        let chosen = kind.and_then(|all| all.into_iter().choose(&mut self.rng));
        match chosen {
            Some(payment) if self.rng.random_bool(0.95) => payment,
            _ => OURS + NOT_CHARGED,
        }
    }

    fn charge_is(&self, payment: PaymentNo) -> String {
        let row = self.pg.payments.get(&payment);
        row.map_or_else(
            || "no payment".to_owned(),
            |row| format!("{:?}, {}", row.state, self.status_of(payment - OURS)),
        )
    }

    /// What became of charges is recorded, once; the news of it is another matter.
    pub(super) async fn record_charges(&mut self) -> Agreed {
        for _ in 0..self.rng.random_range(1..=3) {
            let payment = self.our_payment();
            let order = payment - OURS;
            let captured = if self.rng.random_bool(0.7) {
                self.price(order)
            } else {
                0
            };
            self.history
                .tell(format!("record {captured} of payment {payment}"));
            let mut tx = self.stock.store.begin().await.unwrap();
            let keys = [gateway_key(order)];
            let mut rows = payments::lock_for_results(&mut tx, &keys, &[])
                .await
                .unwrap();
            rows.retain(|row| row.state == settlement::PaymentState::Pending);
            for row in &mut rows {
                row.state = if captured > 0 {
                    settlement::PaymentState::Completed
                } else {
                    settlement::PaymentState::Failed
                };
                row.captured_minor = i64::from(captured) * names::UNIT_PRICE;
                row.version += 1;
            }
            let changed: Vec<_> = rows.iter().collect();
            payments::update(&mut tx, &changed).await.unwrap();
            tx.commit().await.unwrap();
            let state = self.charge_is(payment);
            let recorded = self.pg.record_charge(payment, captured);
            let word = if recorded { "recorded" } else { "refused" };
            self.coverage.note("record", state, word);
            same("a record", &!rows.is_empty(), &recorded)?;
        }
        Ok(())
    }
}
