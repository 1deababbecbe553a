#!/usr/bin/env bash
# To be sourced by a script that tests: PostgreSQL, Redis and Kafka for as long as it runs.
set -euo pipefail

# Starts servers without data, or takes those whose addresses are in the environment; exports their
# addresses. What it started ends with the script, in every case.
start_servers() { # BINARY STATE_DIR
    servers_bin=$1 servers_state=$2
    trap stop_servers EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    "$servers_bin" down --state-dir "$servers_state" --delete-data > /dev/null
    "$servers_bin" up --servers-only --detach --state-dir "$servers_state"
    # shellcheck source=/dev/null
    source "$servers_state/holdfast.env"
}

stop_servers() { "$servers_bin" down --state-dir "$servers_state" > /dev/null || true; }
