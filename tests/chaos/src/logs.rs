//! What the services wrote.

use std::path::Path;

use crate::{faults::Site, service::Replica};

/// Whether the log of a process's present life holds some words.
pub async fn holds(site: &Site, replica: &Replica, words: &str) -> bool {
    let life = replica.life().await;
    let name = format!("{}.{life}.log", replica.name);
    let text = std::fs::read(site.plant.dir.join("logs").join(name)).unwrap_or_default();
    String::from_utf8_lossy(&text).contains(words)
}

/// How many lines of all logs of services hold some words.
#[must_use]
pub fn lines(dir: &Path, words: &str) -> u64 {
    let mut found = 0;
    for entry in std::fs::read_dir(dir.join("logs"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let text = std::fs::read(entry.path()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines = text.lines().filter(|line| line.contains(words)).count();
        found += u64::try_from(lines).unwrap_or(0);
    }
    found
}
