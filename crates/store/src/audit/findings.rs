//! Rules asked as one statement, and what each found. Guarantee: one finding per invariant, clean
//! ones too; offenders are counted up to a bound, and the first of them are named.

use std::fmt::Write as _;

use sqlx::Row;

use super::rules::{LiveRule, OFFENDERS_COUNTED};
use crate::{
    Result,
    error::Doing,
    verify::{OFFENDERS_MAX, Payments},
};

/// What one rule found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The invariant, for example `I2`.
    pub id: &'static str,
    /// How many offenders there are; counted up to 1,000.
    pub count: usize,
    /// The first of them, each as `ID: both sides`.
    pub offenders: Vec<String>,
}

/// One statement of all rules of a lane: `(position of the rule, offender)`.
pub(super) fn union(rules: &[LiveRule], payments: Payments) -> String {
    let mut sql = String::new();
    for (position, rule) in rules.iter().enumerate() {
        let of_rule = match payments {
            Payments::Internal => rule.sql,
            Payments::Upstream => rule.sql_upstream.unwrap_or(rule.sql),
        };
        let joint = if position == 0 { "" } else { " union all " };
        // Writing to a string can't fail.
        let _ = write!(
            sql,
            "{joint}(select {position}::integer, x.* from ({of_rule}) x limit {OFFENDERS_COUNTED})"
        );
    }
    sql
}

pub(super) struct Collected(Finding);

impl Collected {
    pub(super) fn new(id: &'static str) -> Self {
        Self(Finding {
            id,
            count: 0,
            offenders: Vec::new(),
        })
    }

    pub(super) fn take(&mut self, offender: Option<String>) {
        if let Some(offender) = offender {
            self.0.count += 1;
            if self.0.offenders.len() < OFFENDERS_MAX {
                self.0.offenders.push(offender);
            }
        }
    }

    pub(super) fn finding(self) -> Finding {
        self.0
    }
}

/// One finding per invariant of the lane, in the order of its rules, clean ones too.
pub(super) fn findings(
    rules: &[LiveRule],
    rows: Vec<sqlx::postgres::PgRow>,
) -> Result<Vec<Finding>> {
    let doing = "read what a rule found";
    let mut found: Vec<Collected> = Vec::new();
    let mut places = Vec::with_capacity(rules.len());
    for rule in rules {
        let known = found.iter().position(|one| one.0.id == rule.id);
        places.push(known.unwrap_or_else(|| {
            found.push(Collected::new(rule.id));
            found.len() - 1
        }));
    }
    for row in rows {
        let position: i32 = row.try_get(0).doing(doing)?;
        let place = usize::try_from(position)
            .ok()
            .and_then(|position| places.get(position));
        if let Some(one) = place.and_then(|place| found.get_mut(*place)) {
            one.take(row.try_get(1).doing(doing)?);
        }
    }
    Ok(found.into_iter().map(Collected::finding).collect())
}
