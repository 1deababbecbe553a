//! The demo, small, through the binary as a newcomer runs it; it leaves nothing running.

use std::{path::PathBuf, process::Stdio};

use tokio::process::Command;

/// The binary of this build, beside the test's own.
fn holdfast() -> PathBuf {
    let mut path = match std::env::current_exe() {
        Ok(path) => path,
        Err(error) => panic!("{error}"),
    };
    path.pop();
    path.pop();
    path.push("holdfast");
    assert!(
        path.exists(),
        "{} is not built: cargo build --workspace --bins",
        path.display()
    );
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_ends_clean_and_leaves_no_process_behind() {
    let dir = tests::world::private_dir("demo").join("state");
    let output = Command::new(holdfast())
        .args([
            "demo",
            "--requests=2000",
            "--stock=200",
            "--clients=50",
            "--ttl-seconds=5",
        ])
        .arg("--state-dir")
        .arg(&dir)
        .env_remove("DATABASE_URL")
        .env_remove("REDIS_URL")
        .env_remove("KAFKA_BROKERS")
        .stdin(Stdio::null())
        .output()
        .await;
    let output = match output {
        Ok(output) => output,
        Err(error) => panic!("{error}"),
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let talk = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}\n{talk}");
    assert!(text.contains("VERDICT: clean"), "{text}");
    assert!(talk.contains("stock left"), "a progress line: {talk}");
    let left = processes_in(&dir);
    assert!(left.is_empty(), "still running: {left:?}");
}

/// Command lines of processes that name the state directory.
fn processes_in(dir: &std::path::Path) -> Vec<String> {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        panic!("no /proc")
    };
    let name = dir.to_string_lossy().into_owned();
    processes
        .flatten()
        .filter_map(|process| std::fs::read(process.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(&name))
        .collect()
}
