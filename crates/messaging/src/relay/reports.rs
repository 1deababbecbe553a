//! What the relay does with reports: counts what is acknowledged, sorts out whose fault a failure
//! is, and begins again.

use std::time::Duration;

use platform::clock;

use super::{
    RelayError,
    cursor::Cursor,
    leader::{Outage, Relay},
    sender::{Blame, Sender, blame},
};

/// No acknowledgement for so long, with something to send, is said once.
const SILENCE: Duration = Duration::from_secs(5);

impl Relay {
    /// Takes what was reported; gives the number of acknowledgements.
    pub(super) async fn collect(&mut self) -> Result<usize, RelayError> {
        let mut acknowledged = 0;
        let mut failed = None;
        while let Some(report) = self.early.take().or_else(|| self.sender.try_report()) {
            match report.result {
                Ok(()) => {
                    acknowledged += usize::from(self.in_flight.remove(&report.id).is_some());
                }
                Err(code) if blame(code) == Blame::Record => {
                    let alone = self.in_flight.get(&report.id).filter(|flight| flight.alone);
                    if let Some(event_id) = alone.map(|flight| flight.event_id) {
                        self.park(report.id, event_id, &code.to_string()).await?;
                        self.in_flight.remove(&report.id);
                    } else {
                        // one of its batch: from the watermark again, one by one, to see which; it
                        // stays in flight until then, so that the watermark stays below it
                        self.alone_until = self.alone_until.max(report.id);
                        failed = failed.or(Some((report.id, code)));
                    }
                }
                Err(code) => failed = failed.or(Some((report.id, code))),
            }
        }
        if acknowledged > 0 {
            metrics::counter!("relay_published_total")
                .increment(u64::try_from(acknowledged).unwrap_or(u64::MAX));
            self.recovered();
            platform::crash_point!(
                "cp11",
                if !self.in_flight.is_empty(),
                err => return Err(store::StoreError::no_connection().into())
            );
        }
        if let Some((id, code)) = failed {
            self.begin_again(id, &code.to_string())?;
        } else if self.sender.is_dead() {
            self.begin_again(self.floor() + 1, "fatal producer error")?;
        }
        self.heed_silence(acknowledged);
        Ok(acknowledged)
    }

    fn recovered(&mut self) {
        let (floor, sent) = (self.floor(), self.sent());
        let passed = self
            .outage
            .take_if(|outage| outage.failed <= sent)
            .is_some();
        if passed {
            self.backoff.reset();
        }
        let silent = std::mem::take(&mut self.silent) | std::mem::take(&mut self.gave_way);
        if passed || silent {
            tracing::info!(relay.low = floor, "relay publishes again");
        }
    }

    /// Whether something is under way, waits, or failed and is to be sent again.
    fn owes(&self) -> bool {
        // not the floor: a gap may stay open for long below what was sent again
        let failed = |outage: &Outage| outage.failed > self.sent();
        !self.in_flight.is_empty()
            || !self.pending.is_empty()
            || self.outage.as_ref().is_some_and(failed)
    }

    fn heed_silence(&mut self, acknowledged: usize) {
        let (works, now) = (acknowledged > 0 || !self.owes(), clock::monotonic());
        self.patience.note(works, now);
        let said = self.silent || self.gave_way;
        if !said && self.patience.failing_for(now) > SILENCE {
            self.silent = true;
            tracing::warn!(
                relay.in_flight = self.in_flight.len(),
                relay.low = self.low,
                "relay gets no acknowledgements; it waits"
            );
        }
    }

    /// A new producer, and everything above what is done once more, with the same event ids. Should the
    /// old one's records turn up after all, each is a repeat: all of them are sent again, from the first.
    pub(super) fn begin_again(&mut self, failed: i64, why: &str) -> Result<(), RelayError> {
        let floor = self.floor();
        self.repeats = self.sent();
        self.sender = Sender::new(&self.config.brokers, &self.config.instance)
            .map_err(RelayError::Producer)?;
        self.cursor = Cursor::new(floor);
        self.pending.clear();
        self.in_flight.clear();
        self.early = None;
        metrics::counter!("relay_restarts_total").increment(1);
        if self.outage.is_none() && !self.gave_way {
            tracing::warn!(
                relay.low = floor,
                reason = why,
                "relay begins again with a new producer"
            );
        }
        let failed = self
            .outage
            .as_ref()
            .map_or(failed, |outage| outage.failed.max(failed));
        let retry_at = clock::monotonic() + self.backoff.pause();
        self.outage = Some(Outage { failed, retry_at });
        Ok(())
    }
}
