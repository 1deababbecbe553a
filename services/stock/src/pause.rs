//! When expiry pauses because of us, and when it goes on: pure (P5).
//!
//! Events that don't get out, or a consumer that doesn't run, are no fault of the buyer: while they
//! last nobody's order expires, and afterwards deadlines move by what was lost.

use std::time::Duration;

use chrono::TimeDelta;
use contracts::Timestamp;
use domain::deadline::PAUSED_AT_MOST;
use store::outages::Signals;

/// The oldest unpublished event may be this old.
pub(crate) const UNPUBLISHED_AT_MOST: Duration = Duration::from_secs(5);

/// A required consumer must have been alive this recently.
pub(crate) const SILENT_AT_MOST: Duration = Duration::from_secs(10);

/// What is to be done about expiry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// Nothing is wrong, or it has been wrong for longer than a pause may last.
    Run,
    /// An outage begins; nothing expires.
    Open {
        /// For people.
        reason: String,
        /// When it began, which is before it was noticed; never before the end of the last one,
        /// so that no time is given back twice.
        since: Timestamp,
    },
    /// Nothing expires: the outage lasts, or it costs nobody anything yet (a first start).
    Pause,
    /// The outage is over as of then: deadlines move, and when all have, expiry runs.
    Close {
        /// Its end.
        at: Timestamp,
        /// Since when something is wrong again, while deadlines move: another outage, that begins when
        /// this one has ended at the soonest, and is one even if it is over before all have moved.
        again: Option<Timestamp>,
    },
}

/// Judges the signals.
#[must_use]
pub(crate) fn judge(signals: &Signals) -> Judgement {
    let (longest, complaint) = (delta(PAUSED_AT_MOST), complaint(signals));
    if let Some(open) = &signals.open
        && let Some(at) = open.ended_at
    {
        let another = complaint.filter(|complaint| !complaint.is_used_up(open.opened_at, at));
        let again = another.map(|complaint| complaint.began.unwrap_or(signals.now).max(at));
        return Judgement::Close { at, again };
    }
    match (&signals.open, complaint) {
        (None, None) => Judgement::Run,
        (None, Some(_)) if !signals.anyone_waits => Judgement::Pause,
        (None, Some(complaint)) => {
            let began = complaint.began.unwrap_or(signals.now);
            let Some(last) = signals.last_closed else {
                return Judgement::Open {
                    reason: complaint.reason,
                    since: began,
                };
            };
            if complaint.is_used_up(last.opened_at, last.closed_at) {
                return Judgement::Run;
            }
            Judgement::Open {
                reason: complaint.reason,
                since: began.max(last.closed_at),
            }
        }
        (Some(_), None) => Judgement::Close {
            at: signals.now,
            again: None,
        },
        (Some(open), Some(_)) if signals.now - open.opened_at >= longest => Judgement::Close {
            at: open.opened_at + longest,
            again: None,
        },
        (Some(_), Some(_)) => Judgement::Pause,
    }
}

struct Complaint {
    reason: String,
    began: Option<Timestamp>,
}

impl Complaint {
    /// Whether it is what caused a pause that was cut short by its bound, and may not pause again.
    fn is_used_up(&self, opened_at: Timestamp, ended_at: Timestamp) -> bool {
        self.began.is_none_or(|began| began <= ended_at)
            && ended_at - opened_at >= delta(PAUSED_AT_MOST)
    }
}

fn complaint(signals: &Signals) -> Option<Complaint> {
    if let Some(oldest) = signals.oldest_unpublished
        && signals.now - oldest > delta(UNPUBLISHED_AT_MOST)
    {
        return Some(Complaint {
            reason: "events are not published".to_owned(),
            began: Some(oldest),
        });
    }
    let silent =
        |at: &Option<Timestamp>| at.is_none_or(|at| signals.now - at > delta(SILENT_AT_MOST));
    signals
        .heartbeats
        .iter()
        .find(|(_, at)| silent(at))
        .map(|(name, at)| Complaint {
            reason: format!("consumer {name} does not run"),
            began: *at,
        })
}

fn delta(duration: Duration) -> TimeDelta {
    TimeDelta::from_std(duration).unwrap_or(TimeDelta::MAX)
}

#[cfg(test)]
mod tests {
    use store::outages::{ClosedOutage, Outage};

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        chrono::DateTime::UNIX_EPOCH + TimeDelta::seconds(1_800_000_000 + seconds)
    }

    fn calm(now: i64) -> Signals {
        Signals {
            now: at(now),
            oldest_unpublished: Some(at(now - 1)),
            anyone_waits: true,
            heartbeats: vec![
                ("payment".into(), Some(at(now - 2))),
                ("stock".into(), Some(at(now))),
            ],
            open: None,
            last_closed: None,
        }
    }

    fn open_since(seconds: i64) -> Option<Outage> {
        Some(Outage {
            id: uuid::Uuid::nil(),
            reason: "x".into(),
            opened_at: at(seconds),
            ended_at: None,
        })
    }

    #[test]
    fn an_outage_begins_when_its_evidence_does_and_ends_when_all_is_well() {
        assert_eq!(judge(&calm(100)), Judgement::Run);
        let stuck = Signals {
            oldest_unpublished: Some(at(94)),
            ..calm(100)
        };
        assert_eq!(
            judge(&stuck),
            Judgement::Open {
                reason: "events are not published".into(),
                since: at(94)
            }
        );
        let lasting = Signals {
            open: open_since(94),
            ..stuck
        };
        assert_eq!(judge(&lasting), Judgement::Pause);
        let over = Signals {
            open: open_since(94),
            ..calm(130)
        };
        let close = Judgement::Close {
            at: at(130),
            again: None,
        };
        assert_eq!(judge(&over), close);
    }

    #[test]
    fn an_outage_that_has_ended_is_closed_as_of_then_and_what_goes_wrong_meanwhile_is_another() {
        let closes = |(opened, ended), (now, oldest)| {
            let open = open_since(opened).map(|open| Outage {
                ended_at: Some(at(ended)),
                ..open
            });
            let signals = Signals {
                open,
                oldest_unpublished: Some(at(oldest)),
                ..calm(now)
            };
            match judge(&signals) {
                Judgement::Close { at: end, again } => {
                    assert_eq!(end, at(ended));
                    again
                }
                other => panic!("{other:?}"),
            }
        };
        for now in [131, 140, 5_000] {
            assert_eq!(closes((94, 130), (now, now - 1)), None);
        }
        assert_eq!(closes((94, 130), (140, 133)), Some(at(133)));
        assert_eq!(closes((94, 130), (131, 94)), Some(at(130)));
        // What a pause of half an hour was for pauses no more; what came later does.
        assert_eq!(closes((0, 1_800), (1_801, 0)), None);
        assert_eq!(closes((0, 1_800), (1_820, 1_810)), Some(at(1_810)));
    }

    #[test]
    fn a_silent_consumer_pauses_and_so_does_one_that_never_ran() {
        let silent = Signals {
            heartbeats: vec![("stock".into(), Some(at(80)))],
            ..calm(100)
        };
        assert_eq!(
            judge(&silent),
            Judgement::Open {
                reason: "consumer stock does not run".into(),
                since: at(80)
            }
        );
        let never = Signals {
            heartbeats: vec![("payment".into(), None)],
            ..calm(100)
        };
        assert_eq!(
            judge(&never),
            Judgement::Open {
                reason: "consumer payment does not run".into(),
                since: at(100)
            }
        );
    }

    #[test]
    fn nothing_is_opened_while_nobody_waits() {
        let first_start = Signals {
            heartbeats: vec![("payment".into(), None)],
            anyone_waits: false,
            ..calm(100)
        };
        assert_eq!(judge(&first_start), Judgement::Pause);
    }

    #[test]
    fn no_time_is_given_back_twice() {
        let last = ClosedOutage {
            opened_at: at(0),
            closed_at: at(98),
        };
        let again = Signals {
            oldest_unpublished: Some(at(94)),
            last_closed: Some(last),
            ..calm(100)
        };
        assert_eq!(
            judge(&again),
            Judgement::Open {
                reason: "events are not published".into(),
                since: at(98)
            }
        );
    }

    #[test]
    fn a_pause_ends_after_half_an_hour_and_its_cause_pauses_no_more() {
        let stuck = |now: i64| Signals {
            oldest_unpublished: Some(at(0)),
            ..calm(now)
        };
        let lasting = Signals {
            open: open_since(0),
            ..stuck(1_799)
        };
        assert_eq!(judge(&lasting), Judgement::Pause);
        let too_long = Signals {
            open: open_since(0),
            ..stuck(1_900)
        };
        let close = Judgement::Close {
            at: at(1_800),
            again: None,
        };
        assert_eq!(judge(&too_long), close);
        let last = Some(ClosedOutage {
            opened_at: at(0),
            closed_at: at(1_800),
        });
        assert_eq!(
            judge(&Signals {
                last_closed: last,
                ..stuck(1_901)
            }),
            Judgement::Run
        );
        let another = Signals {
            oldest_unpublished: Some(at(5_000)),
            last_closed: last,
            ..calm(5_010)
        };
        assert_eq!(
            judge(&another),
            Judgement::Open {
                reason: "events are not published".into(),
                since: at(5_000)
            }
        );
    }
}
