//! The configurations: each small enough to be walked to the end.

pub mod table;

use domain::OrderStatus::{Canceled, Confirmed};

use crate::{
    Rules,
    accept::{Accept, Bounds, Sending},
    check::{Outcome, Until, walk},
    locks::Locks,
    relay::{self, Relay},
    settle::{self, Payer, Settle},
};

/// One of them.
#[derive(Debug, Clone, Copy)]
pub struct Configuration {
    /// Its name.
    pub name: &'static str,
    /// What it is about.
    pub about: &'static str,
    /// When it is walked.
    pub size: Size,
    run: fn(Rules, Until, usize) -> Outcome,
}

/// When a configuration is walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    /// By `make test` too.
    Small,
    /// By `make model`.
    Medium,
    /// When more states are asked for than the others have.
    Large,
}

impl Configuration {
    /// Walks over its states.
    #[must_use]
    pub fn run(&self, rules: Rules, until: Until, threads: usize) -> Outcome {
        (self.run)(rules, until, threads)
    }

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        CONFIGURATIONS.iter().find(|one| one.name == name)
    }
}

const fn to(process: u8, key: u32, body: u8) -> Sending {
    Sending { process, key, body }
}

fn bounds(units: i32, sendings: &[Sending]) -> Bounds {
    Bounds {
        units,
        sendings: sendings.to_vec(),
        orders_before: 0,
        losses: 0,
        roll_back: false,
        crashes: 0,
        zombies: false,
        syncs: 1,
        rebuilds: 0,
        ends: &[Confirmed, Canceled],
    }
}

/// Requests that lose replies to COMMIT.
fn unknown(units: i32, sendings: &[Sending]) -> Bounds {
    Bounds {
        zombies: true,
        ..bounds(units, sendings)
    }
}

/// Redis is wiped or rolled back while requests come.
fn loss(units: i32, sendings: &[Sending]) -> Bounds {
    Bounds {
        losses: 1,
        roll_back: true,
        rebuilds: 1,
        ends: &[Confirmed],
        ..bounds(units, sendings)
    }
}

/// Two rebuilds at once, twice.
fn rebuilds() -> Bounds {
    Bounds {
        orders_before: 1,
        losses: 2,
        rebuilds: 2,
        ends: &[Confirmed],
        ..bounds(2, &[to(0, 2, 0)])
    }
}

const TWINS: &[Sending] = &[to(0, 0, 0), to(1, 0, 0), to(1, 1, 0)];

/// All of them.
pub const CONFIGURATIONS: &[Configuration] = &[
    Configuration {
        name: "accept-twins",
        about: "one unit, two keys, a twin at the other process: replies that are lost, deadlines, syncs that are lost, late and repeated",
        size: Size::Medium,
        run: |rules, until, threads| walk(Accept::new(bounds(1, TWINS), rules), until, threads),
    },
    Configuration {
        name: "accept-unknown",
        about: "one unit, one key twice: transactions that commit when nobody waits, a process that dies",
        size: Size::Small,
        run: |rules, until, threads| {
            let bounds = Bounds {
                crashes: 1,
                ..unknown(1, &[to(0, 0, 0), to(1, 0, 0)])
            };
            walk(Accept::new(bounds, rules), until, threads)
        },
    },
    Configuration {
        name: "accept-bodies",
        about: "two units: another body under a used key, a retry, a process that dies",
        size: Size::Small,
        run: |rules, until, threads| {
            let bounds = Bounds {
                crashes: 1,
                ends: &[Canceled],
                ..bounds(2, &[to(0, 0, 0), to(1, 0, 1), to(1, 0, 0)])
            };
            walk(Accept::new(bounds, rules), until, threads)
        },
    },
    Configuration {
        name: "accept-loss",
        about: "one unit, a key and its retry: Redis is wiped or rolled back at any moment and rebuilt while requests come",
        size: Size::Small,
        run: |rules, until, threads| {
            walk(
                Accept::new(loss(1, &[to(0, 0, 0), to(1, 0, 0)]), rules),
                until,
                threads,
            )
        },
    },
    Configuration {
        name: "syncs",
        about: "two orders: two syncs under way at once, each lost, late or repeated",
        size: Size::Medium,
        run: |rules, until, threads| {
            let bounds = Bounds {
                orders_before: 2,
                syncs: 2,
                ..bounds(3, &[])
            };
            walk(Accept::new(bounds, rules), until, threads)
        },
    },
    Configuration {
        name: "rebuild",
        about: "a live order, two rebuilds at once, one request meanwhile, a loss",
        size: Size::Medium,
        run: |rules, until, threads| {
            let bounds = Bounds {
                losses: 1,
                ..rebuilds()
            };
            walk(Accept::new(bounds, rules), until, threads)
        },
    },
    Configuration {
        name: "settle-ours",
        about: "an order and our payment service: guarded read, charges with lost replies, sweep, expiry, cancel, refund, consumers that die",
        size: Size::Small,
        run: |rules, until, threads| {
            let bounds = settle::Bounds {
                payer: Payer::Ours,
                log: 2,
                faults: 2,
                inbox: true,
                cancel: true,
            };
            walk(Settle::new(bounds, rules), until, threads)
        },
    },
    Configuration {
        name: "settle-upstream",
        about: "an order and two payments of another service: right and wrong amounts, failures, news repeated and in any order",
        size: Size::Medium,
        run: |rules, until, threads| {
            let bounds = settle::Bounds {
                payer: Payer::Upstream,
                log: 4,
                faults: 1,
                inbox: true,
                cancel: true,
            };
            walk(Settle::new(bounds, rules), until, threads)
        },
    },
    Configuration {
        name: "settle-no-inbox",
        about: "the same without the inbox: every handler decides on the state that it finds, which is the second line",
        size: Size::Small,
        run: |rules, until, threads| {
            let bounds = settle::Bounds {
                payer: Payer::Upstream,
                log: 3,
                faults: 1,
                inbox: false,
                cancel: true,
            };
            walk(Settle::new(bounds, rules), until, threads)
        },
    },
    Configuration {
        name: "relay",
        about: "three writers that commit late or roll back, a relay that dies, one that is stopped and goes on",
        size: Size::Medium,
        run: |rules, until, threads| {
            let bounds = relay::Bounds {
                writers: 3,
                deaths: 1,
                stops: 1,
                log: 5,
            };
            walk(Relay::new(bounds, rules), until, threads)
        },
    },
    Configuration {
        name: "locks",
        about: "every choice of three of eleven kinds of transactions, lock by lock",
        size: Size::Small,
        run: |rules, until, threads| walk(Locks::new(3, rules), until, threads),
    },
    Configuration {
        name: "accept-twins-large",
        about: "accept-twins with transactions that nobody waits for",
        size: Size::Large,
        run: |rules, until, threads| walk(Accept::new(unknown(1, TWINS), rules), until, threads),
    },
    Configuration {
        name: "accept-loss-large",
        about: "two units, a live order, a key and its retry: a loss of Redis at any moment",
        size: Size::Large,
        run: |rules, until, threads| {
            let bounds = Bounds {
                orders_before: 1,
                ..loss(2, &[to(0, 1, 0), to(1, 1, 0)])
            };
            walk(Accept::new(bounds, rules), until, threads)
        },
    },
    Configuration {
        name: "syncs-large",
        about: "an order and a request: two syncs under way at once",
        size: Size::Large,
        run: |rules, until, threads| {
            let bounds = Bounds {
                orders_before: 1,
                syncs: 2,
                ..bounds(3, &[to(0, 2, 0)])
            };
            walk(Accept::new(bounds, rules), until, threads)
        },
    },
    Configuration {
        name: "rebuild-large",
        about: "rebuild, with two losses",
        size: Size::Large,
        run: |rules, until, threads| walk(Accept::new(rebuilds(), rules), until, threads),
    },
    Configuration {
        name: "locks-large",
        about: "every choice of four of eleven kinds of transactions",
        size: Size::Large,
        run: |rules, until, threads| walk(Locks::new(4, rules), until, threads),
    },
];
