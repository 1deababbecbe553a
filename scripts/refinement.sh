#!/usr/bin/env bash
# The model against the scripts of the gate on Redis and the code on PostgreSQL: the same random
# commands on both, equal answers and equal state after every call (tests/refinement). `make test`
# runs a short part. How many: HOLDFAST_REFINEMENT_REDIS and HOLDFAST_REFINEMENT_POSTGRES; which:
# HOLDFAST_SEED. Arguments go to the test binary. Ends the servers that it started.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/servers.sh

state=target/refinement-state
bin=target/debug/holdfast
export HOLDFAST_REFINEMENT_REDIS=${HOLDFAST_REFINEMENT_REDIS:-100000}
export HOLDFAST_REFINEMENT_POSTGRES=${HOLDFAST_REFINEMENT_POSTGRES:-20000}

scripts/setup.sh --native
# As `make test` builds, so that nothing is built twice.
cargo build --locked --workspace --bins --test refinement --features tests/failpoints

start_servers "$bin" "$state"

cargo test --locked --workspace --features tests/failpoints --test refinement -- --nocapture "$@"
