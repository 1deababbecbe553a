//! Whether the gate is exact while orders keep coming, and since when.
//!
//! What is on its way differs for a moment at any time, so a difference counts when it has stood for
//! longer than the protocol lets it:
//! - a hold that the gate lacks, a limit that it keeps, a counter that is not the sum of its holds,
//!   the hold of an order that has ended: 2 s when the loss may have made it, that is when it was there
//!   as the gate was first seen open; else 8 s, which the repair of a lost call may take (P10);
//! - a hold without an order: an accept may be under way, or its process has died, so nothing is said
//!   before the sweep asks about it (5 s after it was taken, P2), and then it has two ticks (P5).
//!
//! The gate is exact from the first reading after which nothing wrong was seen any more. That is
//! known 2 s later; what is reported is the moment itself.

mod compare;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use domain::Shard;
use platform::clock;
use reservations::{Gate, GateConfig};
use store::{Store, StoreOptions, verify::facts};
use uuid::Uuid;

use self::compare::{Difference, Reading, compare};
use crate::faults::Site;

const LOOK_EVERY: Duration = Duration::from_millis(250);
/// What differs for so long is not on its way any more.
const ON_ITS_WAY: Duration = Duration::from_secs(2);
/// What comes up later may be a call that a busy system lost, and has so long to be repaired (P10).
const REPAIRED_WITHIN: Duration = Duration::from_secs(8);
/// After which it is not waited for any more; the target is 10 s (T11, T12).
pub const WITHIN: Duration = Duration::from_secs(30);
/// Differences that are named when the gate does not become exact.
const NAMED: usize = 5;

/// How long after a moment the gate was exact; `None` when it was not within 30 s.
///
/// # Errors
/// The clients can't be made; a server that does not answer is waited for.
pub async fn exact_after(site: &Site, from: Instant) -> anyhow::Result<Option<Duration>> {
    let options = StoreOptions::background(&site.plant.database_url, "chaos gate");
    let store = Store::connect(&options)?;
    let gate = Gate::new(GateConfig::new(site.plant.redis_url.clone()))?;
    let mut watch = Watch::default();
    let mut said = String::new();
    while from.elapsed() < WITHIN {
        match read(site, &store, &gate).await {
            Ok(reading) => {
                // A look takes its time on a busy machine; the gate was no later right than its end.
                let at = clock::monotonic();
                if let Some(exact) = watch.take(at, reading) {
                    store.close().await;
                    return Ok(Some(exact.saturating_duration_since(from)));
                }
                said = watch.say();
            }
            Err(error) => {
                watch = Watch::default();
                said = format!("{error:#}");
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    eprintln!("the gate is not exact after {WITHIN:?}: {said}");
    store.close().await;
    Ok(None)
}

async fn read(site: &Site, store: &Store, gate: &Gate) -> anyhow::Result<Reading> {
    let wanted = facts::gate(store).await?;
    let found = gate.snapshot(Shard(0)).await?;
    let now_ms = clock::now().timestamp_millis();
    let unknown: Vec<Uuid> = found
        .holds
        .keys()
        .map(|hold| hold.0)
        .filter(|hold| !wanted.holds.contains_key(hold))
        .collect();
    let known: Vec<(Uuid, String)> = sqlx::query_as(
        "select i.hold_id, o.status::text from idempotency i join orders o on o.id = i.order_id
         where i.hold_id = any($1)",
    )
    .bind(&unknown)
    .fetch_all(&mut site.plant.sql().await?)
    .await?;
    Ok(compare(
        &wanted,
        &found,
        &known.into_iter().collect(),
        now_ms,
    ))
}

/// Since when what differs differs, and since when nothing was wrong.
#[derive(Debug, Default)]
struct Watch {
    since: BTreeMap<Difference, Instant>,
    /// What differed when the gate was seen open for the first time.
    lost: Option<BTreeSet<Difference>>,
    exact: Option<Instant>,
    closed: bool,
}

impl Watch {
    /// Takes what was seen at a moment; gives the moment from which the gate is exact, once that is
    /// sure.
    fn take(&mut self, at: Instant, reading: Reading) -> Option<Instant> {
        self.closed = !reading.open;
        if self.closed {
            self.since.clear();
            self.lost = None;
            self.exact = None;
            return None;
        }
        if self.lost.is_none() {
            self.lost = Some(reading.differences.clone());
        }
        self.since
            .retain(|difference, _| reading.differences.contains(difference));
        for difference in reading.differences {
            self.since.entry(difference).or_insert(at);
        }
        if self.wrong(at).next().is_some() {
            self.exact = None;
            return None;
        }
        let exact = *self.exact.get_or_insert(at);
        (at.saturating_duration_since(exact) >= ON_ITS_WAY).then_some(exact)
    }

    fn wrong(&self, at: Instant) -> impl Iterator<Item = &Difference> {
        self.since
            .iter()
            .filter(move |(difference, since)| {
                let lost = self.lost.as_ref();
                let grace = if lost.is_some_and(|lost| lost.contains(difference)) {
                    ON_ITS_WAY
                } else {
                    REPAIRED_WITHIN
                };
                at.saturating_duration_since(**since) >= grace
            })
            .map(|(difference, _)| difference)
    }

    /// For people.
    fn say(&self) -> String {
        if self.closed {
            return "it is closed".to_owned();
        }
        let wrong: Vec<&Difference> = self.wrong(clock::monotonic()).collect();
        let named = &wrong[..wrong.len().min(NAMED)];
        format!("{} differences, as {named:?}", wrong.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(differences: &[Difference]) -> Reading {
        Reading {
            open: true,
            differences: differences.iter().cloned().collect(),
        }
    }

    fn hold(n: u128) -> Difference {
        Difference::Missing(Uuid::from_u128(n))
    }

    /// The first reading after which the gate is known to be exact, and since when, in half seconds.
    fn exact(readings: Vec<Reading>) -> Option<(usize, u32)> {
        let begun = clock::monotonic();
        let half = Duration::from_millis(500);
        let mut watch = Watch::default();
        let mut at = begun;
        for (number, reading) in readings.into_iter().enumerate() {
            if let Some(exact) = watch.take(at, reading) {
                let halves = (exact - begun).as_millis() / half.as_millis();
                return Some((number, u32::try_from(halves).unwrap()));
            }
            at += half;
        }
        None
    }

    #[test]
    fn what_is_on_its_way_is_nothing_wrong() {
        let changing = (0..20).map(|n| reading(&[hold(n), hold(n + 1)]));
        assert_eq!(exact(changing.collect()), Some((4, 0)));
    }

    #[test]
    fn what_stands_is_wrong_until_it_is_gone_and_for_ever_if_it_stays() {
        assert_eq!(exact((0..60).map(|_| reading(&[hold(1)])).collect()), None);
        let one = [hold(1)];
        let repaired = (0..20).map(|n| reading(if n < 6 { &one } else { &[] }));
        assert_eq!(exact(repaired.collect()), Some((10, 6)));
    }

    #[test]
    fn what_came_up_later_has_the_time_of_a_repair() {
        let readings = (0..60).map(|n| match n {
            0 => reading(&[hold(2)]),
            1..6 => reading(&[hold(1), hold(2)]),
            _ => reading(&[hold(1)]),
        });
        // What was lost is gone after 3 s, and a lost call is no loss.
        assert_eq!(exact(readings.collect()), Some((10, 6)));
        let readings = (0..60).map(|n| match n {
            0 => reading(&[hold(2)]),
            1..20 => reading(&[hold(1), hold(2)]),
            _ => reading(&[hold(1)]),
        });
        // Now nobody repairs the other.
        assert_eq!(exact(readings.collect()), None);
    }

    #[test]
    fn a_closed_gate_is_not_exact() {
        let closed = (0..20).map(|n| Reading {
            open: n >= 3,
            ..Reading::default()
        });
        assert_eq!(exact(closed.collect()), Some((7, 3)));
    }
}
