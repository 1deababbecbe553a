//! One process does the work that two would only do twice: sweep, rebuild, drift check, pruning.
//! Two at once are safe all the same, so losing the lease needs no fence.
//!
//! Most of that work needs Redis, and a leader that alone has lost it would neither do it nor let
//! anybody else. Giving the lease up and hoping is no way: while Redis is away for all, the lease would
//! go round, and the audit would begin anew with each leader. So it is given up to one who is known to
//! do better: the heir, a process that stands by, has just had an answer of Redis, and says so by
//! holding a second lock. Whoever leads and has had no answer for [`WITHOUT_GATE`] gives way when there
//! is an heir, and who has none does not ask for the lease while there is one. Without Redis there is no
//! heir, and all stays as it is. Expiry and refunds are not led: every replica does them.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use platform::{Patience, Shutdown, clock};
use store::{
    Lease, Store, StoreError, StoreOptions,
    lease::{self, HEARTBEAT_EVERY},
};
use tokio::time::{sleep, timeout};

use crate::health::Health;

/// The lock's name.
const KEY: &str = "holdfast.stock.upkeep";
/// The name of the heir's.
const HEIR: &str = "holdfast.stock.upkeep.heir";
/// How long a leader goes on without an answer of Redis although there is an heir.
const WITHOUT_GATE: Duration = Duration::from_secs(5);

/// Whether this process leads, and whether it is fit to.
#[derive(Debug, Clone)]
pub(crate) struct Leader {
    leads: Arc<AtomicBool>,
    gate: Arc<Mutex<Patience>>,
}

/// Why a leadership is over.
enum Ended {
    Shutdown,
    GaveWay,
    Lost(Option<StoreError>),
}

impl Leader {
    /// One that does not lead, and has had no answer of Redis yet.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self {
            leads: Arc::default(),
            gate: Arc::new(Mutex::new(Patience::new(WITHOUT_GATE, clock::monotonic()))),
        }
    }

    /// Whether it leads now.
    #[must_use]
    pub(crate) fn leads(&self) -> bool {
        self.leads.load(Ordering::Relaxed)
    }

    /// Redis was asked, whoever leads.
    pub(crate) fn gate_answers(&self, answers: bool) {
        self.gate().note(answers, clock::monotonic());
    }

    fn gate(&self) -> MutexGuard<'_, Patience> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stands by, leads, stands by again, until shutdown begins; then gives the lease back.
    pub(crate) async fn run(self, store: Store, options: StoreOptions, shutdown: Shutdown) {
        let health = Health::new("taking the lease of the upkeep");
        let mut heir = None;
        while !shutdown.has_begun() {
            let acquired = self.acquire(&store, &options).await;
            health.note(&acquired);
            match acquired {
                Ok(Some(lease)) => {
                    release(heir.take()).await;
                    self.lead(lease, &shutdown).await;
                }
                Ok(None) => heir = self.stand_by(heir, &store, &options).await,
                // who can't take the lease is no heir
                Err(_) => release(heir.take()).await,
            }
            tokio::select! {
                () = shutdown.begun() => {}
                () = sleep(HEARTBEAT_EVERY) => {}
            }
        }
        release(heir).await;
    }

    /// Takes the lease when nobody has it, on a connection that is made only then; who does not reach
    /// Redis leaves it to the heir.
    async fn acquire(
        &self,
        store: &Store,
        options: &StoreOptions,
    ) -> Result<Option<Lease>, StoreError> {
        // A pool that is used up must not keep everybody from leading.
        let free = |asked: Result<bool, StoreError>| asked.unwrap_or(true);
        if !free(lease::is_free(store, KEY).await) {
            return Ok(None);
        }
        let fit = self.gate().works();
        // Not asked for before: the question looks to others like an heir, for a moment.
        if !fit && !free(lease::is_free(store, HEIR).await) {
            return Ok(None);
        }
        Lease::try_acquire(options, KEY).await
    }

    /// Becomes or stays the heir, or ceases to be.
    async fn stand_by(
        &self,
        heir: Option<Lease>,
        store: &Store,
        options: &StoreOptions,
    ) -> Option<Lease> {
        let fit = self.gate().works();
        if !fit {
            release(heir).await;
            return None;
        }
        if let Some(mut lease) = heir {
            return lease.heartbeat().await.is_ok().then_some(lease);
        }
        match lease::is_free(store, HEIR).await {
            Ok(true) => Lease::try_acquire(options, HEIR).await.ok().flatten(),
            Ok(false) | Err(_) => None,
        }
    }

    async fn lead(&self, lease: Lease, shutdown: &Shutdown) {
        self.leads.store(true, Ordering::Relaxed);
        tracing::info!("this process leads the upkeep of the gate");
        let ended = self.hold(lease, shutdown).await;
        self.leads.store(false, Ordering::Relaxed);
        match ended {
            Ended::Shutdown => {}
            Ended::GaveWay => {
                metrics::counter!("stock_leader_gave_way_total").increment(1);
                tracing::warn!("redis does not answer here: another process leads the upkeep");
            }
            Ended::Lost(Some(error)) => tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the lease of the upkeep is lost"
            ),
            Ended::Lost(None) => tracing::warn!("the lease of the upkeep is lost: no answer"),
        }
    }

    /// Speaks until the lease is lost, an heir is better, or shutdown begins. A server that does not
    /// answer within the time in which it would end a silent session has taken the lease.
    async fn hold(&self, mut lease: Lease, shutdown: &Shutdown) -> Ended {
        loop {
            tokio::select! {
                () = shutdown.begun() => {
                    lease.release().await;
                    return Ended::Shutdown;
                }
                () = sleep(HEARTBEAT_EVERY) => {}
            }
            match timeout(4 * HEARTBEAT_EVERY, self.speak(&mut lease)).await {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => {
                    lease.release().await;
                    return Ended::GaveWay;
                }
                Ok(Err(error)) => return Ended::Lost(Some(error)),
                Err(_) => return Ended::Lost(None),
            }
        }
    }

    /// Speaks on the lease; whether it is to be kept.
    async fn speak(&self, lease: &mut Lease) -> Result<bool, StoreError> {
        let unfit = self.gate().is_over(clock::monotonic());
        if unfit {
            return lease::is_free_on(lease.conn(), HEIR).await;
        }
        lease.heartbeat().await.map(|()| true)
    }
}

async fn release(lease: Option<Lease>) {
    if let Some(lease) = lease {
        lease.release().await;
    }
}
