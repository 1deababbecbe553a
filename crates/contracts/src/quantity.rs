//! How many units of what.

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::ids::Sku;

/// Units of one SKU in one order: 1 to 1,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct Quantity(u16);

impl JsonSchema for Quantity {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": 1, "maximum": 1000 })
    }
}

/// The number is not from 1 to 1,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("quantity must be an integer from 1 to {}", Quantity::MAX)]
pub struct InvalidQuantity;

impl Quantity {
    /// The most units of one SKU that one order can have.
    pub const MAX: u16 = 1_000;

    /// Checks the range.
    ///
    /// # Errors
    /// [`InvalidQuantity`].
    pub fn new(units: i64) -> Result<Self, InvalidQuantity> {
        match u16::try_from(units) {
            Ok(units) if (1..=Self::MAX).contains(&units) => Ok(Self(units)),
            _ => Err(InvalidQuantity),
        }
    }

    /// The number of units.
    #[must_use]
    pub fn get(self) -> u16 {
        self.0
    }

    /// The sum of two quantities, for two lines of one SKU.
    ///
    /// # Errors
    /// [`InvalidQuantity`] when the sum is beyond [`Quantity::MAX`].
    pub fn plus(self, other: Self) -> Result<Self, InvalidQuantity> {
        Self::new(i64::from(self.0) + i64::from(other.0))
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl TryFrom<i64> for Quantity {
    type Error = InvalidQuantity;
    fn try_from(units: i64) -> Result<Self, InvalidQuantity> {
        Self::new(units)
    }
}
impl From<Quantity> for i64 {
    fn from(quantity: Quantity) -> i64 {
        i64::from(quantity.0)
    }
}

/// One line of an order as it is asked for.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// What.
    pub sku: Sku,
    /// How many.
    pub quantity: Quantity,
}

/// Sums lines of the same SKU and sorts them by SKU: the canonical form of an order's lines.
///
/// # Errors
/// [`InvalidQuantity`] with the SKU whose sum is beyond [`Quantity::MAX`].
pub fn canonical_lines(lines: Vec<Line>) -> Result<Vec<Line>, (Sku, InvalidQuantity)> {
    let mut lines = lines;
    lines.sort_by(|a, b| a.sku.cmp(&b.sku));
    let mut out: Vec<Line> = Vec::with_capacity(lines.len());
    for line in lines {
        match out.last_mut() {
            Some(last) if last.sku == line.sku => {
                last.quantity = last
                    .quantity
                    .plus(line.quantity)
                    .map_err(|error| (line.sku, error))?;
            }
            _ => out.push(line),
        }
    }
    Ok(out)
}
