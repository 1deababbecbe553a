//! Data on standard output, as a table for people or JSON for programs.

use std::io::{self, Write};

use clap::ValueEnum;
use serde::Serialize;

/// How data is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// For people
    #[default]
    Table,
    /// One JSON document
    Json,
    /// One JSON document a line
    Jsonl,
}

/// Prints text and ends the line. A reader that has gone away is no error: `holdfast ... | head`.
///
/// # Errors
/// Standard output can't be written.
pub fn line(text: impl AsRef<str>) -> io::Result<()> {
    match writeln!(io::stdout().lock(), "{}", text.as_ref()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Prints one document.
///
/// # Errors
/// Standard output can't be written.
pub fn json<T: Serialize>(format: Format, value: &T) -> anyhow::Result<()> {
    let text = match format {
        Format::Jsonl => serde_json::to_string(value)?,
        Format::Json | Format::Table => serde_json::to_string_pretty(value)?,
    };
    Ok(line(text)?)
}

/// Prints rows in aligned columns; the last column is not padded.
///
/// # Errors
/// Standard output can't be written.
pub fn columns<const N: usize>(rows: &[[String; N]]) -> io::Result<()> {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for row in rows {
        let cells = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        line(cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}
