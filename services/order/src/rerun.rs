//! Running a transaction again: after a lost lock race at once, after a lost reply to COMMIT because
//! the keys in it decide (P4). In a task of its own, so that a client that hangs up cancels nothing
//! half-way (P14).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use platform::clock;
use store::{StoreError, Tx};

/// How long a use case may try.
const WITHIN: Duration = Duration::from_secs(2);

/// How long one run may take before its outcome counts as unknown.
const ATTEMPT_WITHIN: Duration = Duration::from_millis(900);

/// Between two runs.
const PAUSE: Duration = Duration::from_millis(10);

/// Whether a run was given up: its caller has stopped waiting and may have begun another. Such a run
/// does not commit any more, so that the next run's answer is the last word; what had begun its
/// commit before has taken its keys and locks, and the next run waits for them.
#[derive(Debug, Clone, Default)]
pub(crate) struct GivenUp(Arc<AtomicBool>);

impl GivenUp {
    pub(crate) fn give_up(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Commits, unless the run was given up.
    ///
    /// # Errors
    /// No answer, when it was; else as [`Tx::commit`].
    pub(crate) async fn commit(&self, tx: Tx) -> Result<(), StoreError> {
        if self.0.load(Ordering::SeqCst) {
            tx.rollback().await?;
            return Err(StoreError::no_answer());
        }
        tx.commit().await
    }
}

/// Runs `work` until it has an outcome or 2 s have passed. `work` must be safe to repeat after a
/// commit (it finds what it has done), and must commit by the [`GivenUp`] that it is handed.
///
/// # Errors
/// The last failure; once an outcome was unknown it stays so until a later run knows.
pub(crate) async fn until_known<T, F, Fut>(work: F) -> Result<T, StoreError>
where
    T: Send + 'static,
    F: Fn(GivenUp) -> Fut,
    Fut: Future<Output = Result<T, StoreError>> + Send + 'static,
{
    let until = clock::monotonic() + WITHIN;
    let mut unknown = false;
    loop {
        let given_up = GivenUp::default();
        let run = tokio::spawn(work(given_up.clone()));
        let error = match tokio::time::timeout(ATTEMPT_WITHIN, run).await {
            Ok(Ok(Ok(outcome))) => return Ok(outcome),
            Ok(Ok(Err(error))) => error,
            Ok(Err(_)) | Err(_) => {
                given_up.give_up();
                StoreError::no_answer()
            }
        };
        unknown |= error.is_unknown_outcome();
        if !(unknown || error.must_rerun()) || clock::monotonic() + PAUSE >= until {
            return Err(if unknown {
                StoreError::no_answer()
            } else {
                error
            });
        }
        tokio::time::sleep(PAUSE).await;
    }
}
