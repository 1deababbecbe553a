//! Migrations: commented, named, and the same state machine as the code.

use std::collections::BTreeSet;

use domain::order::{OrderStatus, Transition, Trigger, apply};

use crate::tree::{self, File};

fn migrations() -> Vec<File> {
    let mut files = tree::ending(".sql");
    files.retain(|file| file.path.starts_with("migrations/"));
    files
}

/// The statements, without comments. Function bodies are cut at their semicolons, which does not
/// matter here.
fn statements(text: &str) -> Vec<String> {
    let code: Vec<&str> = text
        .lines()
        .map(|line| line.split_once("--").map_or(line, |(code, _)| code))
        .collect();
    code.join("\n")
        .split(';')
        .map(|one| one.trim().to_owned())
        .collect()
}

fn after<'a>(statement: &'a str, words: &str) -> Option<&'a str> {
    let rest = statement.strip_prefix(words)?.trim_start();
    rest.split(|c: char| c.is_whitespace() || c == '(').next()
}

/// The parts of a `create table` between its outer parentheses.
fn parts(statement: &str) -> Vec<String> {
    let Some(open) = statement.find('(') else {
        return Vec::new();
    };
    let mut depth = 0;
    let mut parts = vec![String::new()];
    for c in statement[open + 1..].chars() {
        match c {
            '(' => depth += 1,
            ')' if depth == 0 => break,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    parts
        .iter()
        .map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

fn rules(_: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if !text.starts_with("-- ") {
        complaints.push("1: a migration begins with a comment".to_owned());
    }
    let statements = statements(text);
    let commented: BTreeSet<&str> = statements
        .iter()
        .filter_map(|one| after(one, "comment on table"))
        .collect();
    for statement in &statements {
        let Some(table) = after(statement, "create table") else {
            continue;
        };
        if !commented.contains(table) {
            complaints.push(format!("1: {table} has no comment on table"));
        }
        for part in parts(statement) {
            let is_rule = [
                "primary key",
                "unique",
                "check (",
                "check(",
                "references",
                "foreign",
            ]
            .iter()
            .any(|word| part.contains(word));
            if is_rule && !part.starts_with(&format!("constraint {table}_")) {
                complaints.push(format!("1: name it {table}_...: {part}"));
            }
        }
    }
    complaints
}

#[test]
fn migrations_are_commented_and_their_constraints_named() {
    tree::check(&migrations(), rules);
    let planted = "create table t (id uuid primary key, n int, constraint n_positive check (n > 0),
        constraint t_n_small check (n < 9));\ncreate table u (id int);\ncomment on table u is 'x';";
    let complaints = rules("migrations/0001_t.sql", planted);
    assert_eq!(complaints.len(), 4, "{complaints:?}");
}

#[test]
fn migrations_are_numbered_without_a_gap() {
    for (number, file) in (1..).zip(migrations()) {
        let name = file.path.trim_start_matches("migrations/");
        assert!(
            name.starts_with(&format!("{number:04}_")),
            "{name} should be {number:04}_..."
        );
    }
}

/// `(null, 'RESERVED'), ...` as pairs.
fn allowed_transitions(text: &str) -> BTreeSet<(String, String)> {
    let statements = statements(text);
    let insert = "insert into allowed_transitions values";
    let rows = statements
        .iter()
        .find_map(|one| one.strip_prefix(insert))
        .unwrap();
    rows.split('(')
        .skip(1)
        .map(|row| {
            let (from, to) = row.split_once(')').unwrap().0.split_once(',').unwrap();
            let word = |text: &str| text.trim().trim_matches('\'').to_owned();
            (word(from), word(to))
        })
        .collect()
}

#[test]
fn the_database_s_state_machine_is_the_code_s() {
    let mut of_code = BTreeSet::from([("null".to_owned(), OrderStatus::Reserved.to_string())]);
    for status in OrderStatus::ALL {
        for trigger in Trigger::ALL {
            if let Transition::To(to) = apply(status, trigger) {
                of_code.insert((status.to_string(), to.to_string()));
            }
        }
    }
    let file = migrations()
        .into_iter()
        .find(|file| file.text.contains("allowed_transitions ("));
    let text = file.unwrap().text;
    assert_eq!(allowed_transitions(&text), of_code);
    let planted = text.replace("('RESERVED', 'EXPIRED')", "('EXPIRED', 'CONFIRMED')");
    assert_ne!(allowed_transitions(&planted), of_code);
}

#[test]
fn the_database_knows_the_statuses_of_the_code() {
    let text = migrations()
        .into_iter()
        .map(|file| file.text)
        .collect::<String>();
    let words = OrderStatus::ALL
        .map(|status| format!("'{status}'"))
        .join(", ");
    assert!(text.contains(&format!(
        "constraint orders_status_valid check (status in ({words}))"
    )));
}
