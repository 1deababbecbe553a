//! What fails alone, and nobody knows why. The others go on without it; its offset is held back.

use std::time::{Duration, Instant};

use platform::clock;

use super::{Unclassified, unit::Unit};

/// A unit of one event, or of one dead letter that the store refuses.
pub(super) struct Stuck<E> {
    pub(super) unit: Unit<E>,
    pub(super) failures: i32,
    pub(super) next_at: Instant,
    since: Instant,
    /// Transactions of the consumer before its first failure.
    commits: u64,
}

impl<E> Stuck<E> {
    /// After its first failure.
    pub(super) fn new(unit: Unit<E>, commits: u64, every: Duration) -> Self {
        let since = clock::monotonic();
        Self {
            unit,
            failures: 1,
            next_at: since + every,
            since,
            commits,
        }
    }

    /// Counts a failure and chooses the time of the next try.
    pub(super) fn failed_again(&mut self, every: Duration) {
        self.failures += 1;
        self.next_at = clock::monotonic() + every;
    }

    /// Whether it failed often and long enough while others were handled: then the fault is its
    /// own. While nobody else is handled, the fault may be ours.
    pub(super) fn is_hopeless(&self, rule: Unclassified, commits: u64) -> bool {
        self.failures >= rule.attempts
            && self.since.elapsed() >= rule.over
            && commits > self.commits
    }
}
