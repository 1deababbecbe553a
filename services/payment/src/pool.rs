//! The bounded pool that charges and refunds right after the commit. What it does not get done is
//! left to the sweeps: it remembers nothing that is not in PostgreSQL.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use platform::Shutdown;
use store::{payments::PendingPayment, refund_executions::PendingRefund};
use tokio::sync::{Semaphore, mpsc};

use crate::{LEASE, desk::Desk, gateway::PaymentGateway};

/// Something to be done at the gateway.
#[derive(Debug)]
pub enum Job {
    /// Charge.
    Charge(PendingPayment),
    /// Refund.
    Refund(PendingRefund),
}

#[derive(Debug)]
struct Queued {
    job: Job,
    since: Instant,
}

/// Where jobs are handed in. Cloning shares it.
#[derive(Debug, Clone)]
pub struct Pool {
    queue: mpsc::Sender<Queued>,
}

/// How long a job may wait: half its lease, so that the call ends before the sweep looks at it.
const STALE: Duration = Duration::from_secs(LEASE.as_secs() / 2);

impl Pool {
    /// Starts the pool: `concurrency` calls at a time, four times as many jobs waiting.
    #[must_use]
    pub fn start<G: PaymentGateway>(
        desk: Desk<G>,
        concurrency: usize,
        shutdown: &Shutdown,
    ) -> Self {
        let (queue, jobs) = mpsc::channel(concurrency.saturating_mul(4).max(1));
        shutdown.spawn(run(desk, jobs, concurrency.max(1), shutdown.clone()));
        Self { queue }
    }

    /// Hands in a job of work that was committed at `since`; waits for room, but not longer than a
    /// job may wait: a gateway that hangs must not hold the consumer up. A job that finds no room,
    /// or comes after the end, is left to the sweep.
    pub async fn submit(&self, job: Job, since: Instant) {
        let left = STALE.saturating_sub(since.elapsed());
        let sent = tokio::time::timeout(left, self.queue.send(Queued { job, since })).await;
        if sent.is_err() {
            left_to_sweep();
        }
    }
}

fn left_to_sweep() {
    metrics::counter!("payment_jobs_left_to_sweep_total").increment(1);
}

async fn run<G: PaymentGateway>(
    desk: Desk<G>,
    mut jobs: mpsc::Receiver<Queued>,
    concurrency: usize,
    shutdown: Shutdown,
) {
    let permits = Arc::new(Semaphore::new(concurrency));
    while let Some(queued) = jobs.recv().await {
        if shutdown.has_begun() || queued.since.elapsed() > STALE {
            left_to_sweep();
            continue;
        }
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
            return;
        };
        let desk = desk.clone();
        shutdown.spawn(async move {
            match &queued.job {
                Job::Charge(payment) => desk.charge(payment).await,
                Job::Refund(refund) => desk.refund(refund).await,
            }
            drop(permit);
        });
    }
}
