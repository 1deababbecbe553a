//! The public contract of Holdfast, pure and without drivers: what an outside service needs in
//! order to write requests or read events.
//!
//! Names here are relied on by outsiders; change them only by adding.
#![warn(missing_docs)]

pub mod code;
pub mod envelope;
pub mod events;
pub mod ids;
pub mod money;
pub mod quantity;
pub mod schema;
pub mod topics;

pub use code::Code;
pub use envelope::{Envelope, EnvelopeError};
pub use ids::{CustomerId, HoldId, OrderId, PaymentId, PaymentMethod, RefundKey, Shop, Sku};
pub use money::{Currency, Money};
pub use quantity::{Line, Quantity};
pub use topics::{ConsumerName, Topic, TopicNames};

/// A moment, always UTC; written in RFC 3339 with a `Z`.
pub type Timestamp = chrono::DateTime<chrono::Utc>;
