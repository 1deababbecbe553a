//! PostgreSQL's clock in this process: the last reading and the monotonic moment at which it came,
//! so that a deadline can be told without a question. Every batch brings a new reading.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use contracts::Timestamp;

/// Cloning shares it.
#[derive(Debug, Clone, Default)]
pub struct PgClock {
    reading: Arc<Mutex<Option<Reading>>>,
}

#[derive(Debug, Clone, Copy)]
struct Reading {
    pg: Timestamp,
    at: Instant,
}

impl PgClock {
    /// A clock without a reading.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a reading that came back at `at`. It was taken a little earlier, so that this clock is
    /// behind PostgreSQL's, never ahead: deadlines come early, never late.
    pub fn observe(&self, pg: Timestamp, at: Instant) {
        *self.lock() = Some(Reading { pg, at });
    }

    /// What PostgreSQL's clock says now; `None` before the first reading.
    #[must_use]
    pub fn now(&self) -> Option<Timestamp> {
        self.at(Instant::now())
    }

    /// What PostgreSQL's clock said or will say at a moment of this machine.
    #[must_use]
    pub fn at(&self, moment: Instant) -> Option<Timestamp> {
        let reading = (*self.lock())?;
        match moment.checked_duration_since(reading.at) {
            Some(later) => Some(reading.pg + later),
            None => Some(reading.pg - reading.at.duration_since(moment)),
        }
    }

    /// The deadline of what was received at `received`, in PostgreSQL's clock.
    #[must_use]
    pub fn deadline(&self, received: Instant, within: Duration) -> Option<Timestamp> {
        self.at(received).map(|moment| moment + within)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Reading>> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
