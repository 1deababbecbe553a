//! Paired benchmarks: the baselines that Holdfast is measured against, and how numbers are written.
//!
//! Guarantee: whoever measures returns an error, and no number, when an invariant is broken, when
//! the two sides did unequal work, or when a server did not start.

pub mod accepts;
pub mod counters;
mod for_update;
mod slice;

use std::path::Path;

use anyhow::Context;
use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

/// One connection that sends one request at a time: both sides are asked by the same client.
pub trait Client: Sized + Send + 'static {
    /// A client of the server at `url` that shows `key`.
    ///
    /// # Errors
    /// The URL can't be used.
    fn new(url: &str, key: &str) -> anyhow::Result<Self>;

    /// Sends a request; the status of its answer, whose body was read to its end.
    ///
    /// # Errors
    /// No answer.
    fn send(
        &mut self,
        method: &'static str,
        path: &str,
        idempotency_key: Option<&str>,
        body: Option<Bytes>,
    ) -> impl Future<Output = anyhow::Result<u16>> + Send;
}

/// The middle and the ends of repeated readings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// As many are greater as are smaller; of an even number, the greater of the two in the middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// `None` of nothing.
    #[must_use]
    pub fn of(readings: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = readings.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            median: *sorted.get(sorted.len() / 2)?,
            min: *sorted.first()?,
            max: *sorted.last()?,
        })
    }
}

/// One line of `summary.json`.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// What was measured.
    pub name: String,
    /// Our median.
    pub ours: f64,
    /// The baseline's median, of a paired measure.
    pub other: Option<f64>,
    /// Ours divided by the baseline's, pair by pair.
    pub ratio: Option<Spread>,
    /// Of `ours` and `other`.
    pub unit: &'static str,
    /// What must be reached: by the ratio of a paired measure, else by `ours`.
    pub gate: Option<f64>,
    /// What is wanted.
    pub goal: Option<f64>,
    /// Whether the gate was reached.
    pub ok: bool,
    /// What else was seen.
    pub details: Value,
}

/// Writes a document into the folder of results.
///
/// # Errors
/// It can't be written.
pub fn write<T: Serialize + ?Sized>(folder: &Path, name: &str, value: &T) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let path = folder.join(format!("{name}.json"));
    let text = serde_json::to_string_pretty(value)?;
    std::fs::write(&path, text + "\n").with_context(|| format!("writing {}", path.display()))
}

/// Counts as numbers that can be divided; what is beyond 2^32 has lost its meaning here anyway.
#[must_use]
pub fn number(count: i64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_not_moved_by_the_ends() {
        let spread = Spread::of([9.0, 1.0, 3.0, 2.0, 100.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max), (3.0, 1.0, 100.0));
        assert_eq!(Spread::of([]), None);
    }
}
