//! The micro-batcher in front of the recording: one batch in the database at a time.

use std::time::Duration;

use platform::Shutdown;
use store::Store;
use tokio::sync::{mpsc, oneshot};

use super::{News, batch, hints};

const QUEUE: usize = 1_024;
pub(super) const BATCH: usize = 128;

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) news: News,
    pub(super) recorded: Option<oneshot::Sender<()>>,
}

/// Where news is handed in. Cloning shares it; the recording ends when all are dropped.
#[derive(Debug, Clone)]
pub struct Recorder {
    queue: mpsc::Sender<Entry>,
    hints: mpsc::Sender<News>,
}

impl Recorder {
    /// Starts the recording. While PostgreSQL is away news waits, at most 1,024 of them, and as many
    /// hints.
    #[must_use]
    pub fn start(store: Store, shutdown: &Shutdown) -> Self {
        let (queue, entries) = mpsc::channel(QUEUE);
        let (hints, heard) = mpsc::channel(QUEUE);
        let sorted = hints::run(store.clone(), heard, queue.clone(), shutdown.clone());
        shutdown.spawn(sorted);
        shutdown.spawn(run(store, entries, shutdown.clone()));
        Self { queue, hints }
    }

    /// Waits for room, then until the news is recorded. `false`: it is not, because this process
    /// ends or the news can't be recorded; the row stays as it is and the sweep asks again.
    pub async fn record(&self, news: News) -> bool {
        let (recorded, done) = oneshot::channel();
        let entry = Entry {
            news,
            recorded: Some(recorded),
        };
        self.queue.send(entry).await.is_ok() && done.await.is_ok()
    }

    /// Hands in news that may be known already, without waiting; `false` when there is no room.
    #[must_use]
    pub fn offer(&self, news: News) -> bool {
        self.hints.try_send(news).is_ok()
    }
}

async fn run(store: Store, mut entries: mpsc::Receiver<Entry>, shutdown: Shutdown) {
    let mut batch = Vec::with_capacity(BATCH);
    while entries.recv_many(&mut batch, BATCH).await > 0 {
        let news: Vec<&News> = batch.iter().map(|entry| &entry.news).collect();
        let recorded = record_all(&store, &news, &shutdown).await;
        for (entry, recorded) in batch.drain(..).zip(recorded) {
            if let (true, Some(waiter)) = (recorded, entry.recorded) {
                // Whoever waited may have gone.
                waiter.send(()).ok();
            }
        }
    }
}

/// Records a batch as one; when it can't be, each alone, so that one bad row holds nothing up.
async fn record_all(store: &Store, news: &[&News], shutdown: &Shutdown) -> Vec<bool> {
    if record(store, news, shutdown).await {
        return vec![true; news.len()];
    }
    if news.len() == 1 || shutdown.has_begun() {
        return vec![false; news.len()];
    }
    let mut recorded = Vec::with_capacity(news.len());
    for one in news {
        recorded.push(record(store, &[*one], shutdown).await);
    }
    recorded
}

/// Tries until it is recorded, PostgreSQL refuses it, or the process ends.
async fn record(store: &Store, news: &[&News], shutdown: &Shutdown) -> bool {
    let mut pause = Duration::from_millis(20);
    loop {
        match batch::record(store, news).await {
            Ok(()) => return true,
            Err(error) if error.is_transient() && !shutdown.has_begun() => {
                metrics::counter!("payment_recordings_retried_total").increment(1);
                tracing::warn!(error = %batch::chain(&error), "results wait to be recorded");
            }
            Err(error) => {
                metrics::counter!("payment_recordings_failed_total").increment(1);
                tracing::error!(
                    error = %batch::chain(&error),
                    results = news.len(),
                    "results not recorded; the sweep will ask for them again"
                );
                return false;
            }
        }
        tokio::select! {
            () = shutdown.begun() => {}
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}
