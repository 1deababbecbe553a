//! Every rule about time in one place. All are decided on PostgreSQL's clock.

use std::{collections::BTreeMap, time::Duration};

use contracts::{PaymentMethod, Timestamp};

/// A request is never accepted later than this after its receipt (P1, P11).
pub const ACCEPT_WITHIN: Duration = Duration::from_secs(2);

/// When the gate asks first about a fresh hold: by then no accept can start any more (P5).
pub const FIRST_CHECK: Duration = Duration::from_secs(5);

/// When the gate asks again about a hold that lives (P5).
pub const NEXT_CHECK: Duration = Duration::from_secs(30);

/// How much of a hold must be left when a charge begins is at most this, or a quarter of its ttl
/// (P5: `min_left`).
pub const MIN_LEFT_MAX: Duration = Duration::from_secs(10);

/// How long past its deadline an order with a payment in flight is not expired (P5).
pub const PAYMENT_GRACE: Duration = Duration::from_secs(60);

/// Expiry pauses at most this long for an outage of ours, and gives at most this much back (P5):
/// orders must end some day.
pub const PAUSED_AT_MOST: Duration = Duration::from_secs(30 * 60);

/// Hours for which a key outlives its order (P11).
pub const KEY_LIVES_HOURS: i64 = 25;

/// The shortest and the longest reservation in seconds.
pub const TTL_SECONDS: std::ops::RangeInclusive<i32> = 1..=86_400;

/// The longest that a hold may live by any rule but an outage of ours, in seconds.
pub const CAP_SECONDS: std::ops::RangeInclusive<u32> = 1..=604_800;

/// How long holds last and how they are renewed (P5). The defaults renew nothing.
///
/// A hold begins with the smallest ttl of its SKUs, or with that of its payment method when it has
/// one. It may be renewed when a payment begins and when an attempt fails without being final, so
/// that the buyer can try again. No rule shortens a hold, and none carries it beyond `cap` after
/// its beginning: it can't be renewed for ever. (What an outage of ours took is given back beyond
/// that: it was never the buyer's.)
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldRules {
    by_method: BTreeMap<PaymentMethod, i32>,
    payment_begins: Duration,
    attempt_failed: Duration,
    cap: Duration,
}

/// Why a hold may be renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// A payment begins: it must have so much time.
    PaymentBegins,
    /// An attempt failed and was not final: the next must have so much time.
    AttemptFailed,
}

/// Why settings are no rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HoldRulesError {
    /// Not a list of `method=seconds`.
    #[error("{0:?} is not method=seconds with a whole number of seconds of at least 1")]
    Method(String),
    /// The cap is out of its bounds.
    #[error("the cap must be from {} to {} seconds, not {}", CAP_SECONDS.start(), CAP_SECONDS.end(), .0)]
    Cap(u32),
    /// A rule would be cut by the cap in each case.
    #[error("{0} seconds are beyond the cap")]
    BeyondCap(u32),
}

impl Default for HoldRules {
    fn default() -> Self {
        Self {
            by_method: BTreeMap::new(),
            payment_begins: Duration::ZERO,
            attempt_failed: Duration::ZERO,
            cap: Duration::from_secs(u64::from(TTL_SECONDS.end().unsigned_abs())),
        }
    }
}

impl HoldRules {
    /// Rules from settings: `by_method` is `method=seconds`, comma-separated; the others are
    /// seconds, 0 renews nothing.
    ///
    /// # Errors
    /// [`HoldRulesError`].
    pub fn parse(
        by_method: &str,
        payment_begins: u32,
        attempt_failed: u32,
        cap: u32,
    ) -> Result<Self, HoldRulesError> {
        if !CAP_SECONDS.contains(&cap) {
            return Err(HoldRulesError::Cap(cap));
        }
        let mut methods = BTreeMap::new();
        for pair in by_method
            .split(',')
            .map(str::trim)
            .filter(|p| !p.is_empty())
        {
            let wrong = || HoldRulesError::Method(pair.to_owned());
            let (method, seconds) = pair.split_once('=').ok_or_else(wrong)?;
            let method = PaymentMethod::parse(method.trim()).map_err(|_| wrong())?;
            let seconds: i32 = seconds.trim().parse().map_err(|_| wrong())?;
            if seconds < 1 || methods.insert(method, seconds).is_some() {
                return Err(wrong());
            }
        }
        let given = methods.values().map(|seconds| seconds.unsigned_abs());
        let beyond = given
            .chain([payment_begins, attempt_failed])
            .find(|seconds| *seconds > cap);
        if let Some(beyond) = beyond {
            return Err(HoldRulesError::BeyondCap(beyond));
        }
        let seconds = |seconds: u32| Duration::from_secs(u64::from(seconds));
        Ok(Self {
            by_method: methods,
            payment_begins: seconds(payment_begins),
            attempt_failed: seconds(attempt_failed),
            cap: seconds(cap),
        })
    }

    /// How long a new hold lasts, given the smallest ttl of its SKUs.
    #[must_use]
    pub fn ttl_seconds(&self, of_skus: i32, method: &PaymentMethod) -> i32 {
        let ttl = self.by_method.get(method).copied().unwrap_or(of_skus);
        ttl.min(i32::try_from(self.cap.as_secs()).unwrap_or(i32::MAX))
    }

    /// Whether any hold is ever renewed for this reason.
    #[must_use]
    pub fn renews(&self, why: Renewal) -> bool {
        !self.least(why).is_zero()
    }

    /// The later deadline that a hold gets at `now`; `None` when it keeps the one it has.
    #[must_use]
    pub fn renewed(
        &self,
        why: Renewal,
        created_at: Timestamp,
        reserved_until: Timestamp,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let least = self.least(why);
        if least.is_zero() {
            return None;
        }
        let until = (now + least).min(created_at + self.cap);
        (until > reserved_until).then_some(until)
    }

    fn least(&self, why: Renewal) -> Duration {
        match why {
            Renewal::PaymentBegins => self.payment_begins,
            Renewal::AttemptFailed => self.attempt_failed,
        }
    }
}
