//! What PostgreSQL holds and decides (P1, P5): stock, keys, orders, and what becomes of them. Each
//! function is one transaction.

use std::collections::BTreeMap;

use domain::{OrderStatus, Transition, Trigger, order};

use super::{
    BUYERS, Hold, Key, OrderNo, PaymentNo, Rules, SKUS,
    gate::Register,
    money::{Payment, PaymentState, Refund},
};
use crate::Mutation;

/// A SKU's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Sku {
    /// Units there are.
    pub on_hand: i32,
    /// Of them, reserved.
    pub held: i32,
    /// Of them, sold.
    pub sold: i32,
    /// Rises with every commit, release and adjustment, not with the accept.
    pub version: u32,
    /// The sale is closed before.
    pub opens: Option<i32>,
    /// The sale is closed from then on.
    pub closes: Option<i32>,
    /// The most units of one buyer.
    pub per_customer: Option<i32>,
}

impl Sku {
    /// What the gate is told.
    #[must_use]
    pub fn register(&self) -> Register {
        Register {
            limit: self.on_hand - self.sold,
            version: self.version,
            opens: self.opens,
            closes: self.closes,
            per_customer: self.per_customer,
        }
    }
}

/// What a key stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyRow {
    /// Which body it came with.
    pub body: u8,
    /// Its order.
    pub order: OrderNo,
}

/// Where an order is on PostgreSQL's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Moment {
    /// There is time to pay.
    Early,
    /// Less is left than a charge may take (`min_left`).
    Tight,
    /// Past its deadline, within the grace of a payment in flight.
    Due,
    /// Past the grace.
    PastGrace,
}

impl Moment {
    /// The next one.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        match self {
            Self::Early => Some(Self::Tight),
            Self::Tight => Some(Self::Due),
            Self::Due => Some(Self::PastGrace),
            Self::PastGrace => None,
        }
    }
}

/// An order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Order {
    /// Its key.
    pub key: Key,
    /// Who has ordered what.
    pub hold: Hold,
    /// Where it stands.
    pub status: OrderStatus,
    /// 1 when it was accepted.
    pub version: u8,
    /// Where its deadline is.
    pub moment: Moment,
    /// The payment that confirmed it.
    pub applied: Option<PaymentNo>,
}

/// The tables.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Pg {
    /// Per SKU.
    pub skus: [Option<Sku>; SKUS],
    /// Per SKU and buyer, of SKUs with a limit per customer.
    pub bought: [[i32; BUYERS]; SKUS],
    /// Used keys.
    pub keys: BTreeMap<Key, KeyRow>,
    /// All orders.
    pub orders: BTreeMap<OrderNo, Order>,
    /// All payments.
    pub payments: BTreeMap<PaymentNo, Payment>,
    /// One per payment at most.
    pub refunds: BTreeMap<PaymentNo, Refund>,
}

/// One request of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Request {
    /// Its key.
    pub key: Key,
    /// Its body: another one under the same key is refused.
    pub body: u8,
    /// Who wants what.
    pub hold: Hold,
    /// The number that its order gets.
    pub order: OrderNo,
    /// Whether its deadline has passed.
    pub late: bool,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "documented at domain::Refusal")]
pub enum Refusal {
    UnknownSku,
    NotOpen,
    Over,
    Limit,
    SoldOut,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// Accepted now.
    Accepted(OrderNo),
    /// Accepted before.
    Before(OrderNo),
    /// Its key was used with another body.
    KeyReused,
    /// A rule says no; which, and the SKU that it names.
    Refused(Refusal, usize),
    /// Its deadline has passed.
    Late,
}

/// What became of a request to cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "documented at the use case")]
pub enum Canceled {
    Done,
    AlreadySettled,
    NotFound,
}

/// What the gate is to do with a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum View {
    /// Its order waits: `keep`.
    Live,
    /// Its order is confirmed: `commit`.
    Committed,
    /// Its order has ended otherwise, or there is none: `release`.
    Released,
}

impl Pg {
    /// The transaction of the accept (P1): first come, first served, all lines or none. Keys are
    /// claimed before anything is decided, and those that are there already are read at the end.
    pub fn accept(&mut self, now: i32, batch: &[Request], rules: Rules) -> Vec<Verdict> {
        let claims = |request: &Request, keys: &BTreeMap<Key, KeyRow>| {
            let known = keys.contains_key(&request.key) && !rules.breaks(Mutation::NoPrimaryKey);
            !known && (!request.late || rules.breaks(Mutation::NoDeadlineInAccept))
        };
        let mine: Vec<bool> = batch.iter().map(|one| claims(one, &self.keys)).collect();
        let mut verdicts = vec![Verdict::Late; batch.len()];
        for (place, request) in batch.iter().enumerate().filter(|(place, _)| mine[*place]) {
            verdicts[place] = match self.refusal(now, &request.hold, rules) {
                Some((why, sku)) => {
                    if rules.breaks(Mutation::RefusalStored) {
                        self.insert_key(request);
                    }
                    Verdict::Refused(why, sku)
                }
                None => {
                    self.take(request);
                    Verdict::Accepted(request.order)
                }
            };
        }
        for (place, request) in batch.iter().enumerate().filter(|(place, _)| !mine[*place]) {
            if let Some(verdict) = self.look_up(request.key, request.body, rules) {
                verdicts[place] = verdict;
            }
        }
        verdicts
    }

    /// What a key stands for; None when it stands for nothing.
    #[must_use]
    pub fn look_up(&self, key: Key, body: u8, rules: Rules) -> Option<Verdict> {
        let row = self.keys.get(&key)?;
        if row.body != body && !rules.breaks(Mutation::ReplayIgnoresFingerprint) {
            return Some(Verdict::KeyReused);
        }
        Some(Verdict::Before(row.order))
    }

    fn refusal(&self, now: i32, hold: &Hold, rules: Rules) -> Option<(Refusal, usize)> {
        if rules.breaks(Mutation::RedisDecides) {
            return None;
        }
        let mut lines = Vec::with_capacity(SKUS);
        for (sku, units) in hold.lines() {
            let Some(row) = self.skus[sku] else {
                return Some((Refusal::UnknownSku, sku));
            };
            lines.push((sku, units, row, self.bought[sku][usize::from(hold.buyer)]));
        }
        let first = |why: Refusal, broken: &dyn Fn(i32, &Sku, i32) -> bool| {
            let mut lines = lines.iter();
            lines
                .find(|(_, units, row, bought)| broken(*units, row, *bought))
                .map(|(sku, ..)| (why, *sku))
        };
        first(Refusal::NotOpen, &|_, row, _| {
            row.opens.is_some_and(|opens| now < opens)
        })
        .or_else(|| {
            first(Refusal::Over, &|_, row, _| {
                row.closes.is_some_and(|closes| now >= closes)
            })
        })
        .or_else(|| {
            first(Refusal::Limit, &|units, row, bought| {
                row.per_customer.is_some_and(|most| bought + units > most)
            })
        })
        .or_else(|| {
            first(Refusal::SoldOut, &|units, row, _| {
                row.on_hand - row.held - row.sold < units
            })
        })
    }

    fn insert_key(&mut self, request: &Request) {
        let row = KeyRow {
            body: request.body,
            order: request.order,
        };
        self.keys.insert(request.key, row);
    }

    fn take(&mut self, request: &Request) {
        for (sku, units) in request.hold.lines() {
            if let Some(row) = &mut self.skus[sku] {
                row.held += units;
                if row.per_customer.is_some() {
                    self.bought[sku][usize::from(request.hold.buyer)] += units;
                }
            }
        }
        self.insert_key(request);
        let order = Order {
            key: request.key,
            hold: request.hold,
            status: OrderStatus::Reserved,
            version: 1,
            moment: Moment::Early,
            applied: None,
        };
        self.orders.insert(request.order, order);
    }

    /// Ends orders that wait, in one transaction: units are sold or freed, and each SKU's version
    /// rises once.
    pub fn end(&mut self, endings: &[(OrderNo, OrderStatus)], rules: Rules) {
        let mut touched = [false; SKUS];
        for (number, to) in endings {
            let Some(order) = self.orders.get_mut(number) else {
                continue;
            };
            order.status = *to;
            order.version += 1;
            let (hold, sold) = (order.hold, *to == OrderStatus::Confirmed);
            for (sku, units) in hold.lines() {
                touched[sku] = true;
                let Some(row) = &mut self.skus[sku] else {
                    continue;
                };
                row.held -= units;
                if sold {
                    row.sold += units;
                } else if row.per_customer.is_some() && !rules.breaks(Mutation::BuyerKeepsUnits) {
                    self.bought[sku][usize::from(hold.buyer)] -= units;
                }
            }
        }
        for (sku, _) in touched.iter().enumerate().filter(|(_, touched)| **touched) {
            if let Some(row) = &mut self.skus[sku] {
                row.version += 1;
            }
        }
    }

    /// The shop cancels.
    pub fn cancel(&mut self, number: OrderNo, rules: Rules) -> Canceled {
        let Some(found) = self.orders.get(&number) else {
            return Canceled::NotFound;
        };
        match order::apply(found.status, Trigger::CancelRequested) {
            Transition::To(to) => {
                self.end(&[(number, to)], rules);
                Canceled::Done
            }
            Transition::AlreadyThere => Canceled::Done,
            Transition::Settled => Canceled::AlreadySettled,
        }
    }

    /// Orders past their deadline that no payment in flight protects (P5).
    #[must_use]
    pub fn overdue(&self) -> Vec<OrderNo> {
        let orders = self.orders.iter();
        orders
            .filter(|(number, order)| {
                order.status == OrderStatus::Reserved
                    && order.moment >= Moment::Due
                    && (order.moment == Moment::PastGrace || !self.is_paying(**number))
            })
            .map(|(number, _)| *number)
            .collect()
    }

    /// Whether a payment of the order is in flight, or its news.
    #[must_use]
    pub fn is_paying(&self, order: OrderNo) -> bool {
        self.payments.iter().any(|(number, payment)| {
            payment.order == order
                && match payment.state {
                    PaymentState::Pending => true,
                    // One that settlement has flagged is not on its way any more.
                    PaymentState::Completed => {
                        !payment.applied
                            && payment.flagged.is_none()
                            && !self.refunds.contains_key(number)
                    }
                    PaymentState::Failed => false,
                }
        })
    }

    /// Overdue orders expire; which did.
    pub fn expire(&mut self, rules: Rules) -> Vec<OrderNo> {
        let overdue = self.overdue();
        let endings: Vec<_> = overdue
            .iter()
            .map(|number| (*number, OrderStatus::Expired))
            .collect();
        self.end(&endings, rules);
        overdue
    }

    /// Units are received or written off; `false` when fewer would remain than are held and sold.
    pub fn adjust(&mut self, sku: usize, delta: i32) -> bool {
        let Some(row) = &mut self.skus[sku] else {
            return false;
        };
        if row.on_hand + delta < row.held + row.sold {
            return false;
        }
        row.on_hand += delta;
        row.version += 1;
        true
    }

    /// The order of a key.
    #[must_use]
    pub fn order_of(&self, key: Key) -> Option<(OrderNo, &Order)> {
        let row = self.keys.get(&key)?;
        self.orders.get(&row.order).map(|order| (row.order, order))
    }

    /// What the gate is to do with the hold of a key.
    #[must_use]
    pub fn view(&self, key: Key) -> View {
        match self.order_of(key).map(|(_, order)| order.status) {
            Some(OrderStatus::Reserved) => View::Live,
            Some(OrderStatus::Confirmed) => View::Committed,
            Some(OrderStatus::Canceled | OrderStatus::Expired) | None => View::Released,
        }
    }

    /// Whether stock and buyers' units are what the orders say, and nothing is oversold.
    #[must_use]
    pub fn counts_are_right(&self) -> bool {
        (0..SKUS).all(|sku| {
            let Some(row) = self.skus[sku] else {
                return true;
            };
            let (mut held, mut sold, mut bought) = (0, 0, [0; BUYERS]);
            for order in self.orders.values() {
                let units = i32::from(order.hold.lines[sku]);
                match order.status {
                    OrderStatus::Reserved => held += units,
                    OrderStatus::Confirmed => sold += units,
                    OrderStatus::Canceled | OrderStatus::Expired => continue,
                }
                bought[usize::from(order.hold.buyer)] += units;
            }
            let limited = row.per_customer.is_some();
            row.held == held && row.sold == sold && (!limited || self.bought[sku] == bought)
        })
    }

    /// Whether more is held and sold than there is.
    #[must_use]
    pub fn oversold(&self) -> bool {
        let rows = self.skus.iter().flatten();
        rows.into_iter()
            .any(|row| row.held < 0 || row.sold < 0 || row.held + row.sold > row.on_hand)
    }
}
