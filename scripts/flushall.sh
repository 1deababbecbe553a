#!/usr/bin/env bash
# A flash sale in which Redis forgets everything three times, on the running system (`make up`).
# Prints the time from each FLUSHALL until the gate is again what PostgreSQL says, then the sale's
# verdict. Ends with 0 when the verdict is ok and every invariant is green.
#
#   scripts/flushall.sh [STATE_DIR] [REQUESTS]
set -euo pipefail
cd "$(dirname "$0")/.."

state=${1:-.holdfast}
requests=${2:-60000}
bin=${HOLDFAST_BIN:-target/debug/holdfast}
within=30 # seconds to be exact again

# shellcheck source=/dev/null
source "$state/holdfast.env"
sale=$(mktemp)
trap 'rm -f "$sale"' EXIT

"$bin" load flash --skus 20 --stock 500 --requests "$requests" --clients 100 --duplicates 0.1 \
    --payment-failures 0.05 --rate 1500 --output json > "$sale" &
load=$!

# The client of Debian 12 does not read a password without a name from the URL.
address=${REDIS_URL##*@} password=${REDIS_URL#*://} password=${password%@*}
address=${address#redis://}
redis() {
    local port=${address##*:}
    REDISCLI_AUTH=${password#*:} redis-cli --no-auth-warning -h "${address%%:*}" -p "${port%%/*}" "$@"
}
now() { date +%s%N; }
exact() { "$bin" reconcile --output json > /dev/null; }

late=0
for round in 1 2 3; do
    sleep 5 # of the sale, not for anything to happen
    if ! kill -0 "$load" 2> /dev/null; then
        echo "the sale was over before the loss $round: more requests are needed" >&2
        exit 1
    fi
    held=$(redis DBSIZE)
    if [[ $(redis FLUSHALL) != OK ]]; then
        echo "loss $round: Redis refuses" >&2
        exit 1
    fi
    begun=$(now)
    until exact; do
        if (($(now) - begun > within * 1000000000)); then
            echo "loss $round: not exact again within $within s" >&2
            late=1
            break
        fi
    done
    echo "loss $round of $held keys: exact again after $((($(now) - begun) / 1000000)) ms"
done

status=0
wait "$load" || status=$?
cat "$sale"
"$bin" verify --output table || status=$?
[[ $status -eq 0 && $late -eq 0 ]]
