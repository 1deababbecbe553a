//! Waiting for orders to end: all waiters share one query per round, so that a thousand buyers who
//! wait cost PostgreSQL as much as one.

use std::{collections::HashMap, time::Duration};

use contracts::OrderId;
use platform::Shutdown;
use store::{Order, Store, orders};
use tokio::sync::{mpsc, oneshot};

/// Between two rounds.
const EVERY: Duration = Duration::from_millis(60);

/// The most orders of one query.
const BATCH_MAX: usize = 500;

/// The most waiters that are not known to the task yet.
const QUEUE_MAX: usize = 4_096;

#[derive(Debug)]
struct Waiter {
    id: OrderId,
    ended: oneshot::Sender<Order>,
}

/// Cloning shares it; the task ends when the last clone is dropped.
#[derive(Debug, Clone)]
pub(crate) struct WatchOrders {
    queue: mpsc::Sender<Waiter>,
    tasks: Shutdown,
}

impl WatchOrders {
    /// Starts the task that asks.
    pub(crate) fn start(store: Store, tasks: &Shutdown) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        tasks.spawn(run(store, waiting));
        Self {
            queue,
            tasks: tasks.clone(),
        }
    }

    /// The order once it has ended; `None` when it has not by then, too many wait, or this process
    /// is about to end.
    pub(crate) async fn ended(&self, id: OrderId, within: Duration) -> Option<Order> {
        let (ended, answer) = oneshot::channel();
        self.queue.try_send(Waiter { id, ended }).ok()?;
        tokio::select! {
            ended = tokio::time::timeout(within, answer) => ended.ok()?.ok(),
            () = self.tasks.begun() => None,
        }
    }
}

async fn run(store: Store, mut queue: mpsc::Receiver<Waiter>) {
    let mut waiting: HashMap<OrderId, Vec<oneshot::Sender<Order>>> = HashMap::new();
    loop {
        if waiting.is_empty() {
            let Some(first) = queue.recv().await else {
                return;
            };
            waiting.entry(first.id).or_default().push(first.ended);
        }
        while let Ok(more) = queue.try_recv() {
            waiting.entry(more.id).or_default().push(more.ended);
        }
        waiting.retain(|_, waiters| {
            waiters.retain(|waiter| !waiter.is_closed());
            !waiters.is_empty()
        });
        look(&store, &mut waiting).await;
        tokio::time::sleep(EVERY).await;
    }
}

async fn look(store: &Store, waiting: &mut HashMap<OrderId, Vec<oneshot::Sender<Order>>>) {
    let ids: Vec<OrderId> = waiting.keys().copied().collect();
    for ids in ids.chunks(BATCH_MAX) {
        let found = async { orders::find_ended(&mut *store.conn().await?, ids).await };
        // A failed round is followed by the next one.
        let Ok(found) = found.await else { return };
        for order in found {
            for waiter in waiting.remove(&order.id).unwrap_or_default() {
                drop(waiter.send(order.clone()));
            }
        }
    }
}
