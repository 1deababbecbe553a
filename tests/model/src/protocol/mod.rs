//! What the protocol does, as plain functions over plain states. The model checker walks them, and
//! the refinement compares them with the Lua scripts and with PostgreSQL.

mod charge;
pub mod gate;
pub mod money;
pub mod pg;

use crate::Mutation;

/// SKUs of a world.
pub const SKUS: usize = 3;
/// Buyers of a world.
pub const BUYERS: usize = 3;

/// The number of a request's key, and so of its hold.
pub type Key = u32;
/// The number of an order: the attempt that made it.
pub type OrderNo = u32;
/// The number of a payment.
pub type PaymentNo = u32;
/// Units per SKU; 0 where an order has no line.
pub type Lines = [u8; SKUS];

/// Who wants what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hold {
    /// Which buyer.
    pub buyer: u8,
    /// What.
    pub lines: Lines,
}

impl Hold {
    /// The SKUs of its lines, with units.
    pub fn lines(&self) -> impl Iterator<Item = (usize, i32)> + '_ {
        let lines = self.lines.iter().enumerate();
        lines
            .filter(|(_, units)| **units > 0)
            .map(|(sku, units)| (sku, i32::from(*units)))
    }

    /// Units of all lines.
    #[must_use]
    pub fn units(&self) -> i32 {
        self.lines().map(|(_, units)| units).sum()
    }
}

/// The rules that hold: those of the protocol, but for one that was broken on purpose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rules {
    /// The rule that is broken.
    pub broken: Option<Mutation>,
}

impl Rules {
    /// Whether this rule is broken.
    #[must_use]
    pub fn breaks(self, mutation: Mutation) -> bool {
        self.broken == Some(mutation)
    }
}
