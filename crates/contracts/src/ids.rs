//! Identifiers as types that cannot hold a malformed value.

use std::{borrow::Cow, fmt, str::FromStr, sync::Arc};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// Why a text is not an identifier of the wanted kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} must be 1 to {max} characters out of {alphabet}")]
pub struct InvalidId {
    /// The kind of identifier, as named in the API.
    pub kind: &'static str,
    /// The greatest length in characters.
    pub max: usize,
    /// The characters that are allowed, for people.
    pub alphabet: &'static str,
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $max:literal, $alphabet:literal, $pattern:literal, $allowed:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "pattern": $pattern })
            }
        }

        impl $name {
            /// Checks length and alphabet.
            ///
            /// # Errors
            /// [`InvalidId`] with the rule that was broken.
            pub fn parse(text: &str) -> Result<Self, InvalidId> {
                let allowed: fn(u8) -> bool = $allowed;
                if text.is_empty() || text.len() > $max || !text.bytes().all(allowed) {
                    return Err(InvalidId { kind: $kind, max: $max, alphabet: $alphabet });
                }
                Ok(Self(text.into()))
            }

            /// The text itself.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Self::parse(text)
            }
        }
        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                Self::parse(&text)
            }
        }
        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0.as_ref().to_owned()
            }
        }
    };
}

text_id!(
    /// A stock keeping unit.
    Sku, "sku", 32, "A-Z 0-9 _ -", "^[A-Z0-9_-]{1,32}$",
    |b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_' || b == b'-'
);
text_id!(
    /// A buyer, named by the shop that sends the order; unique within that shop only.
    CustomerId, "customer_id", 64, "A-Z a-z 0-9 _ . : @ + -", "^[A-Za-z0-9_.:@+-]{1,64}$",
    |b| b.is_ascii_alphanumeric() || b"_.:@+-".contains(&b)
);
text_id!(
    /// The upstream service that places orders for its customers; comes from its key.
    Shop, "shop", 32, "a-z 0-9 -", "^[a-z0-9-]{1,32}$",
    |b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'
);
text_id!(
    /// A payment, named by whoever charges: our payment service or an upstream one.
    PaymentId, "payment_id", 64, "A-Z a-z 0-9 _ . : -", "^[A-Za-z0-9_.:-]{1,64}$",
    |b| b.is_ascii_alphanumeric() || b"_.:-".contains(&b)
);
text_id!(
    /// The key under which a refund is executed at most once; one per payment.
    RefundKey, "refund_key", 80, "A-Z a-z 0-9 _ . : -", "^[A-Za-z0-9_.:-]{1,80}$",
    |b| b.is_ascii_alphanumeric() || b"_.:-".contains(&b)
);
text_id!(
    /// How the buyer pays, for example `card`; passed to the gateway as it is.
    PaymentMethod, "payment_method", 32, "a-z 0-9 _ -", "^[a-z0-9_-]{1,32}$",
    |b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-'
);

impl RefundKey {
    /// The key of the one refund that a payment can have.
    #[must_use]
    pub fn of(payment: &PaymentId) -> Self {
        Self(format!("refund-{payment}").into())
    }
}

/// An order. Time-ordered (UUID version 7), so that its index grows at one end.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct OrderId(pub Uuid);

impl OrderId {
    /// A new id.
    #[must_use]
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }
}

impl fmt::Display for OrderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for OrderId {
    type Err = uuid::Error;
    fn from_str(text: &str) -> Result<Self, uuid::Error> {
        Uuid::try_parse(text).map(Self)
    }
}

/// A hold at the gate, and the primary key of an idempotency row: a hash of who asks, where and
/// with which key, so that each retry of a request is the same hold.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct HoldId(pub Uuid);

impl HoldId {
    /// Derives the id from the scope of the key (`shop`, or the `ce_source` of a request by
    /// Kafka), the route and the key. Parts are length-prefixed, so that no two scopes collide.
    #[must_use]
    pub fn derive(scope: &str, route: &str, key: &str) -> Self {
        let mut hash = Sha256::new();
        for part in [scope, route, key] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        let digest = hash.finalize();
        let mut bytes = [0_u8; 16];
        bytes.copy_from_slice(&digest[..16]);
        Self(uuid::Builder::from_custom_bytes(bytes).into_uuid())
    }
}

impl fmt::Display for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for HoldId {
    type Err = uuid::Error;
    fn from_str(text: &str) -> Result<Self, uuid::Error> {
        Uuid::try_parse(text).map(Self)
    }
}

/// A new time-ordered id for an event, an adjustment or a payment.
#[must_use]
pub fn generate() -> Uuid {
    Uuid::now_v7()
}
