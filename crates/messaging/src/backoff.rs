//! Growing pauses with jitter, so that many processes do not return at the same moment.

use std::time::Duration;

/// Doubles from `first` to `most`; each pause is between half of that and all of it.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    /// A back-off at its beginning.
    pub(crate) fn new(first: Duration, most: Duration) -> Self {
        Self {
            first,
            most,
            next: first,
        }
    }

    /// The pause to make now.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.next.mul_f64(0.5 + rand::random::<f64>() / 2.0);
        self.next = self.next.saturating_mul(2).min(self.most);
        pause
    }

    /// Begins again.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}
