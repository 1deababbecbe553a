//! What a redrive did, for people and for programs.

use messaging::Redriven;
use serde::Serialize;
use uuid::Uuid;

use crate::output::{self, Format};

/// What became of the dead letters.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// How many have had their effect, or would have.
    pub replayed: u64,
    /// How many had nothing left to do.
    pub already_done: u64,
    /// How many stay open.
    pub failed_again: u64,
    /// Each, in the order in which they were taken.
    pub letters: Vec<Outcome>,
}

/// What became of one.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Its id.
    pub id: Uuid,
    /// `replayed`, `already_done` or `failed_again`.
    pub outcome: &'static str,
    /// Why it failed again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Report {
    /// Counts one.
    pub(super) fn add(&mut self, id: Uuid, redriven: Redriven) {
        let (outcome, count, reason) = match redriven {
            Redriven::Replayed => ("replayed", &mut self.replayed, None),
            Redriven::AlreadyDone => ("already_done", &mut self.already_done, None),
            Redriven::FailedAgain(reason) => ("failed_again", &mut self.failed_again, Some(reason)),
        };
        *count += 1;
        self.letters.push(Outcome {
            id,
            outcome,
            reason,
        });
    }

    /// Prints it.
    pub(super) fn print(&self, format: Format) -> anyhow::Result<()> {
        if format != Format::Table {
            return output::json(format, self);
        }
        let rows: Vec<[String; 3]> = self
            .letters
            .iter()
            .map(|letter| {
                let reason = letter.reason.clone().unwrap_or_default();
                [letter.id.to_string(), letter.outcome.to_owned(), reason]
            })
            .collect();
        output::columns(&rows)?;
        let said = if self.dry_run {
            "nothing was changed; of it would be: "
        } else {
            ""
        };
        output::line(format!(
            "{said}{} replayed, {} already done, {} failed again",
            self.replayed, self.already_done, self.failed_again
        ))?;
        Ok(())
    }
}
