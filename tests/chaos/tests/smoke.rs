//! The shortest useful run: a service killed, Redis wiped, PostgreSQL restarted, under load; then
//! the clients' log and every invariant. `make chaos` is the long one.

use std::{path::Path, process::Command};

#[test]
fn a_short_run_of_three_faults_is_green_and_each_of_them_bit() {
    let chaos = Path::new(env!("CARGO_BIN_EXE_chaos"));
    let holdfast = chaos.with_file_name("holdfast");
    assert!(
        holdfast.is_file(),
        "{} is not there: cargo build -p cli",
        holdfast.display()
    );
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("chaos-smoke");
    let output = Command::new(chaos)
        .args(["--seconds", "20", "--seed", "1", "--rate", "20"])
        .args(["--only", "F1,F25,F33", "--dir"])
        .arg(&dir)
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => panic!("{}: {error}", chaos.display()),
    };
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
