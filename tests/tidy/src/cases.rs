//! The cases that other systems' failures taught: docs/cases.md says of each which tests hold it,
//! or why it is open. Every case is there, and every test that is named exists.

use std::collections::BTreeSet;

use crate::tree;

const DOCUMENT: &str = "docs/cases.md";

/// Classes and how many cases each has: BL-A1, BL-A2, BL-B1 and so on.
const CLASSES: [(char, usize); 15] = [
    ('A', 2),
    ('B', 3),
    ('C', 2),
    ('D', 2),
    ('E', 2),
    ('F', 3),
    ('G', 3),
    ('H', 2),
    ('I', 2),
    ('J', 2),
    ('K', 1),
    ('L', 3),
    ('M', 3),
    ('N', 2),
    ('O', 4),
];

/// Faults that were found in peer systems.
const PEERS: [&str; 32] = [
    "Last unit never sold",
    "Rollback adds stock never taken",
    "Late answer leaves the order NEW",
    "Retry of a failure answers success",
    "Offset committed after an error",
    "Same event deducts twice",
    "Generator read twice hides allocations",
    "Same SKU on two lines",
    "Wrong location, wrong split",
    "Check then append without lock",
    "Webhook gate set before the effect",
    "Failed attempt blocks later success",
    "Give-back script never runs",
    "Empty bucket means sold out",
    "Unit lost between decrement and send",
    "Boot overwrites Redis from SQL",
    "Hold TTL fires before the sweeper",
    "Compensation missed when commit fails",
    "Keys without hash tag",
    "No answer from the provider means delete",
    "Hold renewed for ever",
    "Acknowledged orders never reach the broker",
    "Answers more than 10 s apart leave the order open",
    "Ids begin again after a restart",
    "A repeated end event is applied again",
    "Status, price or total of the client is believed",
    "Negative count or price adds stock and money",
    "Two orders for one key, both charged",
    "Keys remembered in process memory only",
    "Order number of user and millisecond collides",
    "Relay trails by hours",
    "Reset and warm-up fail on a running system",
];

/// The rows of all tables: the first cell, and the whole line.
fn rows(text: &str) -> Vec<(&str, &str)> {
    text.lines()
        .filter_map(|line| {
            let name = line.strip_prefix("| ")?.split(" |").next()?;
            Some((name.trim(), line))
        })
        .collect()
}

/// `path::name` between backquotes, with a path that ends in .rs.
fn tests(line: &str) -> Vec<(&str, &str)> {
    line.split('`')
        .skip(1)
        .step_by(2)
        .filter_map(|span| span.split_once("::"))
        .filter(|(path, _)| path.ends_with(".rs"))
        .collect()
}

fn complaints(text: &str, source: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let rows = rows(text);
    let ids = CLASSES
        .iter()
        .flat_map(|(class, count)| (1..=*count).map(move |number| format!("BL-{class}{number}")));
    let wanted: Vec<String> = ids.chain(PEERS.map(str::to_owned)).collect();
    let mut found = Vec::new();
    for name in &wanted {
        let lines: Vec<&str> = rows
            .iter()
            .filter(|(cell, _)| cell == name)
            .map(|(_, line)| *line)
            .collect();
        match lines.as_slice() {
            [] => found.push(format!("{name} is missing")),
            [line] if tests(line).is_empty() && !line.contains("open: ") => {
                found.push(format!("{name} names no test and says not why it is open"));
            }
            [_] => {}
            _ => found.push(format!("{name} stands there {} times", lines.len())),
        }
    }
    let named: BTreeSet<(&str, &str)> = rows.iter().flat_map(|(_, line)| tests(line)).collect();
    for (path, name) in named {
        let is_there = source(path).is_some_and(|text| text.contains(&format!("fn {name}(")));
        if !is_there {
            found.push(format!("{path} has no test {name}"));
        }
    }
    found
}

#[test]
fn every_case_has_its_tests_or_says_why_it_is_open() {
    let source = |path: &str| std::fs::read_to_string(tree::root().join(path)).ok();
    tree::none(&complaints(&tree::read(DOCUMENT), source));
}

#[test]
fn a_missing_case_a_case_without_a_test_and_a_test_that_is_gone_are_seen() {
    let source = |path: &str| (path == "a.rs").then(|| "fn it_is_there() {}".to_owned());
    let text = "| BL-A1 | x | `a.rs::it_is_there` |\n| BL-A2 | x | nothing |\n\
                | BL-B1 | x | open: later |\n| BL-B2 | x | `a.rs::gone` |\n\
                | BL-B3 | x | open: a |\n| BL-B3 | x | open: b |\n";
    let found = complaints(text, source);
    let has = |part: &str| found.iter().any(|complaint| complaint.contains(part));
    assert!(
        has("BL-A2 names no test") && has("a.rs has no test gone"),
        "{found:?}"
    );
    assert!(
        has("BL-B3 stands there 2 times") && has("BL-O4 is missing"),
        "{found:?}"
    );
    assert!(!has("BL-A1") && !has("BL-B1"), "{found:?}");
}
