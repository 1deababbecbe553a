//! A dead letter as it is printed.

use std::collections::BTreeMap;

use chrono::SecondsFormat;
use contracts::{ConsumerName, Timestamp, TopicNames};
use serde::Serialize;
use store::dead_letters::DeadLetter;
use uuid::Uuid;

use crate::output;

/// Characters of a reason in a table.
const REASON_MAX: usize = 100;

/// All but its headers and its payload.
#[derive(Debug, Serialize)]
pub(super) struct Letter {
    id: Uuid,
    topic: String,
    partition: i32,
    offset: i64,
    group: String,
    key: Option<Text>,
    #[serde(rename = "type")]
    event_type: Option<String>,
    reason: String,
    class: String,
    attempts: i32,
    first_seen: Timestamp,
    set_aside_at: Timestamp,
    source: Option<String>,
    event_id: Option<String>,
    state: &'static str,
}

/// The same with all of the record.
#[derive(Debug, Serialize)]
pub(super) struct Whole {
    #[serde(flatten)]
    letter: Letter,
    headers: Vec<Header>,
    payload: Option<Text>,
}

#[derive(Debug, Serialize)]
struct Header {
    name: String,
    value: Option<Text>,
}

/// Bytes that are text, or are not.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Text {
    Plain(String),
    Bytes { hex: String },
}

impl Text {
    fn of(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Self::Plain(text),
            Err(error) => Self::Bytes {
                hex: hex::encode(error.as_bytes()),
            },
        }
    }

    /// For a terminal: what anybody may have sent must not steer it.
    fn printable(&self) -> String {
        match self {
            Self::Plain(text) => text
                .chars()
                .map(|c| if c.is_control() { ' ' } else { c })
                .collect(),
            Self::Bytes { hex } => format!("0x{hex}"),
        }
    }
}

impl Letter {
    /// As it is stored, with names as the broker knows them.
    pub(super) fn of(found: DeadLetter, names: &TopicNames) -> Self {
        let letter = found.letter;
        let mut consumers = ConsumerName::ALL.into_iter();
        let consumer = consumers.find(|consumer| consumer.as_str() == letter.consumer);
        Self {
            id: found.id,
            topic: names.apply(&letter.topic),
            partition: letter.partition,
            offset: letter.offset,
            group: consumer.map_or(letter.consumer, |consumer| names.group(consumer)),
            key: letter.key.map(Text::of),
            event_type: letter.event_type,
            reason: letter.reason,
            class: letter.class,
            attempts: letter.attempts,
            first_seen: letter.first_seen,
            set_aside_at: found.at,
            source: letter.source,
            event_id: letter.event_id,
            state: if found.redriven { "REDRIVEN" } else { "OPEN" },
        }
    }

    fn place(&self) -> String {
        format!("{}/{}@{}", self.topic, self.partition, self.offset)
    }

    fn row(&self) -> [String; 9] {
        let key = self.key.as_ref().map_or_else(String::new, Text::printable);
        [
            self.id.to_string(),
            self.state.to_owned(),
            self.class.clone(),
            self.event_type.clone().unwrap_or_default(),
            self.place(),
            self.group.clone(),
            key,
            self.attempts.to_string(),
            self.reason.chars().take(REASON_MAX).collect(),
        ]
    }
}

/// Prints a line for each, and how many there are of each class.
pub(super) fn table(letters: &[Letter]) -> anyhow::Result<()> {
    let heading = [
        "ID", "STATE", "CLASS", "TYPE", "WHERE", "GROUP", "KEY", "TRIES", "REASON",
    ];
    let mut rows = Vec::with_capacity(letters.len() + 1);
    let mut classes: BTreeMap<&str, usize> = BTreeMap::new();
    for letter in letters {
        rows.push(letter.row());
        *classes.entry(&letter.class).or_default() += 1;
    }
    if !rows.is_empty() {
        rows.insert(0, heading.map(str::to_owned));
    }
    output::columns(&rows)?;
    let classes: Vec<String> = classes
        .into_iter()
        .map(|(class, count)| format!("{count} {class}"))
        .collect();
    let count = match letters.len() {
        0 => "no dead letter".to_owned(),
        1 => "1 dead letter: ".to_owned(),
        count => format!("{count} dead letters: "),
    };
    output::line(format!("{count}{}", classes.join(", ")))?;
    Ok(())
}

impl Whole {
    /// With all of the record.
    pub(super) fn of(mut found: DeadLetter, names: &TopicNames) -> Self {
        let headers = std::mem::take(&mut found.letter.headers);
        let payload = found.letter.payload.take();
        Self {
            letter: Letter::of(found, names),
            headers: headers
                .into_iter()
                .map(|(name, value)| Header {
                    name,
                    value: value.map(Text::of),
                })
                .collect(),
            payload: payload.map(Text::of),
        }
    }

    /// Prints it line by line.
    pub(super) fn print(&self) -> anyhow::Result<()> {
        let letter = &self.letter;
        let time = |at: &Timestamp| at.to_rfc3339_opts(SecondsFormat::Millis, true);
        let or_none = |text: &Option<Text>| {
            text.as_ref()
                .map_or_else(|| "(none)".to_owned(), Text::printable)
        };
        let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "(none)".to_owned());
        let mut rows = vec![
            ["id".to_owned(), letter.id.to_string()],
            ["state".to_owned(), letter.state.to_owned()],
            ["where".to_owned(), letter.place()],
            ["group".to_owned(), letter.group.clone()],
            ["key".to_owned(), or_none(&letter.key)],
            ["type".to_owned(), text(&letter.event_type)],
            ["source".to_owned(), text(&letter.source)],
            ["event id".to_owned(), text(&letter.event_id)],
            ["class".to_owned(), letter.class.clone()],
            ["reason".to_owned(), letter.reason.clone()],
            ["attempts".to_owned(), letter.attempts.to_string()],
            ["first seen".to_owned(), time(&letter.first_seen)],
            ["set aside".to_owned(), time(&letter.set_aside_at)],
        ];
        for header in &self.headers {
            rows.push([format!("header {}", header.name), or_none(&header.value)]);
        }
        rows.push(["payload".to_owned(), or_none(&self.payload)]);
        Ok(output::columns(&rows)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_anybody_are_shown_and_do_not_steer_a_terminal() {
        let text = Text::of(b"{\"a\":\"\x1b[2J\"}".to_vec());
        assert_eq!(text.printable(), "{\"a\":\" [2J\"}");
        let json = serde_json::to_string(&Text::of("한".as_bytes().to_vec())).unwrap();
        assert_eq!(json, "\"한\"");
        let garbage = Text::of(vec![0, 159]);
        assert_eq!(garbage.printable(), "0x009f");
        assert_eq!(
            serde_json::to_string(&garbage).unwrap(),
            r#"{"hex":"009f"}"#
        );
    }
}
