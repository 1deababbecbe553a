#!/usr/bin/env bash
# What can be held without running the system: format, lints, rules of the code base, golden files,
# and the cache of checked SQL against a fresh database. Runs all of it, then says what failed.
set -uo pipefail
cd "$(dirname "$0")/.."

failed=()
step() { # NAME COMMAND...
    local name=$1 begun=$SECONDS
    shift
    echo "== $name"
    if "$@"; then
        echo "== $name: ok ($((SECONDS - begun)) s)"
    else
        echo "== $name: FAILED"
        failed+=("$name")
    fi
}

scripts/setup.sh --native || exit 1
step format cargo fmt --all --check
step lints cargo clippy --locked --workspace --all-targets --features tests/failpoints --quiet -- -D warnings
step 'lints of what is shipped' cargo clippy --locked --workspace --bins --quiet -- -D warnings
step 'no crash points in what is shipped' scripts/failpoints.sh graph
step 'a crash point is nothing' cargo test --locked --quiet --package platform --lib
step 'rules of the code base' cargo test --locked --quiet --package tidy
step 'golden files' cargo test --locked --quiet --package contracts
step 'query cache' scripts/sqlx.sh --check
step 'planted bugs' scripts/teeth.sh --check

if [[ ${#failed[@]} -gt 0 ]]; then
    printf 'make check: FAILED: %s\n' "$(IFS=,; echo "${failed[*]}")"
    exit 1
fi
echo 'make check: all passed'
