//! Running a transaction again: after a lost lock race at once, after a lost reply to COMMIT because
//! the keys in it decide (P4). In a task of its own, so that a client that hangs up cancels nothing
//! half-way (P14).

use std::time::Duration;

use platform::clock;
use store::StoreError;

/// How long a use case may try.
const WITHIN: Duration = Duration::from_secs(2);

/// How long one run may take before its outcome counts as unknown.
const ATTEMPT_WITHIN: Duration = Duration::from_millis(900);

/// Between two runs.
const PAUSE: Duration = Duration::from_millis(10);

/// Runs `work` until it has an outcome or 2 s have passed. `work` must be safe to repeat after a
/// commit: it finds what it has done.
///
/// # Errors
/// The last failure; once an outcome was unknown it stays so until a later run knows.
pub(crate) async fn until_known<T, F, Fut>(work: F) -> Result<T, StoreError>
where
    T: Send + 'static,
    F: Fn() -> Fut,
    Fut: Future<Output = Result<T, StoreError>> + Send + 'static,
{
    let until = clock::monotonic() + WITHIN;
    let mut unknown = false;
    loop {
        let attempt = tokio::time::timeout(ATTEMPT_WITHIN, tokio::spawn(work())).await;
        let error = match attempt {
            Ok(Ok(Ok(outcome))) => return Ok(outcome),
            Ok(Ok(Err(error))) => error,
            Ok(Err(_)) | Err(_) => StoreError::no_answer(),
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
