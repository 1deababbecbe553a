//! Loops whose body is a function that can be called on its own: tests call the body, only
//! production awaits the timer.

use std::{future::Future, time::Duration};

use crate::Shutdown;

/// Calls `body` every `every` until shutdown begins, never twice at once. A body that takes longer
/// than the period delays the next call.
pub fn spawn<F, Fut>(shutdown: &Shutdown, every: Duration, mut body: F)
where
    F: FnMut() -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send,
{
    let token = shutdown.clone();
    shutdown.spawn(async move {
        while !token.has_begun() {
            body().await;
            tokio::select! {
                () = token.begun() => break,
                () = tokio::time::sleep(every) => {}
            }
        }
    });
}
