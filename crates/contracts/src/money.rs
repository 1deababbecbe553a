//! Money in minor units. Never a float.

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::quantity::Quantity;

/// An ISO 4217 code: three upper-case letters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Currency([u8; 3]);

impl JsonSchema for Currency {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Currency".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[A-Z]{3}$" })
    }
}

/// Why a value is not an amount of money.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMoney {
    /// Not three upper-case letters.
    #[error("currency must be three upper-case letters")]
    Currency,
    /// Negative, or beyond what every JSON reader keeps exactly.
    #[error("amount_minor must be an integer from 0 to 9007199254740991")]
    Amount,
}

impl Currency {
    /// Checks the three letters.
    ///
    /// # Errors
    /// [`InvalidMoney::Currency`].
    pub fn parse(text: &str) -> Result<Self, InvalidMoney> {
        match <[u8; 3]>::try_from(text.as_bytes()) {
            Ok(code) if code.iter().all(u8::is_ascii_uppercase) => Ok(Self(code)),
            _ => Err(InvalidMoney::Currency),
        }
    }

    /// The three letters.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("XXX")
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
impl fmt::Debug for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
impl TryFrom<String> for Currency {
    type Error = InvalidMoney;
    fn try_from(text: String) -> Result<Self, InvalidMoney> {
        Self::parse(&text)
    }
}
impl From<Currency> for String {
    fn from(currency: Currency) -> String {
        currency.as_str().to_owned()
    }
}

/// An amount from 0 to 2^53 - 1 minor units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "RawMoney")]
pub struct Money {
    /// The amount in the currency's minor unit (cents; whole won).
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_i64))]
    pub amount_minor: i64,
    /// The currency.
    pub currency: Currency,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename = "Money")]
struct RawMoney {
    /// The amount in the currency's minor unit (cents; whole won).
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_i64))]
    amount_minor: i64,
    /// ISO 4217.
    currency: Currency,
}

impl TryFrom<RawMoney> for Money {
    type Error = InvalidMoney;
    fn try_from(raw: RawMoney) -> Result<Self, InvalidMoney> {
        Self::new(raw.amount_minor, raw.currency)
    }
}

impl Money {
    /// The greatest amount: what a JSON reader that knows only doubles still keeps exactly.
    pub const MAX: i64 = 9_007_199_254_740_991;

    /// Checks the range.
    ///
    /// # Errors
    /// [`InvalidMoney::Amount`].
    pub fn new(amount_minor: i64, currency: Currency) -> Result<Self, InvalidMoney> {
        if (0..=Self::MAX).contains(&amount_minor) {
            Ok(Self {
                amount_minor,
                currency,
            })
        } else {
            Err(InvalidMoney::Amount)
        }
    }

    /// The price of several units; `None` when it would leave the range.
    #[must_use]
    pub fn times(self, quantity: Quantity) -> Option<Self> {
        let amount = self.amount_minor.checked_mul(i64::from(quantity.get()))?;
        Self::new(amount, self.currency).ok()
    }

    /// The sum of two amounts; `None` when currencies differ or it would leave the range.
    #[must_use]
    pub fn plus(self, other: Self) -> Option<Self> {
        if self.currency != other.currency {
            return None;
        }
        let amount = self.amount_minor.checked_add(other.amount_minor)?;
        Self::new(amount, self.currency).ok()
    }
}
