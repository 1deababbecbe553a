//! Cancel, deadlines that come, expiry, and changes of what there is.

use std::{collections::BTreeSet, time::Duration};

use contracts::{HoldId, OrderId, envelope::source};
use domain::{OrderStatus, Transition, Trigger, order::apply};
use model::protocol::pg::{Canceled, Moment};
use rand::RngExt;
use stock::Expired;
use store::{
    adjustments::{Adjusted, NewAdjustment},
    orders::{self, Ending, Transitioned},
};

use super::{RULES, Walk};
use crate::{
    agreement::{Agreed, same},
    names,
};

/// How much of a hold must be left for a charge: the model's `Early` has more, its `Tight` less.
pub(super) const MIN_LEFT: Duration = Duration::from_secs(6 * 3_600);
/// How long a payment protects its order: the model's `Due` is before, its `PastGrace` after.
pub(super) const GRACE: Duration = Duration::from_secs(10 * 3_600);

impl Walk {
    /// As the use case composes it.
    pub(super) async fn cancel(&mut self) -> Agreed {
        for _ in 0..self.rng.random_range(1..=3) {
            let number = if self.rng.random_bool(0.04) {
                super::NO_ORDER
            } else {
                self.any_order()
            };
            self.history.tell(format!("cancel {number}"));
            let mut tx = self.stock.store.begin().await.unwrap();
            let locked = orders::lock(&mut tx, &[self.order_id(number)])
                .await
                .unwrap();
            let real = match locked.first() {
                None => Canceled::NotFound,
                Some(order) => match apply(order.status, Trigger::CancelRequested) {
                    Transition::To(to) => {
                        let ending = Ending {
                            order,
                            to,
                            cause: "cancel".to_owned(),
                            reason: "canceled".to_owned(),
                        };
                        let now = store::settlement::now(&mut tx).await.unwrap();
                        let ended =
                            orders::transition(&mut tx, &[ending], now, source::ORDER).await;
                        let applied = matches!(ended.unwrap()[0], Transitioned::Applied(_));
                        same("a locked order's end", &applied, &true)?;
                        Canceled::Done
                    }
                    Transition::AlreadyThere => Canceled::Done,
                    Transition::Settled => Canceled::AlreadySettled,
                },
            };
            tx.commit().await.unwrap();
            let state = self.status_of(number).to_owned();
            let model = self.pg.cancel(number, RULES);
            self.coverage.note("cancel", state, &format!("{model:?}"));
            same("cancel", &real, &model)?;
        }
        Ok(())
    }

    /// Some orders come nearer to their deadlines, or past them.
    pub(super) async fn time_passes(&mut self) -> Agreed {
        for _ in 0..self.rng.random_range(1..=5) {
            let number = self.waiting_order();
            let moments = self.rng.random_range(1..=3);
            let Some(order) = self.pg.orders.get_mut(&number) else {
                continue;
            };
            let before = order.moment;
            let next = (0..moments).fold(before, |at, _| at.next().unwrap_or(at));
            order.moment = next;
            self.history.tell(format!("order {number} is {next:?}"));
            let hours = match next {
                Moment::Early => 24,
                Moment::Tight => 3,
                Moment::Due => -3,
                Moment::PastGrace => -20,
            };
            let id = self.ids[&number];
            self.execute(format!(
                "update orders set created_at = now() - interval '100 hours',
                        reserved_until = now() + interval '{hours} hours' where id = '{id}'"
            ))
            .await;
            self.coverage
                .note("later", format!("{before:?}"), &format!("{next:?}"));
        }
        Ok(())
    }

    pub(super) async fn expire(&mut self) -> Agreed {
        self.history.tell("expire".to_owned());
        let expired = match self.expiry.expire_due_orders().await.unwrap() {
            Expired::Orders(expired) => expired,
            other => panic!("nothing holds expiry: {other:?}"),
        };
        let due: Vec<_> = self
            .pg
            .orders
            .iter()
            .filter(|(_, one)| one.status == OrderStatus::Reserved && one.moment >= Moment::Due)
            .map(|(number, one)| (*number, one.moment, self.pg.is_paying(*number)))
            .collect();
        let model: BTreeSet<_> = self.pg.expire(RULES).into_iter().collect();
        if due.is_empty() {
            self.coverage
                .note("expire", "nothing is due".to_owned(), "nothing");
        }
        for (number, moment, paying) in due {
            let word = if model.contains(&number) {
                "expired"
            } else {
                "protected"
            };
            let state = format!("{moment:?}{}", if paying { ", paying" } else { "" });
            self.coverage.note("expire", state, word);
        }
        let ids: BTreeSet<OrderId> = model.iter().map(|number| self.ids[number]).collect();
        same("expire", &expired.into_iter().collect(), &ids)?;
        self.tell_orders(&model);
        Ok(())
    }

    pub(super) async fn adjust(&mut self) -> Agreed {
        let sku = self.rng.random_range(0..2);
        let row = self.pg.skus[sku].unwrap();
        let free = row.on_hand - row.held - row.sold;
        let rng = &mut self.rng;
        // Often as many as are free, or a few more.
        let delta = match rng.random_range(0..100) {
            0..=9 if free > 0 => -free,
            10..=34 => -free - rng.random_range(1..=3),
            35..=54 => -rng.random_range(1..=8),
            _ => rng.random_range(1..=18),
        };
        self.adjustments += 1;
        self.history.tell(format!("adjust {sku} by {delta}"));
        let new = NewAdjustment {
            request_id: HoldId::derive("model", "adjust", &self.adjustments.to_string()),
            fingerprint: [0; 32],
            sku: names::sku(sku),
            delta: i64::from(delta),
            reason: "model".to_owned(),
        };
        let mut tx = self.stock.store.begin().await.unwrap();
        let real = store::adjustments::insert(&mut tx, &new).await.unwrap();
        tx.commit().await.unwrap();
        let state = if delta > 0 { "received" } else { "written off" };
        let model = self.pg.adjust(sku, delta);
        let word = if model { "done" } else { "refused" };
        self.coverage.note("adjust", state.to_owned(), word);
        same("adjust", &matches!(real, Adjusted::Done(_)), &model)
    }
}
