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
# All that is built here, and by `make test`, is named by targets of the whole workspace and not by
# packages: what a package is built from depends on the others that are asked for, and each choice of
# packages would compile the dependencies again with features of its own.
all=(--locked --workspace --features tests/failpoints)
step format cargo fmt --all --check
step lints cargo clippy "${all[@]}" --all-targets --quiet -- -D warnings
step 'lints of what is shipped' cargo clippy --locked --workspace --bins --quiet -- -D warnings
step 'no crash points in what is shipped' scripts/failpoints.sh graph
step 'a crash point is nothing' scripts/failpoints.sh nothing
step 'rules of the code base' cargo test "${all[@]}" --quiet --test tidy
step 'golden files' cargo test "${all[@]}" --quiet --test contract
step 'query cache' scripts/sqlx.sh --check
step 'planted bugs' scripts/teeth.sh --check

if [[ ${#failed[@]} -gt 0 ]]; then
    printf 'make check: FAILED: %s\n' "$(IFS=,; echo "${failed[*]}")"
    exit 1
fi
echo 'make check: all passed'
