//! The order of locks (P1): every kind of transaction beside every other, each taking its rows one
//! by one. Classes are locked in one order everywhere, and rows of a class sorted; then nobody ever
//! waits in a circle.

use stateright::{Model, Property};

use crate::{
    Mutation, Rules,
    check::{Tallied, Tally},
};

/// A row that is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Row {
    /// `idempotency`, by key.
    Key(u8),
    /// `inbox`, by event.
    Inbox(u8),
    /// `orders`, by id.
    Order(u8),
    /// `payments`, by id.
    Payment(u8),
    /// `refunds`, by payment.
    Refund(u8),
    /// `buyer_units` of one buyer: the first SKU has a limit, the second has none.
    Buyer(u8),
    /// `stock`, by SKU.
    Stock(u8),
}

/// How a row is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum How {
    /// Alone.
    Alone,
    /// FOR SHARE: beside others of its kind.
    Shared,
    /// Alone, or passed over when another has it.
    SkipLocked,
}

/// A kind of transaction, with what it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Accepts a batch of two keys over both SKUs.
    AcceptBoth,
    /// Accepts one key, a twin of the batch's first.
    AcceptTwin,
    /// Accepts a key of another buyer, over both SKUs.
    AcceptOther,
    /// Settles news of both orders.
    SettleBoth,
    /// Settles news of the second order, of another partition.
    SettleOne,
    /// The shop cancels the first order.
    CancelFirst,
    /// The shop cancels the second order.
    CancelSecond,
    /// Overdue orders expire.
    Expire,
    /// Units of the second SKU are received.
    Adjust,
    /// A payment of both orders begins: the guarded read.
    BeginPayments,
    /// Refunds are asked for again.
    AskForRefunds,
}

impl Kind {
    const ALL: [Self; 11] = [
        Self::AcceptBoth,
        Self::AcceptTwin,
        Self::AcceptOther,
        Self::SettleBoth,
        Self::SettleOne,
        Self::CancelFirst,
        Self::CancelSecond,
        Self::Expire,
        Self::Adjust,
        Self::BeginPayments,
        Self::AskForRefunds,
    ];

    /// Its locks in their order.
    fn locks(self, rules: Rules) -> Vec<(Row, How)> {
        use How::{Alone, Shared, SkipLocked};
        use Row::{Buyer, Inbox, Key, Order, Payment, Refund, Stock};
        let alone = |rows: &[Row]| rows.iter().map(|row| (*row, Alone)).collect::<Vec<_>>();
        let mut locks = match self {
            Self::AcceptBoth => alone(&[Key(0), Key(1), Buyer(0), Buyer(1), Stock(0), Stock(1)]),
            Self::AcceptTwin => alone(&[Key(0), Buyer(0), Stock(0), Stock(1)]),
            Self::AcceptOther => alone(&[Key(2), Buyer(2), Stock(0), Stock(1)]),
            Self::SettleBoth => alone(&[
                Inbox(0),
                Inbox(1),
                Order(0),
                Order(1),
                Payment(0),
                Payment(1),
                Refund(0),
                Refund(1),
                Buyer(0),
                Buyer(1),
                Stock(0),
                Stock(1),
            ]),
            Self::SettleOne => alone(&[
                Inbox(1),
                Order(1),
                Payment(1),
                Refund(1),
                Buyer(1),
                Stock(0),
                Stock(1),
            ]),
            Self::CancelFirst => alone(&[Order(0), Buyer(0), Stock(0), Stock(1)]),
            Self::CancelSecond => alone(&[Order(1), Buyer(1), Stock(0), Stock(1)]),
            Self::Expire => {
                // By deadline, as the index has it; it waits for no order.
                let mut locks = vec![(Order(1), SkipLocked), (Order(0), SkipLocked)];
                locks.extend(alone(&[Buyer(0), Buyer(1), Stock(0), Stock(1)]));
                locks
            }
            Self::Adjust => alone(&[Stock(1)]),
            Self::BeginPayments => vec![
                (Order(0), Shared),
                (Order(1), Shared),
                (Payment(0), Alone),
                (Payment(1), Alone),
            ],
            Self::AskForRefunds => vec![(Refund(1), SkipLocked), (Refund(0), SkipLocked)],
        };
        if rules.breaks(Mutation::WrongSortOrder) && self == Self::SettleBoth {
            swap(&mut locks, Stock(0), Stock(1));
        }
        if rules.breaks(Mutation::UnsortedStock) && self == Self::AcceptBoth {
            swap(&mut locks, Stock(0), Stock(1));
        }
        if rules.breaks(Mutation::StockBeforeOrders) && self == Self::CancelFirst {
            swap(&mut locks, Order(0), Stock(0));
        }
        locks
    }
}

fn swap(locks: &mut [(Row, How)], one: Row, other: Row) {
    let place = |row: Row| locks.iter().position(|(found, _)| *found == row);
    if let (Some(one), Some(other)) = (place(one), place(other)) {
        locks.swap(one, other);
    }
}

/// A transaction under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Transaction {
    kind: Kind,
    /// How many of its locks it has taken or passed over.
    at: u8,
    /// Those that it passed over, as bits.
    passed: u16,
}

/// All transactions.
pub type State = Vec<Transaction>;

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// It takes its next lock.
    Lock(u8),
    /// It ends and lets go.
    End(u8),
}

/// The configuration as stateright wants it.
#[derive(Debug)]
pub struct Locks {
    /// How many transactions there are at once.
    together: usize,
    /// The locks of each kind.
    locks: Vec<Vec<(Row, How)>>,
    tally: Tally,
}

const REACHED: &[&str] = &[
    "a transaction waits",
    "three wait for one",
    "a locked order is passed over",
    "two share an order",
];

impl Locks {
    /// So many transactions at once, of every kind.
    #[must_use]
    pub fn new(together: usize, rules: Rules) -> Self {
        Self {
            together,
            locks: Kind::ALL.iter().map(|kind| kind.locks(rules)).collect(),
            tally: Tally::new(REACHED),
        }
    }

    fn locks(&self, kind: Kind) -> &[(Row, How)] {
        let place = Kind::ALL.iter().position(|one| *one == kind);
        place.map_or(&[], |place| &self.locks[place])
    }

    /// Whether a transaction has this row, and how.
    fn has(&self, one: &Transaction, row: Row) -> Option<How> {
        let taken = self.locks(one.kind).iter().take(usize::from(one.at));
        let mut taken = taken.enumerate();
        taken
            .find(|(place, (found, _))| *found == row && one.passed & (1 << place) == 0)
            .map(|(_, (_, how))| *how)
    }

    /// The transactions that have the row that this one wants next, in a way that keeps it out.
    fn in_the_way(&self, state: &State, n: usize) -> Vec<usize> {
        let one = &state[n];
        let Some((row, how)) = self.locks(one.kind).get(usize::from(one.at)) else {
            return Vec::new();
        };
        let others = (0..state.len()).filter(|other| *other != n);
        others
            .filter(|other| match self.has(&state[*other], *row) {
                None => false,
                Some(How::Shared) => *how != How::Shared,
                Some(How::Alone | How::SkipLocked) => true,
            })
            .collect()
    }

    /// Whether some wait for each other in a circle.
    fn is_stuck(&self, state: &State) -> bool {
        let waits: Vec<Vec<usize>> = (0..state.len())
            .map(|n| {
                let one = &state[n];
                let next = self.locks(one.kind).get(usize::from(one.at));
                match next {
                    Some((_, How::SkipLocked)) | None => Vec::new(),
                    Some(_) => self.in_the_way(state, n),
                }
            })
            .collect();
        let mut free: Vec<bool> = waits.iter().map(Vec::is_empty).collect();
        while let Some(n) =
            (0..state.len()).find(|n| !free[*n] && waits[*n].iter().all(|o| free[*o]))
        {
            free[n] = true;
        }
        free.contains(&false)
    }
}

fn every_choice(together: usize, from: usize, chosen: &mut Vec<Kind>, all: &mut Vec<State>) {
    if chosen.len() == together {
        let begin = |kind: &Kind| Transaction {
            kind: *kind,
            at: 0,
            passed: 0,
        };
        all.push(chosen.iter().map(begin).collect());
        return;
    }
    for place in from..Kind::ALL.len() {
        chosen.push(Kind::ALL[place]);
        every_choice(together, place, chosen, all);
        chosen.pop();
    }
}

impl Model for Locks {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let mut all = Vec::new();
        every_choice(self.together, 0, &mut Vec::new(), &mut all);
        all
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for n in 0..u8::try_from(state.len()).unwrap_or(0) {
            let one = &state[usize::from(n)];
            let locks = self.locks(one.kind);
            match locks.get(usize::from(one.at)) {
                None => steps.push(Step::End(n)),
                Some((_, how)) => {
                    let free = self.in_the_way(state, usize::from(n)).is_empty();
                    if free || *how == How::SkipLocked {
                        steps.push(Step::Lock(n));
                    } else {
                        self.tally.hit("a transaction waits");
                    }
                }
            }
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Lock(n) => {
                let n = usize::from(n);
                let holders = self.in_the_way(last, n);
                let (row, how) = self.locks(state[n].kind)[usize::from(state[n].at)];
                if !holders.is_empty() {
                    self.tally.hit("a locked order is passed over");
                    let at = state[n].at;
                    state[n].passed |= 1 << at;
                } else if how == How::Shared
                    && (0..state.len()).any(|o| o != n && self.has(&state[o], row).is_some())
                {
                    self.tally.hit("two share an order");
                }
                state[n].at += 1;
            }
            Step::End(n) => {
                let waiting = (0..state.len())
                    .filter(|other| self.in_the_way(last, *other).contains(&usize::from(n)));
                if waiting.count() >= 3.min(self.together - 1) {
                    self.tally.hit("three wait for one");
                }
                state.remove(usize::from(n));
            }
        }
        state.sort();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(
            "nobody waits in a circle",
            |model: &Self, state: &State| !model.is_stuck(state),
        )]
    }
}

impl Tallied for Locks {
    fn reached(&self) -> Vec<(&'static str, u64)> {
        self.tally.read()
    }
}
