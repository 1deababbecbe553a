//! `holdfast dlq`: what consumers set aside as dead letters, and having it handled again. PostgreSQL
//! has the truth of them; the topics ending in `.dlq` are copies for subscribers (P9).

mod letter;
pub mod read;
pub mod redrive;
pub mod report;

use clap::Subcommand;
use store::{Store, StoreError, dead_letters, dead_letters::DeadLetter};
use uuid::Uuid;

use crate::exit::Exit;

/// Dead letters read at a time.
const PAGE: i64 = 100;

/// What can be asked of dead letters.
#[derive(Debug, Subcommand)]
pub enum Ask {
    /// Those that are open, oldest first, and why they were set aside
    List(read::ListArgs),
    /// One with its headers and its payload
    Show(read::ShowArgs),
    /// Handle them again: each in one transaction, so that it has its effect once; exit code 1 when
    /// one failed again
    Redrive(redrive::Args),
}

/// Which dead letters are meant.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Filter {
    /// Only those of this consumer
    #[arg(long, value_parser = ["order", "payment", "stock"])]
    pub consumer: Option<String>,
    /// Only those of this class
    #[arg(long, value_parser = CLASSES)]
    pub class: Option<String>,
}

const CLASSES: [&str; 6] = [
    "malformed",
    "unknown-version",
    "contract",
    "unknown-subject",
    "conflict",
    "unclassified",
];

impl Filter {
    fn takes(&self, found: &DeadLetter) -> bool {
        let is = |wanted: &Option<String>, text: &str| wanted.as_ref().is_none_or(|w| w == text);
        is(&self.consumer, &found.letter.consumer) && is(&self.class, &found.letter.class)
    }
}

/// Runs the command.
///
/// # Errors
/// There is no such dead letter, or a server can't be reached.
pub async fn run(ask: Ask) -> anyhow::Result<Exit> {
    match ask {
        Ask::List(args) => read::list(args).await,
        Ask::Show(args) => read::show(args).await,
        Ask::Redrive(args) => redrive::run(args).await,
    }
}

/// Those of the next page that the filter takes, and where the page after it begins; `None` behind
/// the last.
async fn page(
    store: &Store,
    open_only: bool,
    filter: &Filter,
    after: Option<Uuid>,
) -> Result<(Vec<DeadLetter>, Option<Uuid>), StoreError> {
    let mut conn = store.conn().await?;
    let mut found = dead_letters::list(&mut conn, open_only, after, PAGE).await?;
    let last = found.last().map(|letter| letter.id);
    found.retain(|letter| filter.takes(letter));
    Ok((found, last))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use messaging::Class;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(subcommand)]
        ask: Ask,
    }

    fn parses(words: &[&str]) -> bool {
        let database = ["--database-url=postgres://none", "--redis-url=redis://none"];
        let servers = if words[0] == "redrive" {
            &database[..]
        } else {
            &database[..1]
        };
        Line::try_parse_from([&["dlq"], words, servers].concat()).is_ok()
    }

    #[test]
    fn every_class_can_be_asked_for() {
        let all = [
            Class::Malformed,
            Class::UnknownVersion,
            Class::Contract,
            Class::UnknownSubject,
            Class::Conflict,
            Class::Unclassified,
        ];
        assert_eq!(all.map(Class::as_str), CLASSES);
        assert!(parses(&["list", "--class=conflict", "--consumer=stock"]));
        assert!(!parses(&["list", "--class=permanent"]));
        assert!(!parses(&["list", "--consumer=holdfast.stock"]));
    }

    #[test]
    fn nothing_is_redriven_that_was_not_asked_for() {
        let id = "019ac000-0000-7000-8000-000000000000";
        assert!(parses(&["redrive", id, "--dry-run"]));
        assert!(parses(&["redrive", "--all", "--class=malformed"]));
        assert!(!parses(&["redrive"]), "neither an id nor --all");
        assert!(!parses(&["redrive", "--class=malformed"]));
        assert!(!parses(&["redrive", id, "--all"]));
    }
}
