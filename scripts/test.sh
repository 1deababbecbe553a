#!/usr/bin/env bash
# Every test on real servers: PostgreSQL, Redis and Kafka of its own, or those whose addresses are
# in the environment. Fails when a server can't be started, when a test fails, and when none ran;
# ends what it started in every case.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/servers.sh

state=target/test-state
log=target/test.log
bin=target/debug/holdfast

# Always with the native servers: the tests of faults start, kill and restart their own.
scripts/setup.sh --native
# Binaries and tests in one go, so that both are built from the same dependencies; with crash points,
# which the tests of crashes need.
cargo build --locked --workspace --bins --tests --features tests/failpoints
scripts/failpoints.sh with "$bin"

start_servers "$bin" "$state"

# The model by itself, while no server is busy: its checker asks shared packages for features that
# nothing else needs.
modelled=0
cargo run --locked --quiet --package model --features walk -- --mutations --states 2000000 \
    2>&1 | tee target/model.log || modelled=$?
status=0
cargo test --locked --workspace --features tests/failpoints --no-fail-fast 2>&1 | tee "$log" || status=$?

read -r suites passed failed ignored < <(awk '
    /^test result:/ {
        suites++
        for (i = 1; i < NF; i++) {
            if ($(i + 1) ~ /^passed/) passed += $i
            if ($(i + 1) ~ /^failed/) failed += $i
            if ($(i + 1) ~ /^ignored/) ignored += $i
        }
    }
    END { print suites + 0, passed + 0, failed + 0, ignored + 0 }' "$log")
echo
if [[ $failed -gt 0 || $status -ne 0 ]]; then
    grep -E '^test .* FAILED$|^error: |panicked at' "$log" | sort -u | head -n 40 || true
fi
echo "make test: $((passed + failed)) tests ran in $suites suites: $passed passed, $failed failed, $ignored ignored"
if [[ $passed -eq 0 ]]; then
    echo 'make test: no test ran, and that is a failure' >&2
    exit 1
fi
if [[ $modelled -ne 0 ]]; then
    echo 'make test: the model broke a promise, or missed a broken rule (target/model.log)' >&2
fi
[[ $status -ne 0 ]] || status=$modelled
exit "$status"
