//! The files of the repository, as a fresh clone has them.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A text file; its path is relative to the root, with slashes.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// What is not source: version control, builds, state of running systems.
const SKIPPED: [&str; 4] = [".git", "target", ".holdfast", "node_modules"];

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every text file; what is not UTF-8 is passed over.
pub(crate) fn files() -> Vec<File> {
    let mut paths = Vec::new();
    walk(&root(), "", &mut paths);
    paths.sort();
    let text = |path: String| match fs::read_to_string(root().join(&path)) {
        Ok(text) => Some(File { path, text }),
        Err(_) => None,
    };
    paths.into_iter().filter_map(text).collect()
}

/// Every text file whose name ends so.
pub(crate) fn ending(end: &str) -> Vec<File> {
    let mut files = files();
    files.retain(|file| file.path.ends_with(end));
    assert!(
        !files.is_empty(),
        "no {end} files: is the tree where it should be?"
    );
    files
}

pub(crate) fn rust() -> Vec<File> {
    ending(".rs")
}

/// Code that is shipped: not the suites of tests, and not these rules.
pub(crate) fn is_shipped(path: &str) -> bool {
    path.contains("/src/") && !path.starts_with("tests/") && !path.contains("/tests/")
}

fn walk(folder: &Path, prefix: &str, paths: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if prefix.is_empty() {
            name.clone()
        } else {
            format!("{prefix}/{name}")
        };
        let kind = entry.file_type().unwrap();
        if kind.is_dir() && !SKIPPED.contains(&name.as_str()) {
            walk(&entry.path(), &path, paths);
        } else if kind.is_file() {
            paths.push(path);
        }
    }
}

/// Fails with all complaints at once.
pub(crate) fn none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

/// Applies a rule to files.
pub(crate) fn check(files: &[File], rule: impl Fn(&str, &str) -> Vec<String>) {
    let all: Vec<String> = files
        .iter()
        .flat_map(|file| {
            let complaints = rule(&file.path, &file.text).into_iter();
            complaints.map(|complaint| format!("{}:{complaint}", file.path))
        })
        .collect();
    none(&all);
}
