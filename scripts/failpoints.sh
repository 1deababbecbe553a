#!/usr/bin/env bash
# Crash points are for the tests alone. Says whether a build has them, and fails when it should not:
#   scripts/failpoints.sh without BINARY   fails when the binary has any trace of them
#   scripts/failpoints.sh with BINARY      fails when it has none (so that the above is no blind eye)
#   scripts/failpoints.sh graph            fails when a plain build of the workspace would have them
#   scripts/failpoints.sh nothing          fails when they are anything in a build without the feature
set -euo pipefail
cd "$(dirname "$0")/.."

# In every binary with crash points: crates/platform/src/failpoints/mod.rs
marker=holdfast-failpoint

case ${1-} in
with | without)
    found=without
    grep -qaF "$marker" "$2" && found=with
    if [[ $found != "$1" ]]; then
        echo "$2 is a build $found crash points, and should be one $1" >&2
        exit 1
    fi
    ;;
graph)
    grep -qF "\"$marker\"" crates/platform/src/failpoints/mod.rs
    features=$(cargo tree --locked --workspace --edges normal,build --format '{p} [{f}]')
    grep -q '^platform ' <<< "$features" # else the list is not what is meant
    if grep -F failpoints <<< "$features"; then
        echo 'a plain build has crash points: some package turns the feature on' >&2
        exit 1
    fi
    ;;
nothing)
    # The test is not there in a build with them, and none that ran proves nothing.
    said=$(cargo test --locked --quiet --workspace --test crash_point)
    printf '%s\n' "$said"
    grep -q '^test result: ok. 1 passed' <<< "$said"
    ;;
*)
    sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
