#!/usr/bin/env bash
# Writes .sqlx, the answers of a real PostgreSQL about every checked query, so that plain builds
# need no database; with --check it compares instead, and fails on a difference.
#
# The database is made for this from migrations/ and thrown away. (The binary can't start it: it
# does not build while the cache is stale.)
set -euo pipefail
cd "$(dirname "$0")/.."

scratch=$(mktemp -d /tmp/holdfast-sqlx.XXXXXX)
programs=$(dirname "$(command -v initdb || ls /usr/lib/postgresql/*/bin/initdb | sort -V | tail -n 1)")
as_server=()
if [[ $(id -u) -eq 0 ]]; then
    # PostgreSQL does not run as root.
    chown postgres "$scratch"
    as_server=(runuser -u postgres --)
fi
server() { (cd "$scratch" && "${as_server[@]}" "$programs/$1" "${@:2}"); }
clean_up() {
    server pg_ctl -D "$scratch/data" -m immediate stop > /dev/null 2>&1 || true
    rm -rf "$scratch"
}
trap clean_up EXIT

server initdb -D "$scratch/data" -U postgres -A trust --encoding=UTF8 --locale=C --no-sync > "$scratch.log" \
    || { cat "$scratch.log" >&2; exit 1; }
rm -f "$scratch.log"
server pg_ctl -D "$scratch/data" -w -l "$scratch/log" \
    -o "-c listen_addresses='' -c unix_socket_directories='$scratch' -c fsync=off" start > /dev/null \
    || { cat "$scratch/log" >&2; exit 1; }
for migration in migrations/*.sql; do
    psql -X -q -h "$scratch" -U postgres -d postgres -v ON_ERROR_STOP=1 -1 -f "$migration" > /dev/null
done

# The cache is written while the package is compiled, from dependencies as the whole workspace has
# them. Its time stamp is put back, and a wrapper that does nothing keeps this build of our packages
# apart from others, so that nothing else is compiled again.
cache=$scratch/cache source=crates/store/src/lib.rs
mkdir "$cache"
touch -r "$source" "$scratch/stamp"
touch "$source"
status=0
SQLX_OFFLINE=false SQLX_OFFLINE_DIR=$cache \
    DATABASE_URL="postgres://postgres@localhost/postgres?host=$scratch" \
    RUSTC_WORKSPACE_WRAPPER=env \
    cargo check --locked --quiet --workspace --features tests/failpoints --test pg || status=$?
touch -r "$scratch/stamp" "$source"
[[ $status -eq 0 ]] || { echo 'sqlx: a query does not fit the schema (above)' >&2; exit 1; }

if [[ ${1:-} == --check ]]; then
    diff -rq "$cache" .sqlx || { echo 'sqlx: .sqlx is stale: run `make sqlx` and add it' >&2; exit 1; }
    echo "sqlx: $(find "$cache" -name '*.json' | wc -l) queries, cache is fresh"
else
    mkdir -p .sqlx
    find .sqlx -name 'query-*.json' -delete
    cp "$cache"/*.json .sqlx/
    echo "sqlx: wrote $(find .sqlx -name '*.json' | wc -l) queries"
fi
