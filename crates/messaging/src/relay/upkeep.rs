//! What the leader does now and then: partitions of the outbox, and the age of its oldest row.

use std::time::Duration;

use platform::clock;
use store::outbox;

use super::leader::Relay;

/// How often the age of the oldest row is measured.
const MEASURE_EVERY: Duration = Duration::from_secs(1);
/// How often partitions are made and dropped, how far ahead, and how old they get: longer than
/// any topic keeps events, so that lost ones can be sent again.
const PARTITIONS_EVERY: Duration = Duration::from_secs(30);
const PARTITIONS_AHEAD: i64 = 3_000_000;
const PARTITIONS_AGE: Duration = Duration::from_secs(8 * 24 * 3600);
impl Relay {
    /// What is due now and then.
    pub(super) async fn upkeep(&mut self) {
        if self
            .partitions_at
            .is_none_or(|at| at.elapsed() >= PARTITIONS_EVERY)
        {
            self.partitions_at = Some(clock::monotonic());
            let conn = self.lease.conn();
            let done = match outbox::make_partitions(conn, PARTITIONS_AHEAD).await {
                Ok(_) => outbox::drop_partitions(conn, PARTITIONS_AGE)
                    .await
                    .map(drop),
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                metrics::counter!("relay_partition_failures_total").increment(1);
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "outbox partitions could not be made or dropped");
            }
        }
        if self
            .measured_at
            .is_none_or(|at| at.elapsed() >= MEASURE_EVERY)
        {
            self.measured_at = Some(clock::monotonic());
            // beside the steps: a pool that is used up must not silence the lease
            let store = self.config.store.clone();
            tokio::spawn(async move {
                if let Ok(age) = outbox::oldest_unpublished_age(&store).await {
                    metrics::gauge!("outbox_oldest_age_seconds")
                        .set(age.unwrap_or_default().as_secs_f64());
                }
            });
        }
    }
}
