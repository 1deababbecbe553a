//! The one place where a clock is read. Deadlines are decided by PostgreSQL's clock; this one
//! serves time-outs, measurements and ids.

use std::time::Instant;

use chrono::{DateTime, Utc};

/// The wall clock of this machine.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn now() -> DateTime<Utc> {
    Utc::now()
}

/// The monotonic clock of this machine.
#[must_use]
pub fn monotonic() -> Instant {
    Instant::now()
}
