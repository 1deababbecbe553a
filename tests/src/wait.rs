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
    let asked = ask_within(bound, || {
        let asked = condition();
        async move { asked.await.ok_or(()) }
    });
    match asked.await {
        Ok(value) => value,
        Err(()) => panic!("waited {bound:?} in vain for: {what}"),
    }
}

/// Asks until the answer is the one that is wanted; gives the last other one when the bound has
/// passed.
///
/// # Errors
/// The last answer that was not wanted.
pub async fn ask_within<T, E, F, Fut>(bound: Duration, mut ask: F) -> Result<T, E>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let begun = platform::clock::monotonic();
    loop {
        match ask().await {
            Ok(wanted) => return Ok(wanted),
            Err(other) if begun.elapsed() >= bound => return Err(other),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}
