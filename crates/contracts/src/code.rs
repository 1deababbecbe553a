//! The stable slugs of refusals and errors, the same in HTTP problems and in `ORDER_REJECTED`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $slug:literal, retryable: $retryable:literal;)*) => {
        /// A stable slug. Which HTTP status it has is known to the HTTP edge alone.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum Code {
            $($(#[$doc])* #[serde(rename = $slug)] $variant,)*
        }
        impl Code {
            /// All of them, in the order of their declaration.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The slug.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $slug),* }
            }

            /// Whether the same request may succeed later.
            #[must_use]
            pub fn retryable(self) -> bool {
                match self { $(Self::$variant => $retryable),* }
            }

            /// The code of a slug.
            #[must_use]
            pub fn parse(slug: &str) -> Option<Self> {
                match slug { $($slug => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

codes! {
    /// The `Idempotency-Key` header is missing, empty or too long.
    IdempotencyKeyRequired = "idempotency-key-required", retryable: false;
    /// The body is not what the media type says.
    Malformed = "malformed", retryable: false;
    /// No key, or one that is not known.
    Unauthorized = "unauthorized", retryable: false;
    /// The key's role may not do this.
    Forbidden = "forbidden", retryable: false;
    /// No such thing, or not yours.
    NotFound = "not-found", retryable: false;
    /// The path is known, the method is not.
    MethodNotAllowed = "method-not-allowed", retryable: false;
    /// The sale opens later.
    SaleNotOpen = "sale-not-open", retryable: true;
    /// The sale has ended.
    SaleOver = "sale-over", retryable: false;
    /// The customer holds and owns as many units as one customer may.
    PurchaseLimit = "purchase-limit", retryable: false;
    /// A request with this key is being decided at this moment.
    RequestInFlight = "request-in-flight", retryable: true;
    /// The order has ended otherwise.
    AlreadySettled = "already-settled", retryable: false;
    /// The adjustment would leave fewer units than are held and sold.
    BelowCommitted = "below-committed", retryable: false;
    /// Not enough units.
    SoldOut = "sold-out", retryable: false;
    /// The body is larger than allowed.
    TooLarge = "too-large", retryable: false;
    /// The content type is not `application/json`.
    UnsupportedMediaType = "unsupported-media-type", retryable: false;
    /// A field breaks a rule; the fields are named.
    Invalid = "invalid", retryable: false;
    /// No such SKU.
    UnknownSku = "unknown-sku", retryable: false;
    /// The key was used with another body.
    KeyReused = "key-reused", retryable: false;
    /// A server behind is away, or the queue is full; nothing was taken or the outcome is unknown.
    Unavailable = "unavailable", retryable: true;
    /// A fault of ours.
    Internal = "internal", retryable: true;
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
