//! The book on disk, one line per effect, so that a provider that is killed forgets nothing: no
//! real one would. What was begun and not executed is not in it; its key is new after a restart.

use std::{
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Write},
    path::Path,
};

use contracts::{Money, Timestamp};
use serde::{Deserialize, Serialize};

use crate::book::{ChargeRequest, ChargeStatus, RefundRequest};

/// One effect.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "effect", rename_all = "snake_case")]
pub(crate) enum Line {
    /// A charge that was executed or canceled.
    Charge {
        key: String,
        status: ChargeStatus,
        request: Option<ChargeRequest>,
        captured: Option<Money>,
        is_final: Option<bool>,
        executed_at: Option<Timestamp>,
    },
    /// A refund that was executed.
    Refund {
        key: String,
        request: RefundRequest,
        executed_at: Timestamp,
    },
}

/// Reads all lines of a book, and opens it for more. A last line that was cut off is dropped: its
/// effect was never answered.
///
/// # Errors
/// The file can't be read or written.
pub(crate) fn open(path: &Path) -> std::io::Result<(Vec<Line>, File)> {
    let file = OpenOptions::new()
        .create(true)
        .read(true)
        .append(true)
        .open(path)?;
    let lines = BufReader::new(&file)
        .lines()
        .map_while(Result::ok)
        .filter_map(|line| serde_json::from_str(&line).ok())
        .collect();
    Ok((lines, file))
}

/// Writes one line, whole.
pub(crate) fn append(file: &mut File, line: &Line) {
    let written = serde_json::to_string(line)
        .map_err(std::io::Error::from)
        .and_then(|text| file.write_all(format!("{text}\n").as_bytes()));
    if let Err(error) = written {
        tracing::error!(%error, "an effect is not in the book on disk");
    }
}
