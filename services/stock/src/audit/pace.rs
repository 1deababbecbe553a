//! How often a check may run: no more often than it is useful, and no more than its share of a core,
//! however long it takes.

use std::time::{Duration, Instant};

/// One check's rhythm.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    every: Duration,
    at_most: Duration,
    permille: u32,
    next: Option<Instant>,
}

impl Pace {
    /// Due at once, then every `every`, or so much later that it takes `permille` of one core; but
    /// at the latest after `at_most`.
    pub(crate) const fn new(every: Duration, at_most: Duration, permille: u32) -> Self {
        Self {
            every,
            at_most,
            permille,
            next: None,
        }
    }

    /// Whether it may run.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| next <= now)
    }

    /// It ran from `began` to `ended`.
    pub(crate) fn ran(&mut self, began: Instant, ended: Instant) {
        let took = ended.saturating_duration_since(began);
        let fair = took.saturating_mul(1_000) / self.permille.max(1);
        self.next = Some(ended + fair.max(self.every).min(self.at_most));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_is_asked_seldom() {
        let start = platform::clock::monotonic();
        let mut pace = Pace::new(Duration::from_secs(1), Duration::from_secs(60), 10);
        assert!(pace.is_due(start));
        let after = |pace: &mut Pace, took: u64| {
            let ended = start + Duration::from_millis(took);
            pace.ran(start, ended);
            (1..).find(|s| pace.is_due(ended + Duration::from_secs(*s)))
        };
        assert_eq!(after(&mut pace, 1), Some(1));
        assert_eq!(after(&mut pace, 50), Some(5));
        assert_eq!(after(&mut pace, 5_000), Some(60));
    }
}
