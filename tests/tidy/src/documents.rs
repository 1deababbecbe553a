//! Documents and scripts: what they name must exist, and nothing of anyone's machine is in them.

use std::collections::BTreeSet;

use crate::tree::{self, File};

/// The targets of the Makefile.
fn targets() -> BTreeSet<String> {
    let makefile = tree::read("Makefile");
    let names = makefile
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name);
    names
        .filter(|name| !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase()))
        .map(str::to_owned)
        .collect()
}

/// Documents for people, and what continuous integration runs.
fn documents() -> Vec<File> {
    let mut files = tree::files();
    files.retain(|file| file.path.ends_with(".md") || file.path == ".ci/run");
    files
}

/// `make X` in code of a document: between backquotes or in an indented or fenced block.
fn make_commands(text: &str) -> Vec<(usize, String)> {
    let mut commands = Vec::new();
    let mut fenced = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        let spans: Vec<&str> = if fenced || line.starts_with("    ") || line.starts_with("make ") {
            vec![line]
        } else {
            line.split('`').skip(1).step_by(2).collect()
        };
        for span in spans {
            let words: Vec<&str> = span.split_whitespace().collect();
            for pair in words
                .windows(2)
                .filter(|pair| pair[0] == "make" || pair[0] == "$make")
            {
                let target = pair[1].trim_matches(|c: char| !c.is_ascii_alphanumeric());
                commands.push((number, target.to_owned()));
            }
        }
    }
    commands
}

fn commands(known: &BTreeSet<String>, text: &str) -> Vec<String> {
    make_commands(text)
        .into_iter()
        .filter(|(_, target)| !known.contains(target))
        .map(|(line, target)| format!("{line}: make {target} is no target"))
        .collect()
}

/// Addresses that mean something on one machine only.
fn machine(_: &str, text: &str) -> Vec<String> {
    let paths = [
        concat!("/tm", "p/hf"),
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("/ho", "me/"),
    ];
    let hosts = [
        "artifactory",
        "nexus",
        "jfrog",
        "mirror",
        "proxy",
        "registry",
        ".internal",
    ];
    let mut complaints = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for path in paths.iter().filter(|path| line.contains(*path)) {
            complaints.push(format!("{number}: {path}: a path of one machine"));
        }
        for host in urls(line).filter(|host| hosts.iter().any(|word| host.contains(word))) {
            complaints.push(format!("{number}: {host}: a host of one place"));
        }
    }
    complaints
}

/// The hosts of the addresses in a line.
fn urls(line: &str) -> impl Iterator<Item = &str> {
    line.split("://").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !".-_:@".contains(c));
        &rest[..end.unwrap_or(rest.len())]
    })
}

/// Relative links of a document, and paths between backquotes that look like files of ours.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for rest in line.split("](").skip(1) {
            let target = rest.split([')', '#']).next().unwrap_or("");
            if !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:") {
                found.push((number, target.to_owned()));
            }
        }
    }
    found
}

fn dangling(path: &str, text: &str) -> Vec<String> {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    links(text)
        .into_iter()
        .filter(|(_, target)| !tree::root().join(folder).join(target).exists())
        .map(|(line, target)| format!("{line}: {target} does not exist"))
        .collect()
}

#[test]
fn commands_in_documents_are_targets_of_the_makefile() {
    let known = targets();
    assert!(
        known.contains("demo") && known.contains("test"),
        "{known:?}"
    );
    tree::check(&documents(), |_, text| commands(&known, text));
    let planted = "Type `make demo`, make sure that it ends.\n\n    make party\n`make tea now`\n";
    assert_eq!(commands(&known, planted).len(), 2);
}

/// A newcomer reads of every topic and type in the README.
#[test]
fn the_readme_names_every_topic_and_type() {
    let readme = tree::read("README.md");
    let schemas = contracts::schema::all();
    let types = schemas.iter().map(|(event_type, _)| *event_type);
    let topics = contracts::Topic::ALL.map(contracts::Topic::as_str);
    // Made and not written to yet: see docs/asyncapi.yaml.
    let topics = topics.into_iter().filter(|topic| *topic != "coupons.v1");
    let missing: Vec<String> = types
        .chain(topics)
        .filter(|name| !readme.contains(&format!("`{name}`")))
        .map(|name| format!("README.md does not name {name}"))
        .collect();
    tree::none(&missing);
}

#[test]
fn links_in_documents_lead_somewhere() {
    let mut files = documents();
    files.retain(|file| file.path.ends_with(".md"));
    tree::check(&files, dangling);
    assert_eq!(
        dangling(
            "README.md",
            "[a](docs/no-such-file.md#x) [b](https://x.example/)"
        )
        .len(),
        1
    );
}

#[test]
fn nothing_of_one_machine_is_in_the_tree() {
    let mut files = tree::files();
    files.retain(|file| file.path != "Cargo.lock");
    tree::check(&files, machine);
    let planted = format!(
        "cd {}x\nurl = https://{}.example/index",
        concat!("/tm", "p/hf/"),
        concat!("mir", "ror")
    );
    assert_eq!(machine("x", &planted).len(), 2);
}

/// Paths in backquotes in the guide to the code, which promises to be read next to it.
#[test]
fn files_that_the_architecture_names_exist() {
    let text = tree::read("docs/architecture.md");
    let paths: BTreeSet<&str> = text
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|span| {
            let plain = span
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"_-./".contains(&b));
            plain && span.contains('/') && !span.starts_with('/') && !span.contains("...")
        })
        .collect();
    let gone: Vec<String> = paths
        .iter()
        .filter(|path| !tree::root().join(path).exists())
        .map(|path| format!("docs/architecture.md: {path} does not exist"))
        .collect();
    tree::none(&gone);
}
