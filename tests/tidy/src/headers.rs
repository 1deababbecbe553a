//! What the headers of use cases, scripts and shell files must say.

use crate::tree;

/// The verbs that use cases are named by. A file of a service whose name begins with one of them is
/// a use case.
const VERBS: &[&str] = &[
    "accept", "adjust", "admit", "ask", "audit", "cancel", "charge", "close", "compare", "execute",
    "expire", "issue", "place", "prune", "rebuild", "receive", "record", "refund", "reject",
    "repair", "request", "resolve", "settle", "sweep", "sync", "void",
];

/// The use case that a path names.
fn use_case(path: &str) -> Option<&str> {
    let (service, file) = path.strip_prefix("services/")?.split_once("/src/")?;
    let stem = file.strip_suffix(".rs")?;
    let (verb, _) = stem.split_once('_')?;
    (service != "gateway-sim" && !stem.contains('/') && VERBS.contains(&verb)).then_some(stem)
}

fn use_cases(path: &str, text: &str) -> Vec<String> {
    if use_case(path).is_none() {
        return Vec::new();
    }
    let header: Vec<&str> = text
        .lines()
        .map_while(|line| line.strip_prefix("//!"))
        .map(str::trim)
        .collect();
    let header = header.join(" ").to_lowercase();
    if header.is_empty() {
        return vec!["1: a use case begins with its guarantee".to_owned()];
    }
    let dies = ["dies", "died"].iter().any(|word| header.contains(word));
    if dies {
        Vec::new()
    } else {
        vec!["1: what happens when the process dies?".to_owned()]
    }
}

/// Every module says what it guarantees.
fn modules(path: &str, text: &str) -> Vec<String> {
    if path.contains("/src/") && !text.starts_with("//!") {
        return vec!["1: a module begins with a //! header".to_owned()];
    }
    Vec::new()
}

fn scripts(path: &str, text: &str) -> Vec<String> {
    let stem = path
        .rsplit('/')
        .next()
        .unwrap_or(path)
        .trim_end_matches(".lua");
    let header: Vec<&str> = text
        .lines()
        .take_while(|line| line.starts_with("--"))
        .collect();
    let mut complaints = Vec::new();
    if !header
        .first()
        .is_some_and(|first| first.starts_with(&format!("-- {stem}: ")))
    {
        complaints.push(format!("1: the header begins with `-- {stem}: `"));
    }
    // Not a verb but what all verbs share.
    if stem != "common" {
        for part in ["Guarantee:", "KEYS:", "ARGV:", "Outcomes:"] {
            if !header
                .iter()
                .any(|line| line.starts_with(&format!("-- {part}")))
            {
                complaints.push(format!("1: the header has no `{part}`"));
            }
        }
    }
    complaints
}

fn shells(_: &str, text: &str) -> Vec<String> {
    let mut lines = text.lines();
    let mut complaints = Vec::new();
    if lines.next() != Some("#!/usr/bin/env bash") {
        complaints.push("1: begins with #!/usr/bin/env bash".to_owned());
    }
    if !lines.next().is_some_and(|line| line.starts_with("# ")) {
        complaints.push("2: says what it is for".to_owned());
    }
    if !text.contains("\nset -euo pipefail") && !text.contains("\nset -uo pipefail") {
        complaints.push("1: set -euo pipefail".to_owned());
    }
    complaints
}

#[test]
fn use_cases_say_what_happens_when_the_process_dies() {
    tree::check(&tree::ending(".rs"), use_cases);
    let path = "services/stock/src/expire_orders.rs";
    assert_eq!(
        use_cases(path, "//! Expires orders.\nfn f() {} // dies").len(),
        1
    );
    assert_eq!(use_cases(path, "fn f() {}").len(), 1);
    assert_eq!(
        use_cases(path, "//! Expires orders. *Dies before:* nothing.").len(),
        0
    );
}

#[test]
fn the_use_cases_of_the_architecture_are_where_it_says() {
    let files = tree::ending(".rs");
    let found: Vec<&str> = files
        .iter()
        .filter_map(|file| use_case(&file.path))
        .collect();
    for name in [
        "place_orders",
        "cancel_order",
        "charge_payments",
        "settle_orders",
        "expire_orders",
        "sweep_holds",
        "rebuild_gate",
    ] {
        assert!(found.contains(&name), "{name}.rs is not in a service");
    }
}

#[test]
fn modules_begin_with_what_they_guarantee() {
    tree::check(&tree::ending(".rs"), modules);
    assert_eq!(modules("crates/x/src/y.rs", "use std::fmt;").len(), 1);
}

#[test]
fn scripts_of_the_gate_say_their_keys_and_outcomes() {
    tree::check(&tree::ending(".lua"), scripts);
    let planted = "-- keep: x\n--\n-- Guarantee: none\n-- KEYS: a\nlocal x -- ARGV: b";
    assert_eq!(scripts("lua/keep.lua", planted).len(), 2);
    assert_eq!(scripts("lua/other.lua", planted).len(), 3);
}

#[test]
fn shell_scripts_stop_at_the_first_failure_and_say_what_they_are_for() {
    tree::check(&tree::ending(".sh"), shells);
    assert_eq!(shells("x.sh", "#!/bin/sh\nrm -rf $X/\n").len(), 3);
}
