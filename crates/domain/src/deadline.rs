//! Every rule about time in one place. All are decided on PostgreSQL's clock.

use std::time::Duration;

/// A request is never accepted later than this after its receipt (P1, P11).
pub const ACCEPT_WITHIN: Duration = Duration::from_secs(2);

/// When the gate asks first about a fresh hold: by then no accept can start any more (P5).
pub const FIRST_CHECK: Duration = Duration::from_secs(5);

/// When the gate asks again about a hold that lives (P5).
pub const NEXT_CHECK: Duration = Duration::from_secs(30);

/// How much of a hold must be left when a charge begins is at most this, or a quarter of its ttl
/// (P5: `min_left`).
pub const MIN_LEFT_MAX: Duration = Duration::from_secs(10);

/// How long past its deadline an order with a payment in flight is not expired (P5).
pub const PAYMENT_GRACE: Duration = Duration::from_secs(60);

/// Hours for which a key outlives its order (P11).
pub const KEY_LIVES_HOURS: i64 = 25;

/// The shortest and the longest reservation in seconds.
pub const TTL_SECONDS: std::ops::RangeInclusive<i32> = 1..=86_400;
