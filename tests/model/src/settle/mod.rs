//! Settlement, expiry and payments (P5, P6, P9): one order that is paid, canceled or overdue, news
//! that is repeated, late and in any order, consumers that die between commit and offset, and money
//! that must be where it belongs in the end.
//!
//! Two configurations: payments of our service (guarded read, charge, sweep, refunds, all with lost
//! replies) and payments of an upstream service (two payments of one order, right and wrong
//! amounts, failures).

mod ours;
mod properties;
mod steps;

use domain::OrderStatus;

use crate::{
    Rules,
    check::{Tallied, Tally},
    protocol::{
        Hold, PaymentNo,
        money::News,
        pg::{Moment, Pg, Request, Sku},
    },
};

/// The only order.
pub(crate) const ORDER: u32 = 0;
/// Its price.
pub(crate) const PRICE: i32 = 2;

/// Who pays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Payer {
    /// Our payment service, at a gateway.
    Ours,
    /// Another service, which says what it has done.
    Upstream,
}

/// What may happen, and how often.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Who pays.
    pub payer: Payer,
    /// Events that `payments.v1` may have.
    pub log: usize,
    /// How often a process may die, or a reply be lost.
    pub faults: u8,
    /// Whether the inbox is there: the state of the rows is the second line.
    pub inbox: bool,
    /// Whether the shop may cancel.
    pub cancel: bool,
}

/// The configuration as stateright wants it.
#[derive(Debug)]
pub struct Settle {
    pub(crate) bounds: Bounds,
    pub(crate) rules: Rules,
    pub(crate) tally: Tally,
}

/// What a gateway has done for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Charge {
    /// It never saw it.
    None,
    /// It has the buyer's money.
    Captured,
    /// It will never have it.
    Declined,
    /// The key was canceled: it will never be charged.
    Canceled,
}

/// One who works on the payment: the pool, or the sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Worker {
    /// Does nothing.
    Idle,
    /// Is about to charge.
    Charging,
    /// Is about to cancel the key.
    Canceling,
    /// Knows that the gateway has the money.
    Captured,
    /// Knows that it will never have it.
    Failed,
}

/// An expiry under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Expiry {
    /// Whether a payment protected the order when the first statement began.
    pub(crate) paying_then: bool,
    /// Whether it has the order's lock.
    pub(crate) locked: bool,
}

/// A promise that a step has broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Broken {
    /// An order expired before its deadline.
    ExpiredEarly,
    /// An order expired while a payment of it was in flight.
    ExpiredUnderPayment,
    /// A payment was begun for an order that did not wait.
    ChargedForNothing,
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// PostgreSQL.
    pub pg: Pg,
    /// `payments.v1`.
    pub log: Vec<News>,
    /// Events whose inbox row is there, as bits.
    pub inbox: u16,
    /// What is stored at Kafka.
    pub offset: u8,
    /// What the running consumer has reached.
    pub position: u8,
    /// The event that the consumer has in hand with its offset stored (only by a broken rule).
    pub in_hand: Option<u8>,
    /// Whether the transaction of the guarded read is open: it shares the order's lock.
    pub begins: bool,
    /// Expiry.
    pub expiry: Option<Expiry>,
    /// What the gateway has done, per key: there is one key.
    pub charges: [Charge; 2],
    /// Who works on the payment.
    pub workers: [Worker; 2],
    /// Refunds that were executed, per payment: there is one key each.
    pub refunded: [u8; 3],
    /// Asks for a refund that nobody has taken yet, per payment.
    pub asks: [u8; 3],
    /// What an upstream payment has come to: captured so much, or failed.
    pub truth: [Option<i32>; 3],
    /// Whether the second payment's first attempt has failed.
    pub failed_once: bool,
    /// How often it was told.
    pub told: [u8; 3],
    /// Processes that died and replies that were lost.
    pub faults: u8,
    /// The first promise that a step has broken.
    pub broken: Option<Broken>,
}

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Time goes on.
    Later,
    /// The shop cancels.
    Cancel,
    /// Expiry's first statement begins.
    ExpiryBegins,
    /// It gets the order's lock, or passes it over.
    ExpiryLocks,
    /// Its second statement decides; commit.
    ExpiryDecides,
    /// The consumer of payment news handles the next event; commit.
    Handle,
    /// It takes the next event and stores its offset (only by a broken rule).
    Fetch,
    /// It stores what it has reached.
    StoreOffset,
    /// It dies.
    ConsumerDies,
    /// Payment's guarded read.
    BeginLocks,
    /// The PENDING row is committed.
    BeginCommits,
    /// A worker takes the fresh payment.
    WorkerStarts(u8),
    /// A worker of the sweep asks the gateway by key, and reads whether the order waits.
    WorkerAsks(u8),
    /// The gateway charges, captures or declines; the worker hears of it.
    Charge(u8, bool),
    /// The same, and its reply is lost.
    ChargeUnheard(u8, bool),
    /// The gateway cancels the key.
    CancelCharge(u8),
    /// The result is recorded with its event.
    Record(u8),
    /// A worker dies.
    WorkerDies(u8),
    /// An upstream service captures so much, or fails.
    Upstream(PaymentNo, i32),
    /// It tells of it, first or again.
    Tell(PaymentNo),
    /// A payment fails, and another attempt may follow.
    TellFailedOnce(PaymentNo),
    /// A refund that was asked for and not answered is asked for again.
    AskAgain(PaymentNo),
    /// Someone takes the ask, refunds by its key, and tells.
    Refund(PaymentNo),
    /// The ask is lost with the process that had taken it.
    AskIsLost(PaymentNo),
}

/// What must be met at least once, or the walk proves little.
pub const REACHED: &[&str] = &[
    "an order is confirmed",
    "an order is canceled by a failed payment",
    "an order expires",
    "an event comes twice and the inbox knows it",
    "a capture comes after the end and is refunded",
    "a second payment is refunded",
    "a wrong amount is refunded and flagged",
    "a refund is closed",
    "a payment in flight protects an overdue order",
    "an order is locked and expiry passes it over",
    "an unknown charge is found by its key",
    "a key is canceled at the gateway",
    "a cancel at the gateway meets a capture",
    "an order past the grace expires under its payment",
];

impl Settle {
    /// A configuration with these bounds.
    #[must_use]
    pub fn new(bounds: Bounds, rules: Rules) -> Self {
        Self {
            bounds,
            rules,
            tally: Tally::new(REACHED),
        }
    }

    fn first() -> State {
        let mut pg = Pg::default();
        pg.skus[0] = Some(Sku {
            on_hand: PRICE,
            per_customer: Some(PRICE),
            ..Sku::default()
        });
        let request = Request {
            key: 0,
            body: 0,
            hold: Hold {
                buyer: 0,
                lines: [2, 0, 0],
            },
            order: ORDER,
            late: false,
        };
        pg.accept(0, &[request], Rules::default());
        State {
            pg,
            log: Vec::new(),
            inbox: 0,
            offset: 0,
            position: 0,
            in_hand: None,
            begins: false,
            expiry: None,
            charges: [Charge::None; 2],
            workers: [Worker::Idle; 2],
            refunded: [0; 3],
            asks: [0; 3],
            truth: [None; 3],
            failed_once: false,
            told: [0; 3],
            faults: 0,
            broken: None,
        }
    }
}

impl State {
    pub(crate) fn status(&self) -> OrderStatus {
        self.pg
            .orders
            .get(&ORDER)
            .map_or(OrderStatus::Canceled, |order| order.status)
    }

    pub(crate) fn moment(&self) -> Moment {
        self.pg
            .orders
            .get(&ORDER)
            .map_or(Moment::PastGrace, |order| order.moment)
    }

    /// Whether a transaction has the order for itself.
    pub(crate) fn is_locked(&self) -> bool {
        self.expiry.is_some_and(|expiry| expiry.locked)
    }

    /// Money that is with the shop, over all payments.
    pub(crate) fn captured(&self) -> i32 {
        let ours = self.charges.iter().filter(|one| **one == Charge::Captured);
        let ours = i32::try_from(ours.count()).unwrap_or(0) * PRICE;
        ours + self.truth.iter().flatten().sum::<i32>()
    }

    /// Money that went back, over all payments.
    pub(crate) fn gone_back(&self) -> i32 {
        let amount = |payment: usize| self.truth[payment].unwrap_or(PRICE);
        (0..3)
            .map(|payment| i32::from(self.refunded[payment]) * amount(payment))
            .sum()
    }
}

impl Tallied for Settle {
    fn reached(&self) -> Vec<(&'static str, u64)> {
        self.tally.read()
    }
}
