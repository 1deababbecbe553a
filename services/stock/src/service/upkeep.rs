//! What the service does on timers: some of it in every replica, most of it where the upkeep of the
//! gate is led.

use std::{sync::Arc, time::Duration};

use contracts::{ConsumerName, TopicNames};
use platform::{PaymentsMode, Shutdown, periodic};
use store::{StoreOptions, audit::Auditor, verify::Payments};

use crate::{
    Audit, Config, ExpireOrders, RepairDrift, ResendEvents, Stock, StockError,
    expire_orders::Expired,
    health::Health,
    leader::Leader,
    prune_rows::{PruneRows, make_partitions},
    rebuild_gate::rebuild_lost_shards,
    refund_dead_money::refund_dead_money,
    request_refunds::request_refunds,
    sweep_holds::sweep_or_doubt,
};

/// How often expiry, refunds and the sweep look.
const TICK: Duration = Duration::from_secs(1);

/// How often a lost epoch is looked for: rebuilt within 5 s (F25).
const EPOCH_TICK: Duration = Duration::from_millis(500);

/// How far apart two sightings of drift are: a commit and its sync are milliseconds apart.
const DRIFT_TICK: Duration = Duration::from_secs(1);

/// How often the audit sees what is due.
const AUDIT_TICK: Duration = Duration::from_millis(500);

/// How often money is looked for whose news was set aside.
const DEAD_MONEY_TICK: Duration = Duration::from_secs(10);

/// How often the outbox is given partitions for the days to come.
const PARTITIONS_TICK: Duration = Duration::from_secs(60);

/// How often old rows are pruned.
const PRUNE_TICK: Duration = Duration::from_secs(600);

/// What every replica does; locks in PostgreSQL keep them apart.
pub(super) fn everywhere(stock: &Stock, expire: Arc<ExpireOrders>, health: Health, own: &Shutdown) {
    let health = Arc::new(health);
    periodic::spawn(own, TICK, move || {
        let (expire, health) = (Arc::clone(&expire), Arc::clone(&health));
        async move {
            let expired = expire.expire_due_orders().await;
            health.note(&expired);
            if let Ok(Expired::Held(by)) = expired {
                tracing::error!(
                    disagreement_seconds = by.as_secs(),
                    "expiry is held: the database's clock jumped against this machine's"
                );
            }
        }
    });
    let stock = stock.clone();
    let health = Arc::new(Health::new("asking for refunds again"));
    periodic::spawn(own, TICK, move || {
        let (stock, health) = (stock.clone(), Arc::clone(&health));
        async move { health.note(&request_refunds(&stock).await) }
    });
}

/// What one replica does, the one that leads.
pub(super) struct Upkeep<'a> {
    pub(super) stock: &'a Stock,
    pub(super) leader: &'a Leader,
    pub(super) own: &'a Shutdown,
}

impl Upkeep<'_> {
    /// Starts all of it.
    pub(super) fn start(&self, config: &Config, options: &StoreOptions) {
        let drift = Arc::new(RepairDrift::new(self.stock.clone()));
        self.keep(&drift);
        self.audit(config, options, drift);
    }

    /// Calls `body` every so often while this process leads; `what` names it in logs.
    fn spawn<Done, Fut>(
        &self,
        every: Duration,
        what: &'static str,
        body: impl Fn(Stock) -> Fut + Send + Sync + 'static,
    ) where
        Fut: Future<Output = Result<Done, StockError>> + Send,
    {
        let (stock, leader) = (self.stock.clone(), self.leader.clone());
        let state = Arc::new((body, Health::new(what)));
        periodic::spawn(self.own, every, move || {
            let (stock, leader, state) = (stock.clone(), leader.clone(), Arc::clone(&state));
            async move {
                if leader.leads() {
                    let (body, health) = &*state;
                    health.note(&body(stock).await);
                }
            }
        });
    }

    /// The gate, and rows that nobody else looks after.
    fn keep(&self, drift: &Arc<RepairDrift>) {
        let repair = Arc::clone(drift);
        self.spawn(TICK, "sweeping the gate", move |stock| {
            let repair = Arc::clone(&repair);
            async move { sweep_or_doubt(&stock, &repair).await }
        });
        self.spawn(
            EPOCH_TICK,
            "looking for lost shards of the gate",
            |stock| async move { rebuild_lost_shards(&stock).await },
        );
        let repair = Arc::clone(drift);
        self.spawn(
            DRIFT_TICK,
            "comparing the gate with PostgreSQL",
            move |_| {
                let repair = Arc::clone(&repair);
                async move { repair.look().await }
            },
        );
        self.spawn(
            PARTITIONS_TICK,
            "making outbox partitions",
            |stock| async move { make_partitions(&stock).await },
        );
        self.spawn(
            DEAD_MONEY_TICK,
            "asking back money whose news was set aside",
            |stock| async move { refund_dead_money(&stock).await },
        );
        let rows = Arc::new(PruneRows::default());
        self.spawn(PRUNE_TICK, "pruning old rows", move |stock| {
            let rows = Arc::clone(&rows);
            async move { rows.prune(&stock).await }
        });
    }

    /// The audit, and the look for lost events, where the upkeep is led.
    fn audit(&self, config: &Config, options: &StoreOptions, drift: Arc<RepairDrift>) {
        let common = &config.common;
        let (payments, consumers) = match common.payments {
            PaymentsMode::Internal => (
                Payments::Internal,
                vec![ConsumerName::Payment, ConsumerName::Stock],
            ),
            PaymentsMode::Upstream => (Payments::Upstream, vec![ConsumerName::Stock]),
        };
        let health = Health::new("auditing");
        let auditor = Auditor::new(options, payments);
        health.note(&auditor);
        // The URL was read before, so this can't fail; without an audit the service still works.
        let Ok(auditor) = auditor else { return };
        let resend = ResendEvents::new(self.stock.clone(), auditor.clone(), consumers);
        let resend = Arc::new(resend);
        let brokers = common.kafka_brokers.clone();
        let names = TopicNames::new(&common.topic_suffix);
        let lost = Arc::clone(&resend);
        self.spawn(TICK, "looking for lost events", move |_| {
            let (lost, brokers, names) = (Arc::clone(&lost), brokers.clone(), names.clone());
            async move { resend_lost(&lost, &brokers, &names).await }
        });
        let audit = Audit::new(self.stock.clone(), auditor, drift, resend);
        let state = Arc::new((audit, health));
        let leader = self.leader.clone();
        periodic::spawn(self.own, AUDIT_TICK, move || {
            let (leader, state) = (leader.clone(), Arc::clone(&state));
            async move {
                if leader.leads() {
                    state.1.note(&state.0.look().await);
                } else {
                    state.0.rest().await;
                }
            }
        });
    }
}

/// Sends again what consumers have missed that have nothing left to read.
async fn resend_lost(
    resend: &ResendEvents,
    brokers: &str,
    names: &TopicNames,
) -> Result<(), StockError> {
    resend.look().await?;
    let mut caught_up = Vec::new();
    for consumer in resend.waiting().await {
        match messaging::admin::lag(brokers, names, consumer).await {
            Ok(partitions) if partitions.iter().all(|one| one.lag() == 0) => {
                caught_up.push(consumer);
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(
                error = &error as &dyn std::error::Error,
                "the lag of a consumer could not be read"
            ),
        }
    }
    resend.resend(&caught_up).await.map(|_| ())
}
