//! Orders, the truth about who has what. Their rows are written by the accept ([`insert_accepted`])
//! and by the one shared piece of settle, cancel and expiry ([`transition`]).

mod ended;
mod insert;
mod read;
mod renew;

use contracts::{
    HoldId, Money, OrderId, PaymentMethod, Timestamp,
    events::{OrderEnded, PricedLine},
};
use domain::{Buyer, Hold, HoldState, OrderStatus};

pub use ended::{Ending, Transitioned, transition};
pub use insert::{NewOrder, insert_accepted};
pub use read::{Page, find_ended, find_many, get, list, lock};
pub use renew::renew;

/// An order with its lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Its id.
    pub id: OrderId,
    /// The hold that became it.
    pub hold_id: HoldId,
    /// The shop and its customer.
    pub buyer: Buyer,
    /// Where it stands.
    pub status: OrderStatus,
    /// 1 plus its transitions.
    pub version: i64,
    /// What it costs.
    pub total: Money,
    /// How the buyer pays.
    pub payment_method: PaymentMethod,
    /// Its deadline.
    pub reserved_until: Timestamp,
    /// The deadline that the first answer named, when it has moved since.
    pub first_until: Option<Timestamp>,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Why it ended.
    pub end_reason: Option<String>,
    /// What it is for, sorted by SKU.
    pub lines: Vec<PricedLine>,
}

impl Order {
    /// The order as the first answer to its request showed it, for replays (P11): with the deadline
    /// of then, also when an outage of ours or a rule of holds has moved it since.
    #[must_use]
    pub fn as_of_version_1(&self) -> Self {
        Self {
            status: OrderStatus::Reserved,
            version: 1,
            reserved_until: self.first_until.unwrap_or(self.reserved_until),
            ended_at: None,
            end_reason: None,
            ..self.clone()
        }
    }

    /// Its hold at the gate, with the lines of all shards.
    #[must_use]
    pub fn hold(&self) -> Hold {
        Hold {
            hold_id: self.hold_id,
            buyer: self.buyer.clone(),
            lines: self
                .lines
                .iter()
                .map(|line| contracts::Line {
                    sku: line.sku.clone(),
                    quantity: line.quantity,
                })
                .collect(),
        }
    }

    /// What is to become of its hold.
    #[must_use]
    pub fn hold_state(&self) -> HoldState {
        crate::holds::state_of(self.status)
    }

    fn ended(&self, reason: &str) -> OrderEnded {
        OrderEnded {
            order_id: self.id,
            customer_id: self.buyer.customer.clone(),
            version: self.version,
            lines: self.lines.clone(),
            reason: reason.to_owned(),
        }
    }
}
