//! Spares the wait while Redis is away: after a failure the gate answers at once, and the server is
//! tried in the background at most once per interval.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// What a call is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passage {
    /// Go on.
    Closed,
    /// Don't; and it is this call's turn to have the server tried.
    Probe,
    /// Don't.
    Open,
}

#[derive(Debug)]
pub(crate) struct Breaker {
    interval: Duration,
    /// When the server is to be tried next; none while it answers.
    next_probe: Mutex<Option<Instant>>,
}

impl Breaker {
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            interval,
            next_probe: Mutex::new(None),
        }
    }

    pub(crate) fn passage(&self, now: Instant) -> Passage {
        let mut next = self
            .next_probe
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match *next {
            None => Passage::Closed,
            Some(at) if now >= at => {
                *next = Some(now + self.interval);
                Passage::Probe
            }
            Some(_) => Passage::Open,
        }
    }

    /// The server did not answer. True when that is news.
    pub(crate) fn open(&self, now: Instant) -> bool {
        let mut next = self
            .next_probe
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let news = next.is_none();
        if news {
            *next = Some(now + self.interval);
        }
        news
    }

    /// The server answered. True when that is news.
    pub(crate) fn close(&self) -> bool {
        self.next_probe
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_breaker_lets_one_probe_through_per_interval() {
        let interval = Duration::from_millis(250);
        let (breaker, start) = (Breaker::new(interval), Instant::now());
        assert_eq!(breaker.passage(start), Passage::Closed);
        assert!(breaker.open(start));
        assert!(
            !breaker.open(start + interval / 2),
            "a second failure is no news"
        );
        assert_eq!(breaker.passage(start), Passage::Open);
        assert_eq!(breaker.passage(start + interval), Passage::Probe);
        assert_eq!(breaker.passage(start + interval), Passage::Open);
        assert_eq!(breaker.passage(start + 2 * interval), Passage::Probe);
        assert!(breaker.close());
        assert!(!breaker.close());
        assert_eq!(breaker.passage(start), Passage::Closed);
    }
}
