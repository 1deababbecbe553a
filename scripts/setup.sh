#!/usr/bin/env bash
# Installs what building and running Holdfast needs, and says what it did. Safe to run again: what
# is there already is left alone. Where it can't install, it names what is missing and exits 1.
#
# `--native` asks for the native servers even where others would serve: the tests of faults start,
# kill and restart their own. Servers are not started or stopped here: see `holdfast up`.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# Where the native servers are not wanted: addresses given, or a Docker engine that runs them.
servers_elsewhere() {
    if [[ -n ${DATABASE_URL:-} && -n ${REDIS_URL:-} && -n ${KAFKA_BROKERS:-} ]]; then
        say 'servers: addresses in the environment are used'
        return 0
    fi
    if command -v docker > /dev/null && timeout 3 docker info > /dev/null 2>&1 \
        && docker compose version > /dev/null 2>&1; then
        say 'servers: docker compose is used'
        return 0
    fi
    return 1
}

have() { command -v "$1" > /dev/null 2>&1; }
have_header() { printf '#include <%s>\n' "$1" | "${CC:-cc}" -E -x c - > /dev/null 2>&1; }
have_postgres() { have initdb || compgen -G '/usr/lib/postgresql/*/bin/initdb' > /dev/null; }
have_java() {
    local major
    have java || return 1
    major=$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1)
    [[ -n $major && $major -ge 17 ]]
}

packages=()
want() { # PACKAGE TEST...: the package is missing when the test fails
    local package=$1
    shift
    "$@" || packages+=("$package")
}

find_missing_packages() {
    # The client library of Kafka is built from source: cmake, a compiler, and the headers of
    # OpenSSL, zlib and curl (its build includes curl's header when TLS is on, and links nothing).
    want gcc have gcc
    want g++ have g++
    want make have make
    want cmake have cmake
    want pkg-config have pkg-config
    want libssl-dev have_header openssl/ssl.h
    want zlib1g-dev have_header zlib.h
    want libcurl4-openssl-dev have_header curl/curl.h
    if [[ $native == yes ]]; then
        want postgresql have_postgres
        want redis-server have redis-server
        # For services whose clock is wrong (`make chaos`).
        want faketime have faketime
        want default-jre-headless have_java
        [[ -n ${KAFKA_HOME:-} ]] || want maven have mvn
    fi
}

install_missing_packages() {
    if [[ ${#packages[@]} -eq 0 ]]; then
        say 'packages: all present'
        return
    fi
    local as_root=()
    if [[ $(id -u) -ne 0 ]]; then
        if have sudo && sudo -n true 2> /dev/null; then
            as_root=(sudo -n)
        else
            as_root=(false)
        fi
    fi
    if ! have apt-get || [[ ${as_root[0]:-} == false ]]; then
        say "packages missing: ${packages[*]}"
        say "on Debian or Ubuntu, as root:  apt-get update && apt-get install ${packages[*]}"
        die 'or, with a Docker engine and no toolchain at all:  docker compose up --wait'
    fi
    say "packages: installing ${packages[*]}"
    local log=target/setup-apt.log
    "${as_root[@]}" apt-get update > "$log" 2>&1 || { tail -n 20 "$log" >&2; die 'apt-get update failed'; }
    # The run level keeps packages from starting their services where no systemd runs: the servers
    # that we want are started by `holdfast up`, and nothing else should be left running.
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y --no-install-recommends \
        "${packages[@]}" >> "$log" 2>&1 || { tail -n 20 "$log" >&2; die "apt-get install failed: $log"; }
    packages=()
    find_missing_packages
    [[ ${#packages[@]} -eq 0 ]] || die "still missing after the installation: ${packages[*]}"
    say 'packages: installed'
}

check_rust() {
    if ! have cargo && [[ -x ${CARGO_HOME:-$HOME/.cargo}/bin/cargo ]]; then
        PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
    fi
    have cargo || die "cargo is missing: install Rust $rust_version or newer (rustup, or a package of your system)"
    local version
    version=$(rustc --version | sed 's/^rustc \([0-9.]*\).*/\1/')
    if [[ $(printf '%s\n%s\n' "$rust_version" "$version" | sort -V | head -n 1) != "$rust_version" ]]; then
        die "Rust $version is too old: $rust_version or newer is needed (rustup update stable)"
    fi
    say "rust: $version"
}

# The jars count as present only if a complete copy of exactly this pom was made, and the broker,
# its tools and the log binding are there.
kafka_is_complete() {
    local libs=$1
    [[ -f $libs/.complete ]] || return 1
    [[ $(< "$libs/.complete") == "$(sha256sum < deploy/kafka/pom.xml)" ]] || return 1
    [[ -s $libs/kafka_2.13-$kafka_version.jar && -s $libs/kafka-tools-$kafka_version.jar ]] || return 1
    compgen -G "$libs/log4j-slf4j-impl-*.jar" > /dev/null
}

copy_kafka() {
    local libs=target/kafka/libs fresh=target/kafka/libs.new
    if [[ -n ${KAFKA_HOME:-} ]]; then
        [[ -s $KAFKA_HOME/libs/kafka_2.13-$kafka_version.jar ]] \
            || die "KAFKA_HOME=$KAFKA_HOME has no Kafka $kafka_version: unset it, or point it there"
        say "kafka: $kafka_version in KAFKA_HOME"
        return
    fi
    if kafka_is_complete "$libs"; then
        say "kafka: $kafka_version present in $libs"
        return
    fi
    say "kafka: copying $kafka_version and what it needs to $libs"
    rm -rf "$fresh"
    mkdir -p "$fresh"
    local log=target/setup-kafka.log
    mvn -B -ntp -f deploy/kafka/pom.xml dependency:copy-dependencies -DincludeScope=runtime \
        -DoutputDirectory="$PWD/$fresh" > "$log" 2>&1 \
        || { tail -n 20 "$log" >&2; die "the jars of Kafka could not be copied: $log"; }
    sha256sum < deploy/kafka/pom.xml > "$fresh/.complete"
    kafka_is_complete "$fresh" || die "the copy has no broker of version $kafka_version: $log"
    rm -rf "$libs"
    mv "$fresh" "$libs"
    say "kafka: $(find "$libs" -name '*.jar' | wc -l) jars"
}

rust_version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
kafka_version=$(sed -n 's/.*<kafka.version>\(.*\)<.*/\1/p' deploy/kafka/pom.xml)
native=yes
[[ ${1:-} == --native ]] || ! servers_elsewhere || native=no
mkdir -p target
find_missing_packages
install_missing_packages
check_rust
[[ $native == no ]] || copy_kafka
say 'done'
