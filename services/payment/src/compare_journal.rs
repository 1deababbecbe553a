//! Compares the gateway's own journal with our payments (I16). Guarantee: money that the gateway
//! has taken, and that is here as not taken or not at all, becomes a capture like any other, is
//! published, and stock applies it or has it refunded (P6); so none is kept because news was lost.
//!
//! Steps, every 5 s, for the pages of the last 15 minutes and for one page of a slow round over all:
//! 1. Read a page of the journal, then our rows with its keys. In this order a charge that is made
//!    meanwhile is here, for its row is committed before it. Dies: nothing has happened.
//! 2. Captured there, FAILED or VOIDED here: news, recorded as all news is. What is PENDING here is
//!    left to the sweep, which asks by key. Dies before it is recorded: the next look finds it.
//! 3. Captured there under a key of ours and unknown here: insert its PENDING row, with the name that
//!    we gave it; COMMIT; then as in 2. Dies in between: the sweep asks by key.
//! 4. Captured otherwise than here, or under a key that can't be taken over, at two looks: an alarm,
//!    once. Nothing is changed: people must look.

use std::collections::{BTreeMap, btree_map};

use contracts::{Money, PaymentId, Timestamp};
use platform::clock;
use store::{
    Store, StoreError,
    payments::{self, PendingPayment, RecordedPayment},
    settlement::PaymentState,
};
use tokio::sync::Mutex;

use crate::{
    LEASE,
    charge_payments::gateway_key,
    desk::Desk,
    gateway::{ChargeOutcome, GatewayError, JournalEntry, PaymentGateway},
};

/// Lines of one page.
const PAGE: usize = 500;
/// Pages of the last minutes that one look reads; the next goes on behind them.
const RECENT_PAGES: usize = 4;
/// The minutes whose keys every look begins with.
const RECENT: chrono::TimeDelta = chrono::TimeDelta::minutes(15);
/// Differences that are remembered.
const REMEMBERED: usize = 1_000;

/// Why a look ended early; the next one goes on from where it was.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// The gateway.
    #[error("reading the gateway's journal")]
    Gateway(#[from] GatewayError),
    /// The database.
    #[error("comparing the gateway's journal")]
    Store(#[from] StoreError),
}

/// The comparison and where it is.
#[derive(Debug)]
pub struct CompareJournal<G> {
    store: Store,
    desk: Desk<G>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    looks: u64,
    /// Where the next look goes on in the last minutes; `None`: at their beginning.
    recent: Option<String>,
    /// Where the round over all goes on.
    round: String,
    /// Keys that differ.
    differ: BTreeMap<String, Difference>,
}

#[derive(Debug)]
struct Difference {
    /// The look that saw it first.
    since: u64,
    told: bool,
}

impl<G: PaymentGateway> CompareJournal<G> {
    /// A comparison that has seen nothing yet; what it finds goes to `desk`.
    #[must_use]
    pub fn new(store: Store, desk: Desk<G>) -> Self {
        Self {
            store,
            desk,
            state: Mutex::default(),
        }
    }

    /// Compares the next pages; returns how many captures came to light.
    ///
    /// # Errors
    /// [`CompareError`]: see its variants.
    pub async fn look(&self) -> Result<usize, CompareError> {
        let mut state = self.state.lock().await;
        state.looks += 1;
        let mut found = 0;
        let floor = first_key_at(clock::now() - RECENT);
        let mut recent = state.recent.take().filter(|key| *key > floor);
        for _ in 0..RECENT_PAGES {
            let after = recent.take().unwrap_or_else(|| floor.clone());
            recent = self.page(&mut state, &after, &mut found).await?;
            if recent.is_none() {
                break;
            }
        }
        state.recent = recent;
        let after = std::mem::take(&mut state.round);
        let next = self.page(&mut state, &after, &mut found).await?;
        state.round = next.unwrap_or_default();
        Ok(found)
    }

    /// Compares the page after a key; the key that the next one begins after.
    async fn page(
        &self,
        state: &mut State,
        after: &str,
        found: &mut usize,
    ) -> Result<Option<String>, CompareError> {
        let page = self.desk.gateway.journal(after, PAGE).await?;
        let captured: Vec<(&JournalEntry, Money)> = page
            .entries
            .iter()
            .filter_map(|entry| match entry.charge.outcome {
                ChargeOutcome::Captured { amount, .. } => Some((entry, amount)),
                ChargeOutcome::Pending
                | ChargeOutcome::Declined { .. }
                | ChargeOutcome::Canceled => None,
            })
            .collect();
        let ours = self.ours(&captured).await?;
        for (entry, amount) in captured {
            let is_same = match ours.get(&entry.charge.key) {
                Some(row) => match row.state {
                    PaymentState::Pending => continue,
                    PaymentState::Failed | PaymentState::Voided => {
                        self.comes_to_light(entry, found).await;
                        continue;
                    }
                    PaymentState::Completed => {
                        row.captured_minor == amount.amount_minor
                            && row.amount.currency == amount.currency
                    }
                },
                None => self.take_over(entry, amount, found).await?,
            };
            state.note(&entry.charge.key, is_same);
        }
        // A journal that does not move on would be read for ever.
        Ok(page.next.filter(|next| next.as_str() > after))
    }

    async fn ours(
        &self,
        captured: &[(&JournalEntry, Money)],
    ) -> Result<BTreeMap<String, RecordedPayment>, StoreError> {
        if captured.is_empty() {
            return Ok(BTreeMap::new());
        }
        let keys: Vec<String> = captured
            .iter()
            .map(|(entry, _)| entry.charge.key.clone())
            .collect();
        let mut conn = self.store.conn().await?;
        let rows = payments::by_gateway_keys(&mut conn, &keys).await?;
        Ok(rows
            .into_iter()
            .filter_map(|row| Some((row.gateway_key.clone()?, row)))
            .collect())
    }

    /// Makes a charge ours that is not here; `false` when it can't be.
    async fn take_over(
        &self,
        entry: &JournalEntry,
        amount: Money,
        found: &mut usize,
    ) -> Result<bool, StoreError> {
        let (Some(order_id), Some(method)) = (entry.charge.order_id, entry.method.clone()) else {
            return Ok(false);
        };
        let fresh = || PaymentId::parse(&contracts::ids::generate().to_string()).ok();
        let Some(id) = entry.reference.clone().or_else(fresh) else {
            return Ok(false);
        };
        if entry.charge.key != gateway_key(order_id) {
            return Ok(false);
        }
        let payment = PendingPayment {
            id,
            order_id,
            gateway_key: entry.charge.key.clone(),
            amount,
            method,
            attempts: 0,
        };
        let mut tx = self.store.begin().await?;
        let adopted = payments::adopt(&mut tx, &payment, LEASE).await?;
        tx.commit().await?;
        if adopted {
            metrics::counter!("payments_adopted_total").increment(1);
            self.comes_to_light(entry, found).await;
        }
        Ok(adopted)
    }

    async fn comes_to_light(&self, entry: &JournalEntry, found: &mut usize) {
        *found += 1;
        metrics::counter!("alarms_total", "kind" => "capture-unknown").increment(1);
        tracing::error!(
            gateway.key = entry.charge.key,
            "the gateway has captured what is not captured here; it is recorded now"
        );
        self.desk.news(entry.charge.clone()).await;
    }
}

impl State {
    /// Notes whether a capture is here as it is there; an alarm when it was not at two looks.
    fn note(&mut self, key: &str, is_same: bool) {
        if is_same {
            self.differ.remove(key);
            return;
        }
        let room = self.differ.len() < REMEMBERED;
        let difference = match self.differ.entry(key.to_owned()) {
            btree_map::Entry::Occupied(known) => known.into_mut(),
            btree_map::Entry::Vacant(new) if room => new.insert(Difference {
                since: self.looks,
                told: false,
            }),
            btree_map::Entry::Vacant(_) => return,
        };
        if difference.since < self.looks && !std::mem::replace(&mut difference.told, true) {
            metrics::counter!("alarms_total", "kind" => "gateway-differs").increment(1);
            tracing::error!(
                gateway.key = key,
                "the gateway has captured something else than our payment says"
            );
        }
    }

    #[cfg(test)]
    fn told(&self) -> usize {
        self.differ.values().filter(|one| one.told).count()
    }
}

/// What all keys of orders that were accepted at this moment come after: their ids begin with it.
fn first_key_at(at: Timestamp) -> String {
    let millis = at.timestamp_millis().max(0);
    format!("order-{:08x}-{:04x}-", millis >> 16, millis & 0xffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_after_the_moment_at_which_their_order_was_accepted() {
        let before = first_key_at(clock::now() - chrono::TimeDelta::milliseconds(5));
        let key = gateway_key(contracts::OrderId::generate());
        let after = first_key_at(clock::now() + chrono::TimeDelta::milliseconds(5));
        assert!(before < key && key < after, "{before} {key} {after}");
        assert_eq!(first_key_at(Timestamp::UNIX_EPOCH), "order-00000000-0000-");
    }

    #[test]
    fn a_difference_is_told_once_when_it_is_seen_at_two_looks() {
        let mut state = State::default();
        for (look, is_same, told) in [
            (1, false, 0),
            (1, false, 0),
            (2, true, 0),
            (3, false, 0),
            (4, false, 1),
            (5, false, 1),
            (6, true, 0),
        ] {
            state.looks = look;
            state.note("order-x", is_same);
            assert_eq!(state.told(), told, "at look {look}");
        }
    }
}
