//! What is wrong with a gate, judged from two sightings: pure (P10).
//!
//! A sighting reads PostgreSQL, then the gate, and neither stands still; so a difference counts only
//! when a second sighting, 2 s later, shows that it was none of the moment.

use domain::Register;
use reservations::{GateRead, GateRow};

/// A SKU in both stores, PostgreSQL read first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sighting {
    /// What the gate should know.
    pub(crate) register: Register,
    /// `stock.held`.
    pub(crate) held: i64,
    /// What the gate knows.
    pub(crate) gate: GateRead,
}

/// What is to be done about a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cure {
    /// Tell it again what PostgreSQL says.
    PutRegister,
    /// Its holds are to be compared one by one.
    CompareHolds,
    /// Nothing that it is told can put it right: the shard needs a new epoch.
    Rebuild(&'static str),
}

impl Sighting {
    /// Units that the gate holds beyond PostgreSQL's.
    fn surplus(&self) -> Option<i64> {
        match self.gate {
            GateRead::Row(row) => Some(row.held - self.held),
            GateRead::Missing | GateRead::Damaged => None,
        }
    }

    /// Whether the gate differs from PostgreSQL now and did before, by other units: it sells, and
    /// [`judge`] can't tell whether something is wrong beside that.
    #[must_use]
    pub(crate) fn is_moving(&self, now: &Self) -> bool {
        let of = |sighting: &Self| sighting.surplus().filter(|units| *units != 0);
        matches!((of(self), of(now)), (Some(before), Some(now)) if before != now)
    }

    /// What breaks `held <= limit` at the gate.
    #[must_use]
    pub(crate) fn beyond_limit(&self) -> Option<String> {
        match self.gate {
            GateRead::Row(row) if row.held > row.limit => {
                Some(format!("held {} > limit {}", row.held, row.limit))
            }
            GateRead::Row(_) | GateRead::Missing | GateRead::Damaged => None,
        }
    }

    /// The gate and the stock, for people.
    #[must_use]
    pub(crate) fn both_sides(&self) -> String {
        let at_gate = match self.gate {
            GateRead::Row(row) => format!("limit {}, held {}", row.limit, row.held),
            GateRead::Missing => "nothing".to_owned(),
            GateRead::Damaged => "damaged".to_owned(),
        };
        format!(
            "{at_gate} at the gate; limit {}, held {} in stock",
            self.register.limit, self.held
        )
    }

    fn same_version_other_content(&self, row: &GateRow) -> bool {
        row.version == self.register.version
            && (
                row.limit,
                row.opens_at_ms,
                row.closes_at_ms,
                row.per_customer_limit,
            ) != (
                self.register.limit,
                self.register.opens_at_ms,
                self.register.closes_at_ms,
                self.register.per_customer_limit,
            )
    }
}

/// Judges two sightings of one SKU; `None` when nothing is wrong, or it may be of the moment.
#[must_use]
pub(crate) fn judge(before: &Sighting, now: &Sighting) -> Option<Cure> {
    let (earlier, row) = match (&before.gate, &now.gate) {
        (GateRead::Missing, GateRead::Missing) => return Some(Cure::PutRegister),
        (GateRead::Damaged, GateRead::Damaged) => return Some(Cure::Rebuild("damaged")),
        (GateRead::Row(earlier), GateRead::Row(row)) => (earlier, row),
        (GateRead::Row(_), GateRead::Missing | GateRead::Damaged)
        | (GateRead::Missing, GateRead::Row(_) | GateRead::Damaged)
        | (GateRead::Damaged, GateRead::Row(_) | GateRead::Missing) => return None,
    };
    // What PostgreSQL said 2 s ago has not arrived.
    if row.version < before.register.version {
        return Some(Cure::PutRegister);
    }
    // What the gate knew 2 s ago PostgreSQL does not know yet: it was set back, or the gate raves.
    if earlier.version > now.register.version {
        return Some(Cure::Rebuild("version ahead"));
    }
    let same = earlier.version == row.version;
    if same && before.same_version_other_content(earlier) && now.same_version_other_content(row) {
        return Some(Cure::Rebuild("register"));
    }
    let surplus = now.surplus();
    (surplus != Some(0) && surplus == before.surplus()).then_some(Cure::CompareHolds)
}

#[cfg(test)]
mod tests {
    use contracts::Sku;

    use super::*;

    fn sighting(version: i64, limit: i64, held: i64, gate: GateRead) -> Sighting {
        let register = Register {
            sku: Sku::parse("A").unwrap(),
            limit,
            version,
            opens_at_ms: None,
            closes_at_ms: None,
            per_customer_limit: None,
        };
        Sighting {
            register,
            held,
            gate,
        }
    }

    fn row(version: i64, limit: i64, held: i64) -> GateRead {
        GateRead::Row(GateRow {
            limit,
            version,
            held,
            opens_at_ms: None,
            closes_at_ms: None,
            per_customer_limit: None,
        })
    }

    #[test]
    fn what_moves_is_not_drift() {
        let calm = sighting(3, 10, 2, row(3, 10, 2));
        assert_eq!(judge(&calm, &calm), None);
        let before = sighting(3, 10, 2, row(3, 10, 5));
        assert_eq!(judge(&before, &sighting(3, 10, 4, row(3, 10, 9))), None);
        assert_eq!(judge(&before, &sighting(4, 9, 4, row(3, 10, 4))), None);
        assert_eq!(
            judge(
                &sighting(3, 10, 2, row(4, 9, 2)),
                &sighting(5, 8, 2, row(5, 8, 2))
            ),
            None
        );
        assert_eq!(judge(&sighting(3, 10, 2, GateRead::Missing), &calm), None);
    }

    #[test]
    fn a_difference_that_changes_hides_drift() {
        let by = |units: i64| sighting(3, 10, 2, row(3, 10, 2 + units));
        assert!(by(1).is_moving(&by(-2)));
        assert!(!by(1).is_moving(&by(1)), "that is judged");
        assert!(!by(0).is_moving(&by(3)) && !by(3).is_moving(&by(0)));
        assert!(!by(1).is_moving(&sighting(3, 10, 2, GateRead::Missing)));
    }

    #[test]
    fn what_stays_is() {
        let missing = sighting(3, 10, 2, GateRead::Missing);
        assert_eq!(judge(&missing, &missing), Some(Cure::PutRegister));
        let late = sighting(3, 10, 2, row(2, 11, 2));
        assert_eq!(judge(&late, &late), Some(Cure::PutRegister));
        let damaged = sighting(3, 10, 2, GateRead::Damaged);
        assert_eq!(judge(&damaged, &damaged), Some(Cure::Rebuild("damaged")));
        let ahead = sighting(3, 10, 2, row(9, 1, 2));
        assert_eq!(judge(&ahead, &ahead), Some(Cure::Rebuild("version ahead")));
        let other = sighting(3, 10, 2, row(3, 12, 2));
        assert_eq!(judge(&other, &other), Some(Cure::Rebuild("register")));
        let surplus = sighting(3, 10, 2, row(3, 10, 3));
        assert_eq!(judge(&surplus, &surplus), Some(Cure::CompareHolds));
    }
}
