//! Says once that something fails and once that it works again: a server that is away for an hour
//! is two lines, not thousands.

use std::sync::{Mutex, PoisonError};

/// One piece of work and whether it fails.
#[derive(Debug)]
pub(crate) struct Health {
    what: &'static str,
    failing: Mutex<Option<String>>,
}

impl Health {
    /// Work that has not failed yet; `what` is what is said of it in logs.
    #[must_use]
    pub(crate) fn new(what: &'static str) -> Self {
        Self {
            what,
            failing: Mutex::new(None),
        }
    }

    /// Notes an outcome, and says so when it is another than before.
    pub(crate) fn note<T, E: std::error::Error + 'static>(&self, outcome: &Result<T, E>) {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Ok(_) => {
                if failing.take().is_some() {
                    tracing::info!("{} works again", self.what);
                }
            }
            Err(error) => {
                metrics::counter!("stock_failures_total", "what" => self.what).increment(1);
                let text = error.to_string();
                if failing.as_ref() == Some(&text) {
                    tracing::debug!(
                        error = error as &dyn std::error::Error,
                        "{} still fails",
                        self.what
                    );
                } else {
                    tracing::warn!(
                        error = error as &dyn std::error::Error,
                        "{} fails",
                        self.what
                    );
                    *failing = Some(text);
                }
            }
        }
    }
}
