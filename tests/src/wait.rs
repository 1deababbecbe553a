//! Waiting for a condition, never for a time.

use std::{future::Future, time::Duration};

/// The one generous bound of waits that have no bound of their own by contract.
pub const BOUND: Duration = Duration::from_secs(180);

/// Asks `condition` until it gives a value.
///
/// # Panics
/// It has given none within the bound; `what` says what was waited for.
pub async fn wait_for<T, F, Fut>(what: &str, condition: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    wait_within(BOUND, what, condition).await
}

/// The same with a bound that the contract gives.
///
/// # Panics
/// As [`wait_for`].
pub async fn wait_within<T, F, Fut>(bound: Duration, what: &str, mut condition: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let begun = platform::clock::monotonic();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(
            begun.elapsed() < bound,
            "waited {bound:?} in vain for: {what}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
