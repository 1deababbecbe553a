//! One process does the work that two would only do twice: sweep, rebuild, drift check, pruning.
//! Two at once are safe all the same, so losing the lease needs no fence.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use platform::Shutdown;
use store::{
    Lease, Store, StoreError, StoreOptions,
    lease::{self, HEARTBEAT_EVERY},
};
use tokio::time::{sleep, timeout};

use crate::health::Health;

/// The lock's name.
const KEY: &str = "holdfast.stock.upkeep";

/// Whether this process leads.
#[derive(Debug, Clone, Default)]
pub(crate) struct Leader(Arc<AtomicBool>);

impl Leader {
    /// Whether it leads now.
    #[must_use]
    pub(crate) fn leads(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Stands by, leads, stands by again, until shutdown begins; then gives the lease back.
    pub(crate) async fn run(self, store: Store, options: StoreOptions, shutdown: Shutdown) {
        let health = Health::new("taking the lease of the upkeep");
        while !shutdown.has_begun() {
            let acquired = acquire_if_free(&store, &options).await;
            health.note(&acquired);
            if let Ok(Some(lease)) = acquired {
                self.0.store(true, Ordering::Relaxed);
                tracing::info!("this process leads the upkeep of the gate");
                hold(lease, &shutdown).await;
                self.0.store(false, Ordering::Relaxed);
            }
            tokio::select! {
                () = shutdown.begun() => {}
                () = sleep(HEARTBEAT_EVERY) => {}
            }
        }
    }
}

/// Takes the lease when nobody has it; a connection to hold it on is made only then.
async fn acquire_if_free(
    store: &Store,
    options: &StoreOptions,
) -> Result<Option<Lease>, StoreError> {
    match lease::is_free(store, KEY).await {
        Ok(false) => Ok(None),
        // A pool that is used up must not keep everybody from leading.
        Ok(true) | Err(_) => Lease::try_acquire(options, KEY).await,
    }
}

/// Speaks until the lease is lost or shutdown begins. A server that does not answer within the time
/// in which it would end a silent session has taken the lease.
async fn hold(mut lease: Lease, shutdown: &Shutdown) {
    loop {
        tokio::select! {
            () = shutdown.begun() => {
                lease.release().await;
                return;
            }
            () = sleep(HEARTBEAT_EVERY) => {}
        }
        match timeout(4 * HEARTBEAT_EVERY, lease.heartbeat()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the lease of the upkeep is lost"
                );
                return;
            }
            Err(_) => {
                tracing::warn!("the lease of the upkeep is lost: no answer");
                return;
            }
        }
    }
}
