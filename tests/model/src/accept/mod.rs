//! The accept and the gate (P1, P2, P4, P5, P7, P10, P11): requests of few keys at two processes, a
//! gate that forgets, is rolled back and rebuilt, replies and syncs that are lost, come late or
//! twice, transactions that commit when nobody waits any more, and the sweep.
//!
//! Time is not counted: what the protocol orders by time is ordered by conditions. A deadline may
//! pass at any moment; a hold without an order is due once every attempt that has touched it is past
//! its deadline (P5: 5 s against 2 s), and no transaction of it is open any more (the server ends
//! one by its own time-outs before that).

mod follow;
mod model;
mod properties;
mod steps;

use domain::OrderStatus;

use crate::{
    Rules,
    check::{Tallied, Tally},
    protocol::{
        Hold, Key, OrderNo,
        gate::{Epoch, Gate, Register, Row, Word},
        pg::{Pg, Request, Sku, View},
    },
};

/// One sending of a request: a key may be sent several times, to either process.
#[derive(Debug, Clone, Copy)]
pub struct Sending {
    /// Which process gets it.
    pub process: u8,
    /// Its key, and its buyer.
    pub key: Key,
    /// Its body.
    pub body: u8,
}

/// What may happen, and how often.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Units of the only SKU.
    pub units: i32,
    /// Requests.
    pub sendings: Vec<Sending>,
    /// Orders that were accepted before: keys from 10 on.
    pub orders_before: u32,
    /// How often Redis may lose or forget.
    pub losses: u8,
    /// Whether it may come back with an old state.
    pub roll_back: bool,
    /// How often a process may die.
    pub crashes: u8,
    /// Whether a transaction may end when nobody waits for it.
    pub zombies: bool,
    /// Syncs that may be under way at once.
    pub syncs: usize,
    /// Rebuilds that may be under way at once.
    pub rebuilds: usize,
    /// How orders may end.
    pub ends: &'static [OrderStatus],
}

/// The configuration as stateright wants it.
#[derive(Debug)]
pub struct Accept {
    pub(crate) bounds: Bounds,
    pub(crate) rules: Rules,
    pub(crate) tally: Tally,
}

/// How the gate has let a request through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Admission {
    /// It holds units.
    Held,
    /// It held them before.
    Known,
    /// It was not asked, or did not answer.
    Direct,
}

/// What a client is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Answer {
    /// 201.
    Created,
    /// 201, as before.
    Replayed,
    /// 422.
    KeyReused,
    /// 410 and its like: nothing was taken.
    Refused,
    /// 409.
    InFlight,
    /// 503: nothing was taken by this attempt.
    Unavailable,
    /// 503 `outcome: unknown`.
    Unknown,
}

/// Where an attempt is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Not sent.
    Idle,
    /// At its process.
    Received,
    /// The gate says no.
    Refused(Word),
    /// To be accepted.
    Admitted,
    /// A run of the accept has no known outcome.
    Unknown,
    /// Answered.
    Done(Answer),
    /// Its process died.
    Dead,
}

/// One sending under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// Where it is.
    pub phase: Phase,
    /// How the gate has let it through.
    pub admission: Admission,
    /// Whether its `reserve` has touched the hold, answered or not.
    pub touched: bool,
    /// Whether its deadline has passed.
    pub late: bool,
    /// Whether the key was refused to another attempt meanwhile, and no unit has become free since.
    pub overtaken: bool,
}

/// What is to be told to the gate of a hold, read a while ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sync {
    /// Which.
    pub key: Key,
    /// What PostgreSQL said.
    pub view: View,
    /// Whether there was no order.
    pub orphan: bool,
    /// What PostgreSQL said of the SKU, then.
    pub register: Register,
}

/// A rebuild under way (P10).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "fields are named after what they are")]
pub enum Rebuild {
    /// It has seen this epoch, closed or none.
    Looked { replaces: Option<u32> },
    /// It has begun an epoch.
    Begun { epoch: u32 },
    /// The registers are in.
    Registers { epoch: u32 },
    /// Live orders were read.
    Read { epoch: u32, live: Vec<Key> },
    /// They are in.
    Kept { epoch: u32 },
}

/// A promise that a step has broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Broken {
    /// A key with an order was refused.
    RefusedAccepted,
    /// A request was accepted after its deadline.
    AcceptedLate,
    /// A refusal was overtaken though the gate had lost nothing.
    RefusedThenAccepted,
    /// A replay answered another body.
    ReplayedOther,
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// PostgreSQL.
    pub pg: Pg,
    /// Redis.
    pub gate: Gate,
    /// What Redis has on its disk.
    pub image: Option<Box<Gate>>,
    /// One per sending.
    pub attempts: Vec<Attempt>,
    /// The attempt whose transaction is open with nobody waiting. It holds the stock row's lock.
    pub zombie: Option<u8>,
    /// Keys whose holds are to be synced, as bits.
    pub queued: u16,
    /// Syncs under way.
    pub syncs: Vec<Sync>,
    /// Rebuilds under way.
    pub rebuilds: Vec<Rebuild>,
    /// Epochs that were begun.
    pub epochs: u32,
    /// What has happened of the bounded.
    pub losses: u8,
    /// What has happened of the bounded.
    pub crashes: u8,
    /// What each process remembers alone: nothing, by the protocol.
    pub sold_out: [bool; 2],
    /// Whether nothing was lost that only the nets can find.
    pub clean: bool,
    /// The first promise that a step has broken.
    pub broken: Option<Broken>,
}

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// A client sends.
    Send(u8),
    /// The gate is asked and answers.
    Reserve(u8),
    /// The gate is asked, and its answer is lost.
    ReserveUnheard(u8),
    /// The gate can't be asked.
    GoDirect(u8),
    /// The key of a refusal is looked up.
    LookUp(u8),
    /// The deadline passes.
    Deadline(u8),
    /// The accept runs and answers.
    Accept(u8),
    /// It runs, and its reply is lost.
    AcceptUnheard(u8),
    /// It does not run, and nobody knows.
    AcceptFails(u8),
    /// It has claimed its key and goes on alone.
    AcceptHangs(u8),
    /// The process gives up.
    GiveUp(u8),
    /// The transaction that was left alone commits.
    ZombieCommits,
    /// It is rolled back.
    ZombieAborts,
    /// A process dies.
    Crash(u8),
    /// An order ends.
    End(OrderNo, OrderStatus),
    /// A queued sync reads PostgreSQL.
    SyncReads(Key),
    /// The sweep reads what a due hold stands for.
    SweepReads(Key),
    /// A sync is applied.
    SyncApplies(u8),
    /// It is applied, and will be again.
    SyncRepeats(u8),
    /// It is lost.
    SyncIsLost(u8),
    /// Redis writes its disk.
    Save,
    /// Redis loses everything.
    Wipe,
    /// Redis comes back with what its disk has.
    RollBack,
    /// A hold's key ends by itself (only by a broken rule).
    HoldVanishes(Key),
    /// A rebuild looks at the epoch.
    RebuildLooks,
    /// It goes one step on.
    RebuildSteps(u8),
    /// It dies.
    RebuildDies(u8),
}

/// What must be met at least once, or the walk proves little.
pub const REACHED: &[&str] = &[
    "an order is accepted",
    "a twin is answered with the first order",
    "PostgreSQL refuses what the gate let through",
    "a look-up turns a refusal into a replay",
    "a lost COMMIT is found committed",
    "a lost COMMIT is run again and accepts",
    "an attempt past its deadline takes nothing",
    "the gate refuses and nothing stands behind it",
    "an order is accepted without the gate",
    "a transaction commits that nobody waits for",
    "the sweep gives an orphan's units back",
    "a sync comes twice",
    "a sync is older than the gate",
    "the gate is rebuilt while a request is under way",
    "a rebuild is overtaken",
    "a key is refused and another attempt of it accepted, after a loss",
    "a unit becomes free between a refusal and its twin's accept",
    "the nets have to mend the gate",
    "another body is answered 422",
    "another body meets a request in flight",
];

impl Accept {
    /// A configuration with these bounds.
    #[must_use]
    pub fn new(bounds: Bounds, rules: Rules) -> Self {
        Self {
            bounds,
            rules,
            tally: Tally::new(REACHED),
        }
    }

    fn hold(sending: &Sending) -> Hold {
        Hold {
            buyer: u8::try_from(sending.key).unwrap_or(0) % 3,
            lines: [1 + sending.body, 0, 0],
        }
    }

    fn request(&self, number: u8, late: bool) -> Request {
        let sending = &self.bounds.sendings[usize::from(number)];
        Request {
            key: sending.key,
            body: sending.body,
            hold: Self::hold(sending),
            order: u32::from(number),
            late,
        }
    }

    fn first(&self) -> State {
        let bounds = &self.bounds;
        let mut pg = Pg::default();
        pg.skus[0] = Some(Sku {
            on_hand: bounds.units,
            per_customer: Some(2),
            ..Sku::default()
        });
        let mut gate = Gate {
            epoch: Some(Epoch { id: 0, open: true }),
            ..Gate::default()
        };
        gate.rows[0] = pg.skus[0].map(|sku| Row {
            register: sku.register(),
            held: 0,
        });
        for number in 0..bounds.orders_before {
            let (key, buyer) = (10 + number, u8::try_from(number).unwrap_or(0));
            let hold = Hold {
                buyer,
                lines: [1, 0, 0],
            };
            let request = Request {
                key,
                body: 0,
                hold,
                order: key,
                late: false,
            };
            pg.accept(0, &[request], Rules::default());
            let keep = crate::protocol::gate::GateOp::Keep { key, hold };
            crate::protocol::gate::apply(&mut gate, &keep, Rules::default());
        }
        let attempt = Attempt {
            phase: Phase::Idle,
            admission: Admission::Direct,
            touched: false,
            late: false,
            overtaken: false,
        };
        State {
            pg,
            gate,
            image: None,
            attempts: vec![attempt; bounds.sendings.len()],
            zombie: None,
            queued: 0,
            syncs: Vec::new(),
            rebuilds: Vec::new(),
            epochs: 1,
            losses: 0,
            crashes: 0,
            sold_out: [false; 2],
            clean: true,
            broken: None,
        }
    }
}

impl Tallied for Accept {
    fn reached(&self) -> Vec<(&'static str, u64)> {
        self.tally.read()
    }
}
