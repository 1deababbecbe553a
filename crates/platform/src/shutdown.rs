//! Graceful stop: one token for all tasks of a process, and a bounded wait for them (P13).

use std::{future::Future, time::Duration};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How long a process may take from SIGTERM to its end.
pub const GRACE: Duration = Duration::from_secs(10);

/// Tells tasks to finish, and tracks those that must be waited for.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    token: CancellationToken,
    tasks: TaskTracker,
}

impl Shutdown {
    /// A shutdown that nothing has asked for yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A shutdown that is asked for by SIGTERM or SIGINT.
    #[must_use]
    pub fn on_signal() -> Self {
        let shutdown = Self::new();
        let asked = shutdown.clone();
        tokio::spawn(async move {
            wait_for_signal().await;
            tracing::info!("shutdown asked for by a signal");
            asked.begin();
        });
        shutdown
    }

    /// A part of this shutdown: it begins with the whole, may begin alone, and has its own tasks.
    #[must_use]
    pub fn child(&self) -> Self {
        Self {
            token: self.token.child_token(),
            tasks: TaskTracker::new(),
        }
    }

    /// Asks all tasks to finish.
    pub fn begin(&self) {
        self.token.cancel();
    }

    /// Whether it was asked for.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Returns when it is asked for.
    pub async fn begun(&self) {
        self.token.cancelled().await;
    }

    /// Starts a task that [`Shutdown::finished`] waits for.
    pub fn spawn<F>(&self, task: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tasks.spawn(task)
    }

    /// Waits until all tasks have ended; `false` when the bound passed first.
    pub async fn finished(&self, bound: Duration) -> bool {
        self.tasks.close();
        tokio::time::timeout(bound, self.tasks.wait()).await.is_ok()
    }
}

async fn wait_for_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) {
        (Ok(mut term), Ok(mut int)) => {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
        }
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "signals can't be received; only SIGKILL will end this process");
            std::future::pending::<()>().await;
        }
    }
}
