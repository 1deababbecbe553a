//! When to give way. What fails here alone works elsewhere: whoever leads, or holds partitions, and
//! can't do the work for so long leaves it to another who can.

use std::time::{Duration, Instant};

/// Since when something fails, and whether that is too long.
#[derive(Debug, Clone)]
pub struct Patience {
    most: Duration,
    failing_since: Option<Instant>,
}

impl Patience {
    /// From `now` on, until it is known to work; over after `most`.
    #[must_use]
    pub fn new(most: Duration, now: Instant) -> Self {
        Self {
            most,
            failing_since: Some(now),
        }
    }

    /// It was tried, and works or not; what was not to be tried counts as working.
    pub fn note(&mut self, works: bool, now: Instant) {
        self.failing_since = match (works, self.failing_since) {
            (true, _) => None,
            (false, since) => since.or(Some(now)),
        };
    }

    /// Whether it worked at the last try.
    #[must_use]
    pub fn works(&self) -> bool {
        self.failing_since.is_none()
    }

    /// For how long it has failed at every try; zero when it works.
    #[must_use]
    pub fn failing_for(&self, now: Instant) -> Duration {
        self.failing_since
            .map(|since| now.saturating_duration_since(since))
            .unwrap_or_default()
    }

    /// Whether it has failed for longer than is to be waited for.
    #[must_use]
    pub fn is_over(&self, now: Instant) -> bool {
        !self.works() && self.failing_for(now) >= self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn only_failures_without_a_break_use_it_up() {
        let start = clock::monotonic();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut patience = Patience::new(Duration::from_secs(5), start);
        assert!(!patience.works() && !patience.is_over(at(4)));
        assert!(patience.is_over(at(5)), "it never worked");
        patience.note(true, at(6));
        assert!(patience.works() && !patience.is_over(at(99)));
        patience.note(false, at(10));
        patience.note(false, at(14));
        assert_eq!(patience.failing_for(at(14)), Duration::from_secs(4));
        assert!(!patience.is_over(at(14)) && patience.is_over(at(15)));
        patience.note(true, at(16));
        patience.note(false, at(17));
        assert!(!patience.is_over(at(21)) && patience.is_over(at(22)));
    }
}
