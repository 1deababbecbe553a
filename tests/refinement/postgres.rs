//! The code on a real PostgreSQL, and the gate beside it, against the model: the transaction of the
//! accept, payment news, cancel, expiry, the guarded read, the record of a charge, adjustments,
//! syncs, the sweep, losses of the gate and its rebuild, in random order.

mod accept;
mod gate;
mod payments;
mod possible;
mod state;
mod stock_and_time;

use std::collections::{BTreeMap, HashMap};

use contracts::OrderId;
use model::{
    Rules,
    protocol::{OrderNo, gate::Gate, pg::Pg},
};
use order::Catalogue;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IteratorRandom};
use stock::{ExpireOrders, SettleOrders, Stock};

use crate::{
    agreement::{Agreed, History, Mismatch, Walked, commands, seed},
    coverage::{Coverage, ToBeSeen},
    names::Holds,
    scripts::wipe,
};

const RULES: Rules = Rules { broken: None };
/// Commands of one world at most, and in `make test` of all.
const PER_WORLD: u64 = 1_000;
const COMMANDS: u64 = 1_500;
const OPTION: &str = "HOLDFAST_REFINEMENT_POSTGRES";
/// As many meet everything that can be.
const WHOLE: u64 = 20_000;
/// No order of the model.
const NO_ORDER: OrderNo = OrderNo::MAX;

/// The real system and the model of it, side by side.
struct Walk {
    world: tests::World,
    stock: Stock,
    pool: sqlx::PgPool,
    redis: redis::aio::MultiplexedConnection,
    settle: SettleOrders,
    expiry: ExpireOrders,
    catalogue: Catalogue,
    pg: Pg,
    gate: Gate,
    rng: StdRng,
    holds: Holds,
    /// The ids of the model's orders, in both directions.
    ids: BTreeMap<OrderNo, OrderId>,
    numbers: HashMap<OrderId, OrderNo>,
    payments: u32,
    adjustments: u32,
    events: u32,
    epochs: u32,
    coverage: Coverage,
    history: History,
}

impl Walk {
    fn percent(&mut self) -> u32 {
        self.rng.random_range(0..100)
    }

    /// One of the last orders.
    fn some_order(&mut self) -> OrderNo {
        let from = self.pg.orders.len().saturating_sub(60);
        let orders = self.pg.orders.keys().skip(from).copied();
        orders.choose(&mut self.rng).unwrap_or(NO_ORDER)
    }

    /// An order that waits, if there is one.
    fn waiting_order(&mut self) -> OrderNo {
        let orders = self.pg.orders.iter();
        let waiting = orders.filter(|(_, order)| !order.status.is_end());
        let chosen = waiting.map(|(number, _)| *number).choose(&mut self.rng);
        chosen.unwrap_or(NO_ORDER)
    }

    /// One of any status, each as often as every other.
    fn order_of_some_status(&mut self) -> OrderNo {
        let mut kinds: BTreeMap<&str, Vec<OrderNo>> = BTreeMap::new();
        for (number, order) in &self.pg.orders {
            kinds
                .entry(order.status.as_str())
                .or_default()
                .push(*number);
        }
        let kind = kinds.into_values().choose(&mut self.rng);
        let order = kind.and_then(|all| all.into_iter().choose(&mut self.rng));
        order.unwrap_or(NO_ORDER)
    }

    /// Mostly one that waits.
    fn any_order(&mut self) -> OrderNo {
        match self.percent() {
            0..=49 => self.waiting_order(),
            50..=64 => self.held_order(),
            65..=84 => self.order_of_some_status(),
            _ => self.some_order(),
        }
    }

    async fn step_of_any_kind(&mut self) -> Agreed {
        match self.percent() {
            0..=21 => self.accept().await,
            22..=45 => self.settle_news().await,
            46..=52 => self.cancel().await,
            53..=60 => self.time_passes().await,
            61..=65 => self.expire().await,
            66..=73 => self.begin_payments().await,
            74..=78 => self.record_charges().await,
            79..=82 => self.adjust().await,
            83..=89 => self.reserve().await,
            90..=96 => self.sync().await,
            _ => self.sweep().await,
        }
    }

    async fn step(&mut self) -> Agreed {
        if self.rng.random_bool(0.05) {
            self.lose_gate().await?;
        } else {
            self.step_of_any_kind().await?;
        }
        self.compare().await
    }

    async fn walk(&mut self, commands: u64) -> Agreed {
        while self.coverage.commands() < commands {
            self.step().await?;
        }
        self.mend().await
    }

    async fn fail(&self, seed: u64, least: u64, mismatch: &Mismatch) -> ! {
        Walked {
            test: "postgres",
            seed,
            asked: (OPTION, least),
            history: &self.history,
            real: self.real_rows().await,
            model: self.modelled_rows(),
        }
        .fail(mismatch)
    }

    async fn end(mut self) -> Coverage {
        wipe(&mut self.redis, &format!("{}:*", self.world.key_prefix)).await;
        self.pool.close().await;
        self.world.end().await;
        self.coverage
    }
}

const ANSWERS: &[(&str, &[&str])] = &[
    (
        "accept",
        &[
            "Accepted",
            "Before",
            "KeyReused",
            "Late",
            "SoldOut",
            "Limit",
            "NotOpen",
            "Over",
            "UnknownSku",
        ],
    ),
    (
        "settle",
        &[
            "Confirmed",
            "Canceled",
            "Recorded",
            "Repeated",
            "Refunding",
            "RefundingAndFlagged",
            "Alarmed",
            "RefundedBefore",
            "RefundClosed",
            "RefundExternal",
            "RefundMismatch",
            "UnknownOrder",
            "OtherOrder",
            "UnknownPayment",
        ],
    ),
    ("cancel", &["Done", "AlreadySettled", "NotFound"]),
    ("expire", &["expired", "protected"]),
    ("begin", &["begun", "refused"]),
    ("record", &["recorded", "refused"]),
    ("adjust", &["done", "refused"]),
    ("reserve", &["OK", "KNOWN", "SOLD_OUT", "LIMIT", "NO_GATE"]),
    ("sync", &["KEPT", "ADDED", "DONE", "ABSENT", "NO_GATE"]),
    ("sweep", &["DONE", "KEPT"]),
];

#[tokio::test]
async fn the_code_on_postgresql_answers_and_leaves_the_state_as_the_model_does() {
    let (first, least) = (seed(), commands(OPTION, COMMANDS));
    eprintln!("HOLDFAST_SEED={first} {OPTION}={least}");
    let mut coverage = Coverage::default();
    // Every third world has another third SKU.
    let worlds = least.div_ceil(PER_WORLD).next_multiple_of(3);
    for n in 0..worlds {
        let seed = first.wrapping_add(n);
        let mut walk = Walk::new(StdRng::seed_from_u64(seed), seed % 3).await;
        if let Err(mismatch) = walk.walk(least.div_ceil(worlds)).await {
            walk.fail(seed, least, &mismatch).await;
        }
        coverage.merge(walk.end().await);
    }
    let to_be_seen = ToBeSeen {
        pairs: possible::pairs(),
        answers: ANSWERS,
        from: WHOLE,
    };
    coverage.conclude("PostgreSQL", least, &to_be_seen);
}
