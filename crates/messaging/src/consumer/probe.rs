//! Asks the broker, through another client, whether records wait for this consumer.
//!
//! A client does not know when it is ill: after a broker's return one was seen that read and said
//! nothing more, without an error (librdkafka #5153, rust-rdkafka #597), and its statistics, lag
//! among them, stand still with it. A new client that reads what the old one does not is the proof.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use platform::{Shutdown, clock};
use rdkafka::{
    Message, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer},
};
use tokio::sync::oneshot;

use super::{
    Stall,
    shared::{Reached, Shared},
    watch::Progress,
};
use crate::{
    AdminError,
    admin::{self, Polled},
    client,
};

/// How often at the most.
const EVERY_MAX: Duration = Duration::from_secs(15);
/// The bounds of each answer: as long as the period, within these. No answer is never held against the
/// consumer.
const ANSWER_MIN: Duration = Duration::from_secs(2);
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// What was found longer ago says nothing of now: some periods, and the bounds of a few questions.
const FRESH: Duration = Duration::from_secs(60);

/// What another client found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// No broker that answers.
    Nobody,
    /// A broker; and per partition that has any, the offset from which on records can be read.
    Records(HashMap<i32, i64>),
}

/// What is known from all questions together.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// When the last was asked, and whether a broker answered.
    last: Option<(Instant, bool)>,
    /// Per partition, since when records wait from the same offset on.
    waiting: HashMap<i32, (Instant, i64)>,
}

impl Findings {
    /// Adds what was found on a question that was asked at `at`. A broker that was away is given the
    /// whole time again, and so is a partition that somebody reads.
    pub(super) fn add(&mut self, at: Instant, found: Found) {
        self.last = Some((at, found != Found::Nobody));
        let before = std::mem::take(&mut self.waiting);
        let Found::Records(records) = found else {
            return;
        };
        let since = |partition, from| match before.get(&partition) {
            Some((since, before)) if *before == from => *since,
            Some(_) | None => at,
        };
        self.waiting = records
            .into_iter()
            .map(|(partition, from)| (partition, (since(partition, from), from)))
            .collect();
    }

    /// Since when records wait that another client can read, in partitions whose offset `still` holds.
    pub(super) fn waiting(&self, still: impl Fn(i32, i64) -> bool) -> Option<Instant> {
        let waiting = self.waiting.iter();
        waiting
            .filter(|(partition, (_, from))| still(**partition, *from))
            .map(|(_, (since, _))| *since)
            .min()
    }

    /// What is known of the broker.
    pub(super) fn broker(&self, now: Instant) -> Broker {
        match self.last {
            Some((at, _)) if now.saturating_duration_since(at) >= FRESH => Broker::Unasked,
            Some((at, true)) => Broker::Answered(at),
            Some((_, false)) => Broker::Away,
            None => Broker::Unasked,
        }
    }
}

/// What is known of the broker from questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Broker {
    /// Nobody asked of late.
    Unasked,
    /// It did not answer.
    Away,
    /// It answered a question that was asked then.
    Answered(Instant),
}

/// Where to ask.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) brokers: String,
    pub(super) topic: String,
    pub(super) group: String,
}

/// How often it is asked: a few times before the rule strikes.
pub(super) fn every(rule: Stall) -> Duration {
    (rule.unready_after / 4).min(EVERY_MAX)
}

/// Asks once about the partitions that nothing was read from for a while, when there are any.
pub(super) async fn look(
    place: Place,
    every: Duration,
    shared: &Shared,
    progress: &Progress,
    shutdown: &Shutdown,
) {
    // whoever is no member is given nothing, and the records of the whole topic may wait for it
    let whole = !shared.is_member() && progress.age() >= every;
    let mut reached = shared.reached();
    reached.retain(|_, reached| whole || reached.at.elapsed() >= every);
    // a client that is to wait for room reads nothing, and rightly
    if shared.is_full(2) || (reached.is_empty() && !whole) {
        progress.forget_findings();
        return;
    }
    let at = clock::monotonic();
    let bound = every.clamp(ANSWER_MIN, ANSWER_MAX);
    let (tell, told) = oneshot::channel();
    // a thread of its own: a question that hangs must not hold up the end of the process
    let asked = std::thread::Builder::new()
        .name("probe".to_owned())
        .spawn(move || {
            let found = ask(&place, &reached, whole, bound).unwrap_or_else(|error| {
                let error: &dyn std::error::Error = &error;
                tracing::debug!(error, "the broker was asked in vain");
                Found::Nobody
            });
            // nobody listens at the end
            let _ = tell.send(found);
        });
    if let Err(error) = asked {
        tracing::warn!(%error, "no thread to ask the broker on");
        return;
    }
    tokio::select! {
        Ok(found) = told => progress.add_finding(at, found),
        () = shutdown.begun() => {}
    }
}

fn ask(
    place: &Place,
    reached: &HashMap<i32, Reached>,
    whole: bool,
    bound: Duration,
) -> Result<Found, AdminError> {
    let reader: BaseConsumer =
        client::reader(&place.brokers, &place.group).map_err(AdminError::Create)?;
    let mut partitions = match admin::partitions(&reader, &place.topic, bound) {
        Ok(partitions) => partitions,
        Err(AdminError::NoTopic(_)) => return Ok(Found::Records(HashMap::new())),
        Err(error) => return Err(error),
    };
    partitions.retain(|partition| whole || reached.contains_key(partition));
    if partitions.is_empty() {
        return Ok(Found::Records(HashMap::new()));
    }
    let mut open = HashMap::new();
    for lag in admin::group_lag(&reader, &place.topic, partitions, bound)? {
        let here = reached
            .get(&lag.partition)
            .map_or(0, |reached| reached.next);
        let from = lag.committed.unwrap_or(lag.low).max(lag.low).max(here);
        if from < lag.high {
            open.insert(lag.partition, from);
        }
    }
    readable(&reader, &place.topic, open, bound).map(Found::Records)
}

/// Those of the partitions that hold any record from the offset on: offsets alone don't say, for the
/// end of a transaction takes one too.
fn readable(
    reader: &BaseConsumer,
    topic: &str,
    from: HashMap<i32, i64>,
    bound: Duration,
) -> Result<HashMap<i32, i64>, AdminError> {
    let mut list = TopicPartitionList::new();
    for (partition, from) in &from {
        list.add_partition_offset(topic, *partition, Offset::Offset(*from))
            .map_err(AdminError::request("choose offsets"))?;
    }
    reader
        .assign(&list)
        .map_err(AdminError::request("read a topic"))?;
    let start = clock::monotonic();
    let mut found = HashMap::new();
    let mut open = from;
    while !open.is_empty() {
        match admin::poll(reader, bound.saturating_sub(start.elapsed()))? {
            Polled::Record(record) => found.extend(open.remove_entry(&record.partition())),
            Polled::End(partition) => {
                open.remove(&partition);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waiting in partition 1 from 10 or 11 on, or in partition 2.
    fn records(from: &[(i32, i64)]) -> Found {
        Found::Records(from.iter().copied().collect())
    }

    /// After each list of answers, one every 10 s from 0 on: since when records wait, and when a
    /// broker answered last (`None`: it is away).
    #[test]
    fn only_answers_without_a_break_from_the_same_offset_add_up() {
        let nothing = || records(&[]);
        let (r10, r11) = (|| records(&[(1, 10)]), || records(&[(1, 11)]));
        let cases: Vec<(Vec<Found>, Option<u64>, Option<u64>)> = vec![
            (vec![nothing()], None, Some(0)),
            (vec![r10()], Some(0), Some(0)),
            (vec![r10(), r10(), r10()], Some(0), Some(20)),
            (vec![nothing(), r10(), r10()], Some(10), Some(20)),
            // somebody reads on, if slowly
            (vec![r10(), r10(), r11()], Some(20), Some(20)),
            // it was all read meanwhile
            (vec![r10(), r10(), nothing()], None, Some(20)),
            // one partition stands still while others are read
            (
                vec![
                    r10(),
                    records(&[(1, 10), (2, 5)]),
                    records(&[(1, 10), (2, 6)]),
                ],
                Some(0),
                Some(20),
            ),
            (vec![r10(), records(&[(2, 10)])], Some(10), Some(10)),
            // the broker is away, or was: nothing is held against the consumer
            (vec![r10(), r10(), Found::Nobody], None, None),
            (vec![r10(), Found::Nobody, r10()], Some(20), Some(20)),
        ];
        let start = clock::monotonic();
        for (all, waiting, answered) in cases {
            let mut findings = Findings::default();
            assert_eq!(findings.broker(start), Broker::Unasked);
            for (at, found) in (0..).step_by(10).zip(all.clone()) {
                findings.add(start + Duration::from_secs(at), found);
            }
            let at = |seconds: u64| start + Duration::from_secs(seconds);
            assert_eq!(findings.waiting(|_, _| true), waiting.map(at), "{all:?}");
            assert_eq!(findings.waiting(|_, _| false), None);
            let broker = answered.map_or(Broker::Away, |then| Broker::Answered(at(then)));
            assert_eq!(findings.broker(at(25)), broker, "{all:?}");
            assert_eq!(findings.broker(at(25) + FRESH), Broker::Unasked, "{all:?}");
        }
    }
}
