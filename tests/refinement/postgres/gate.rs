//! The gate beside PostgreSQL: reserves, syncs, the sweep, losses, the rebuild, and the gate as it
//! must be when nothing is under way.

use std::collections::{BTreeMap, BTreeSet};

use contracts::{OrderId, Sku};
use model::protocol::{
    BUYERS, Hold, Key, OrderNo, SKUS,
    gate::{GateOp, Word, apply},
    pg::View,
};
use rand::{RngExt, seq::IteratorRandom};
use stock::{rebuild_gate, sweep_holds, sync_gate};

use super::{NO_ORDER, RULES, Walk, accept::hold_of};
use crate::{
    agreement::{Agreed, same},
    names::{self, SHARD},
    scripts::wipe,
};

impl Walk {
    fn run(&mut self, op: &GateOp) -> Word {
        apply(&mut self.gate, op, RULES)
    }

    pub(super) async fn reserve(&mut self) -> Agreed {
        let count = self.rng.random_range(1..=8);
        let asked: Vec<(Key, Hold)> = (0..count)
            .map(|_| {
                let held = self.held_key().filter(|_| self.rng.random_bool(0.3));
                let key = held.unwrap_or_else(|| self.key());
                (key, hold_of(key, 0))
            })
            .collect();
        self.history.tell(format!("reserve {asked:?}"));
        let holds: Vec<_> = asked
            .iter()
            .map(|(key, hold)| self.holds.real(*key, hold))
            .collect();
        let answers = self.stock.gate.reserve(SHARD, 0, &holds).await;
        let real: Vec<&str> = answers.into_iter().map(|one| one.as_str()).collect();
        let mut model = Vec::with_capacity(asked.len());
        for (key, hold) in asked {
            let state = self.key_meets(key);
            let word = self.run(&GateOp::Reserve { now: 0, key, hold });
            self.coverage.note("reserve", state, word.as_str());
            model.push(word.as_str());
        }
        same("reserve", &real, &model)
    }

    /// One that has a hold, of an order of any status as often as of every other, or of none.
    fn held_key(&mut self) -> Option<Key> {
        let mut kinds: BTreeMap<&str, Vec<Key>> = BTreeMap::new();
        for key in self.gate.holds.keys() {
            let order = self.pg.order_of(*key).map(|(number, _)| number);
            let kind = order.map_or("", |number| self.status_of(number));
            kinds.entry(kind).or_default().push(*key);
        }
        let kind = kinds.into_values().choose(&mut self.rng);
        kind.and_then(|all| all.into_iter().choose(&mut self.rng))
    }

    /// The order of such a hold.
    pub(super) fn held_order(&mut self) -> OrderNo {
        let key = self.held_key();
        let order = key.and_then(|key| self.pg.order_of(key));
        order.map_or(NO_ORDER, |(number, _)| number)
    }

    /// Epoch, order, hold at the gate.
    fn key_meets(&self, key: Key) -> String {
        let order = self.pg.order_of(key).map(|(number, _)| number);
        let order = order.map_or("no order", |number| self.status_of(number));
        let hold = if self.gate.holds.contains_key(&key) {
            "a hold"
        } else {
            "no hold"
        };
        format!("{}, {order}, {hold}", self.epoch_is())
    }

    fn epoch_is(&self) -> &'static str {
        match self.gate.epoch {
            None => "lost",
            Some(epoch) if epoch.open => "open",
            Some(_) => "closed",
        }
    }

    /// The gate is told what PostgreSQL says of these keys: registers of what has ended first, then ends
    /// before lives.
    fn tell_views(&mut self, command: &'static str, keys: &[(Key, Hold)]) {
        let skus: BTreeSet<usize> = keys
            .iter()
            .filter(|(key, _)| self.pg.view(*key) != View::Live)
            .flat_map(|(_, hold)| hold.lines().map(|(sku, _)| sku).collect::<Vec<_>>())
            .collect();
        for sku in skus {
            self.put_register(sku);
        }
        for view in [View::Committed, View::Released, View::Live] {
            for (key, hold) in keys.iter().copied() {
                if self.pg.view(key) != view {
                    continue;
                }
                let state = self.key_meets(key);
                let word = self.run(&match view {
                    View::Live => GateOp::Keep { key, hold },
                    View::Committed => GateOp::Commit { key, hold },
                    View::Released => GateOp::Release { key, hold },
                });
                self.coverage.note(command, state, word.as_str());
            }
        }
    }

    /// The same of these orders; those that do not exist are left out.
    pub(super) fn tell_orders(&mut self, numbers: &BTreeSet<OrderNo>) {
        let orders = numbers
            .iter()
            .filter_map(|number| self.pg.orders.get(number));
        let keys: Vec<(Key, Hold)> = orders.map(|order| (order.key, order.hold)).collect();
        self.tell_views("sync", &keys);
    }

    fn put_register(&mut self, sku: usize) {
        if let Some(row) = self.pg.skus[sku] {
            let register = row.register();
            self.run(&GateOp::Put { sku, register });
        }
    }

    pub(super) async fn sync(&mut self) -> Agreed {
        let mut numbers = BTreeSet::new();
        for _ in 0..self.rng.random_range(1..=8) {
            numbers.insert(match self.percent() {
                0..=24 => self.held_order(),
                25..=49 => self.waiting_order(),
                _ => self.some_order(),
            });
        }
        self.sync_orders(&numbers).await;
        if self.rng.random_bool(0.3) {
            self.sync_skus().await;
        }
        Ok(())
    }

    async fn sync_orders(&mut self, numbers: &BTreeSet<OrderNo>) {
        self.history.tell(format!("sync {numbers:?}"));
        let ids: Vec<OrderId> = numbers
            .iter()
            .map(|number| self.order_id(*number))
            .collect();
        sync_gate::sync_orders(&self.stock, &ids).await.unwrap();
        self.tell_orders(numbers);
    }

    async fn sync_skus(&mut self) {
        self.history.tell("sync all SKUs".to_owned());
        let skus: Vec<Sku> = (0..SKUS).map(names::sku).collect();
        sync_gate::sync_skus(&self.stock, &skus).await.unwrap();
        for sku in 0..SKUS {
            self.put_register(sku);
        }
    }

    pub(super) async fn sweep(&mut self) -> Agreed {
        self.history.tell("sweep".to_owned());
        self.wait_until_due().await;
        let swept = sweep_holds::sweep_holds(&self.stock).await.unwrap();
        let holds = self.gate.holds.iter();
        let keys: Vec<_> = holds
            .map(|(key, stored)| {
                let order = self.pg.order_of(*key);
                (*key, order.map_or(stored.hold, |(_, order)| order.hold))
            })
            .collect();
        self.tell_views("sweep", &keys);
        same("how many holds are due", &swept.due, &keys.len())
    }

    /// Every hold is due 1 ms after it was touched, on the clock of Redis.
    async fn wait_until_due(&mut self) {
        let begun = self.redis_ms().await;
        while self.redis_ms().await < begun + 3 {}
    }

    async fn redis_ms(&mut self) -> u64 {
        let (seconds, micros): (u64, u64) = redis::cmd("TIME")
            .query_async(&mut self.redis)
            .await
            .unwrap();
        seconds * 1_000 + micros / 1_000
    }

    /// All keys are lost, or a rebuild has begun and died; everything goes on; then the shard is
    /// rebuilt.
    pub(super) async fn lose_gate(&mut self) -> Agreed {
        if self.rng.random_bool(0.3) {
            self.history.tell("lose the gate".to_owned());
            wipe(&mut self.redis, &format!("{}:*", self.world.key_prefix)).await;
            self.run(&GateOp::Wipe);
            self.coverage.note("wipe", "open".to_owned(), "lost");
        } else {
            self.history.tell("a rebuild dies".to_owned());
            let gate = &self.stock.gate;
            let newest = gate.current_epoch(SHARD).await.unwrap();
            let newest = newest.map(|state| state.epoch);
            let name = reservations::Gate::new_epoch_id();
            let answer = gate.begin_epoch(SHARD, &name, newest.as_deref()).await;
            let word = self.begin();
            self.coverage
                .note("begin epoch", "open".to_owned(), word.as_str());
            same("begin an epoch", answer.unwrap().as_str(), word.as_str())?;
            self.compare().await?;
            let some: BTreeSet<OrderNo> = (0..8).map(|_| self.waiting_order()).collect();
            self.sync_orders(&some).await;
        }
        for _ in 0..self.rng.random_range(2..=12) {
            self.compare().await?;
            self.step_of_any_kind().await?;
        }
        self.compare().await?;
        self.history.tell("rebuild".to_owned());
        let before = self.epoch_is().to_owned();
        self.rebuild().await;
        self.coverage.note("rebuild", before, self.epoch_is());
        Ok(())
    }

    fn begin(&mut self) -> Word {
        let (epoch, replaces) = (self.epochs, self.gate.epoch.map(|epoch| epoch.id));
        self.epochs += 1;
        self.run(&GateOp::Begin { epoch, replaces })
    }

    /// Begins an epoch, fills and opens it.
    pub(super) async fn rebuild(&mut self) {
        rebuild_gate::rebuild_if_lost(&self.stock, SHARD)
            .await
            .unwrap();
        self.begin();
        for sku in 0..SKUS {
            self.put_register(sku);
        }
        let live: Vec<_> = self
            .pg
            .orders
            .values()
            .filter(|order| !order.status.is_end())
            .map(|order| (order.key, order.hold))
            .collect();
        for (key, hold) in live {
            self.run(&GateOp::Keep { key, hold });
        }
        self.correct_buyers();
        let epoch = self.epochs - 1;
        self.run(&GateOp::Open { epoch });
    }

    fn correct_buyers(&mut self) {
        for sku in 0..SKUS {
            if self.pg.skus[sku].is_none_or(|row| row.per_customer.is_none()) {
                continue;
            }
            for buyer in 0..u8::try_from(BUYERS).unwrap() {
                let seen = self.gate.bought[sku][usize::from(buyer)];
                let units = self.pg.bought[sku][usize::from(buyer)];
                self.run(&GateOp::CorrectBuyer {
                    sku,
                    buyer,
                    seen,
                    units,
                });
            }
        }
    }

    /// At the end: everything is synced and swept, and the gate says what PostgreSQL says.
    pub(super) async fn mend(&mut self) -> Agreed {
        let all: BTreeSet<OrderNo> = self.pg.orders.keys().copied().collect();
        self.sync_orders(&all).await;
        self.sync_skus().await;
        self.sweep().await?;
        let limited = names::sku(0);
        rebuild_gate::put_buyers(&self.stock, SHARD, &limited)
            .await
            .unwrap();
        self.correct_buyers();
        self.compare().await?;
        for sku in 0..SKUS {
            let there = self.gate.rows[sku].map(|row| (row.register.limit, row.held));
            let right = self.pg.skus[sku].map(|row| (row.on_hand - row.sold, row.held));
            same("the mended gate of a SKU", &there, &right)?;
        }
        same(
            "the mended buyers",
            &self.gate.bought[0],
            &self.pg.bought[0],
        )?;
        let orders = self.pg.orders.values();
        let live: BTreeSet<Key> = orders
            .filter(|order| !order.status.is_end())
            .map(|order| order.key)
            .collect();
        let held: BTreeSet<Key> = self.gate.holds.keys().copied().collect();
        same("the mended holds", &held, &live)
    }
}
