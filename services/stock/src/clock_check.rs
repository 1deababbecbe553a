//! Whether PostgreSQL's clock may be believed: it is compared with this process's monotonic clock
//! between ticks, and a jump holds expiry (P5). How many orders are due is no signal: after a flash
//! sale all fall due together.

use std::time::{Duration, Instant};

use contracts::Timestamp;

/// The smallest disagreement that holds expiry.
pub(crate) const DISAGREEMENT: Duration = Duration::from_secs(5);

/// How long a jump holds expiry before the new time is believed: a clock that was set right stays
/// as it is, and orders must end some day.
pub(crate) const HELD_AT_MOST: Duration = Duration::from_secs(30 * 60);

/// What a comparison says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clocks {
    /// They agree.
    Agree,
    /// They differ by so much: expiry is held.
    Disagree(Duration),
}

/// Both clocks as they were when they last agreed.
#[derive(Debug, Default)]
pub(crate) struct ClockCheck {
    agreed: Option<(Timestamp, Instant)>,
    held_since: Option<Instant>,
}

impl ClockCheck {
    /// Compares two readings made at the same moment.
    pub(crate) fn compare(&mut self, wall: Timestamp, monotonic: Instant) -> Clocks {
        let Some((wall_before, monotonic_before)) = self.agreed else {
            self.agreed = Some((wall, monotonic));
            return Clocks::Agree;
        };
        let passed = monotonic.saturating_duration_since(monotonic_before);
        let shown = wall - wall_before;
        let by = match shown.to_std() {
            Ok(shown) => shown.abs_diff(passed),
            Err(_) => shown
                .abs()
                .to_std()
                .unwrap_or(Duration::MAX)
                .saturating_add(passed),
        };
        if by < DISAGREEMENT {
            self.agreed = Some((wall, monotonic));
            self.held_since = None;
            return Clocks::Agree;
        }
        let since = *self.held_since.get_or_insert(monotonic);
        if monotonic.saturating_duration_since(since) >= HELD_AT_MOST {
            self.agreed = Some((wall, monotonic));
            self.held_since = None;
            return Clocks::Agree;
        }
        Clocks::Disagree(by)
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    fn wall(seconds: i64) -> Timestamp {
        chrono::DateTime::UNIX_EPOCH + TimeDelta::seconds(1_800_000_000 + seconds)
    }

    #[test]
    fn a_jump_of_five_seconds_holds_expiry_and_a_jump_back_frees_it() {
        let start = platform::clock::monotonic();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut check = ClockCheck::default();
        assert_eq!(check.compare(wall(0), at(0)), Clocks::Agree);
        assert_eq!(check.compare(wall(1), at(1)), Clocks::Agree);
        assert_eq!(
            check.compare(wall(3_602), at(2)),
            Clocks::Disagree(Duration::from_secs(3600))
        );
        assert_eq!(
            check.compare(wall(-7), at(3)),
            Clocks::Disagree(Duration::from_secs(10))
        );
        assert_eq!(check.compare(wall(4), at(4)), Clocks::Agree);
    }

    #[test]
    fn slow_drift_and_a_late_tick_hold_nothing() {
        let start = platform::clock::monotonic();
        let mut check = ClockCheck::default();
        let mut shown = 0;
        for tick in 0..10_u64 {
            assert_eq!(
                check.compare(wall(shown), start + Duration::from_secs(60 * tick)),
                Clocks::Agree
            );
            shown += 64;
        }
    }

    #[test]
    fn a_clock_that_stays_jumped_is_believed_after_half_an_hour() {
        let start = platform::clock::monotonic();
        let mut check = ClockCheck::default();
        check.compare(wall(0), start);
        for minute in 1..=30_u64 {
            let shown = i64::try_from(minute).unwrap() * 60 + 100;
            let verdict = check.compare(wall(shown), start + Duration::from_secs(60 * minute));
            assert_eq!(verdict, Clocks::Disagree(Duration::from_secs(100)));
        }
        let after = start + Duration::from_secs(31 * 60);
        assert_eq!(check.compare(wall(31 * 60 + 100), after), Clocks::Agree);
    }
}
