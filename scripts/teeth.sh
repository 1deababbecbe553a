#!/usr/bin/env bash
# Plants the bugs of tests/teeth in a copy of HEAD, and requires of each that the test which its
# patch names fails because of it. `teeth.sh NAME...` takes some; `teeth.sh --check` builds nothing:
# it says whether the patches still apply and the named tests still exist.
#
# All are planted at once and built once; each sleeps behind `planted("NAME")` until HOLDFAST_PLANTED
# names it (switch.patch). While none is named every test must pass: so it is the bug that fails it.
#
# A patch has a header above the diff, which `git apply` passes over:
#   bug:        what is wrong with the product then, in one sentence
#   from:       the rule of the protocol, the defect of a peer, or the case that it comes from
#   caught-by:  PACKAGE TARGET TEST, where TARGET is a test binary
#   because:    what the failing test must have said (extended regular expression)
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/servers.sh
root=$PWD

bugs=tests/teeth
tree=target/teeth
built=target/teeth-target
state=target/teeth-state
logs=target/teeth-logs
at_least=25     # bugs
test_within=600 # seconds; what waits for a condition does so for 180
at_once=${TEETH_JOBS:-$(nproc)}

# The guarantees that a test from end to end holds: each line is caught by one of its tests.
guarantees=(
    'selling::two_hundred_orders_for_a_hundred_units_sell_exactly_a_hundred'
    'selling::opposite_pairs_of_the_last_units_have_one_winner_and_the_loser_holds_nothing'
    'keys::one_key_a_hundred_times_at_once_over_two_replicas_is_one_order'
    'keys::a_key_with_another_body_is_refused_in_flight_and_afterwards'
    'keys::after_sell_out_an_accepted_key_still_answers_its_201'
    'commits::a_commit_whose_reply_is_lost_is_answered_with_its_order'
    'commits::a_commit_that_never_arrived_is_run_again'
    'payments::each_event_delivered_one_to_five_times_and_shuffled_ends_the_same'
    'payments::expiry_and_money_fired_together_have_one_end_each_and_the_money_is_right'
    'payments::cancel_and_money_fired_together_have_one_end_each_and_the_money_is_right'
    'gate::a_hold_whose_owner_died_is_given_back_within_seven_seconds'
    'gate::a_lost_sync_is_healed_by_the_sweep'
    'gate::flushall_between_reserve_and_settle_oversells_nothing_and_forgets_no_key'
    'outages::kafka_stopped_in_mid_sale_stops_no_accept_and_everything_drains'
    'poison::what_can_never_be_handled_is_dead_lettered_while_other_orders_go_on'
    'demo::the_demo_ends_clean_and_leaves_no_process_behind'
)

# Reads the header of a patch into bug, from, package, target, test and because.
header() { # PATCH
    local line
    bug='' from='' package='' target='' test='' because=''
    while IFS= read -r line; do
        case $line in
            'bug: '*) bug=${line#*: } ;;
            'from: '*) from=${line#*: } ;;
            'caught-by: '*) read -r package target test <<< "${line#*: }" ;;
            'because: '*) because=${line#*: } ;;
            'diff '*) break ;;
        esac
    done < "$1"
}

# The name of a patch, without its number.
name_it() { # PATCH
    name=${1##*/[0-9][0-9]-}
    name=${name%.patch}
}

# Every test as "FILE:fn NAME", and the folder of each package.
know_tests() {
    local manifest line
    declare -gA folders=()
    while IFS= read -r line; do
        manifest=${line%%:*}
        line=${line#*\"}
        folders[${line%\"*}]=${manifest%/Cargo.toml}
    done < <(grep -HE '^name = ' crates/*/Cargo.toml services/*/Cargo.toml tests/Cargo.toml tests/*/Cargo.toml)
    known=$(grep -rnoE --include='*.rs' '\bfn [a-z0-9_]+\(' crates services tests | sed -E 's/:[0-9]+:fn /:/')
}

# What keeps a patch from being planted; nothing when all is well.
complain() { # PATCH
    local patch=$1 line module folder
    header "$patch"
    [[ -n $bug && -n $from && -n $test && -n $because ]] || echo 'its header lacks a line'
    git apply --check "$patch" 2>&1 || true
    while IFS= read -r line; do
        [[ $line =~ ^(---|\+\+\+)\ [ab]/([^ ]+)$ ]] || continue
        line=${BASH_REMATCH[2]}
        [[ $line =~ ^(services|crates|lua|migrations)/ && $line != */tests/* ]] ||
            echo "$line is no code of the product"
    done < "$patch"
    [[ $(< "$patch") =~ planted\(\"$name\"\)|planted\ ==\ \'$name\' ]] || echo "nothing in it waits for its name"
    folder=${folders[$package]:-}
    if [[ -z $folder ]]; then
        echo "there is no package $package"
        return
    fi
    module=${test%::*}
    [[ $'\n'$known$'\n' =~ $'\n'$folder/[^:$'\n']*/${module##*::}\.rs:${test##*::}\($'\n' ]] ||
        echo "there is no test $test in $package"
}

check() {
    local patch complaints catchers=' ' one count=0 bad=0
    know_tests
    for patch in "$bugs"/[0-9]*.patch; do
        name_it "$patch"
        complaints=$(complain "$patch")
        if [[ -n $complaints ]]; then
            bad=1
            sed "s|^|$patch: |" <<< "$complaints"
        fi
        header "$patch"
        catchers+="$test "
        count=$((count + 1))
    done
    if [[ $bad -eq 0 ]]; then
        cat "$bugs"/switch.patch "$bugs"/[0-9]*.patch | git apply --check || bad=1
    fi
    for one in "${guarantees[@]}"; do
        [[ $catchers == *" $one "* ]] || { bad=1; echo "nothing is planted for $one to catch"; }
    done
    if [[ $count -lt $at_least ]]; then
        bad=1
        echo "fewer than $at_least bugs"
    fi
    return "$bad"
}

# A copy of HEAD with all bugs in it, and what was compiled already of the packages of others.
# Nothing of it is ever found by a build of the repository itself. By way of a commit that nothing
# names, so that only files whose content differs are written, and little is compiled again.
prepare() {
    local index=$root/$logs/index planted
    mkdir -p "$logs"
    git diff --quiet HEAD || echo 'teeth: the bugs are planted in HEAD: what is not committed is not in it' >&2
    GIT_INDEX_FILE=$index git read-tree HEAD
    cat "$bugs"/switch.patch "$bugs"/[0-9]*.patch | GIT_INDEX_FILE=$index git apply --cached
    planted=$(GIT_AUTHOR_NAME=teeth GIT_AUTHOR_EMAIL=teeth@localhost GIT_COMMITTER_NAME=teeth GIT_COMMITTER_EMAIL=teeth@localhost \
        git commit-tree -p HEAD -m 'all bugs of tests/teeth' "$(GIT_INDEX_FILE=$index git write-tree)")
    git worktree prune
    if [[ -e $tree/.git ]]; then
        git -C "$tree" checkout --quiet --force --detach "$planted"
        git -C "$tree" clean -qfd
    else
        git worktree add --quiet --force --detach "$tree" "$planted"
    fi
    if [[ ! -d $built/debug && -d target/debug/deps ]]; then
        mkdir -p "$built/debug"
        cp -a --reflink=auto target/debug/{deps,build,.fingerprint} "$built/debug/"
        local package
        for package in "${!folders[@]}"; do
            rm -rf "$built/debug/.fingerprint/$package"-*
        done
    fi
}

# Builds the binary and the test binaries that are named, with the features of the whole workspace,
# and remembers where the latter are.
build() { # TARGET...
    local line
    declare -gA binaries=()
    while IFS= read -r line; do
        read -r -a line <<< "$line"
        binaries[${line[0]#"$root/$tree/"} ${line[1]}]=${line[2]}
    done < <(cd "$tree" &&
        CARGO_TARGET_DIR=$root/$built CARGO_INCREMENTAL=1 cargo build --locked --workspace --bins \
            "${@/#/--test=}" --message-format=json-render-diagnostics |
        sed -nE 's|.*"manifest_path":"([^"]*)/Cargo.toml","target":\{"kind":\["test"\],"crate_types":\[[^]]*\],"name":"([^"]+)".*"executable":"([^"]+)".*|\1 \2 \3|p')
    [[ ${#binaries[@]} -gt 0 ]]
}

run() { # PACKAGE TARGET TEST...
    local folder=${folders[$1]}
    (cd "$tree/$folder" && CARGO_MANIFEST_DIR=$root/$tree/$folder \
        timeout --kill-after=10 "$test_within" "${binaries[$folder $2]}" --exact --test-threads=1 "${@:3}")
}

servers_answer() {
    local address
    for address in "$DATABASE_URL" "$REDIS_URL" "$KAFKA_BROKERS"; do
        address=${address##*@}
        address=${address##*//}
        address=${address%%/*}
        (exec 3<> "/dev/tcp/${address%:*}/${address##*:}") 2> /dev/null || return 1
    done
}

# Runs one test without a bug, since otherwise its failure would say nothing, and then with each of
# the bugs that it is to catch; prints their rows.
judge() { # "PACKAGE TARGET TEST"
    local patch log begun sound=0 what
    local catcher=$1
    log=$logs/sound-${catcher##* }.log
    # shellcheck disable=SC2086
    if ! run $catcher > "$log" 2>&1 || ! grep -q '^test result: ok. 1 passed; 0 failed' "$log"; then
        sound=1
    fi
    for patch in "${patches[@]}"; do
        header "$patch"
        [[ "$package $target $test" == "$catcher" ]] || continue
        name_it "$patch"
        log=$logs/$name.log
        begun=$SECONDS
        what=''
        HOLDFAST_PLANTED=$name run "$package" "$target" "$test" > "$log" 2>&1 || true
        if grep -q '^test result: ok. 1 passed' "$log"; then
            what='NOT CAUGHT: the test passes'
        elif ! grep -q '^test result: FAILED. 0 passed; 1 failed' "$log"; then
            what='NOT CAUGHT: the test gave no result'
        elif ! servers_answer; then
            what='NOT CAUGHT: a server is away'
        elif ! grep -qE -e "$because" "$log"; then
            what='NOT CAUGHT: the test failed for another reason'
        elif [[ $sound -ne 0 ]]; then
            what='NOT CAUGHT: the test fails without the bug, too'
        fi
        printf '%-28s%-112s%4s s  %s\n' "$name" "$package $test" "$((SECONDS - begun))" "${what:-caught}" |
            tee "$logs/$name.row"
    done
}

main() {
    local patches=() targets=() catchers=() patch one caught
    local -A seen=()
    if [[ $# -eq 0 ]]; then
        patches=("$bugs"/[0-9]*.patch)
    fi
    for one in "$@"; do
        patch=$(ls "$bugs"/*-"$one".patch "$bugs/$one"-*.patch "$bugs/$one".patch 2> /dev/null | head -n 1 || true)
        [[ -n $patch ]] || { echo "teeth: there is no bug $one" >&2; exit 2; }
        patches+=("$patch")
    done
    check
    scripts/setup.sh --native
    prepare
    for patch in "${patches[@]}"; do
        header "$patch"
        [[ " ${targets[*]} " == *" $target "* ]] || targets+=("$target")
        [[ -n ${seen[$test]:-} ]] || catchers+=("$package $target $test")
        seen[$test]=1
    done
    build "${targets[@]}"
    start_servers "$built/debug/holdfast" "$state"
    rm -f "$logs"/*.row
    printf '\n%-28s%-112s%6s\n' bug 'caught by' in
    for one in "${catchers[@]}"; do
        while [[ $(jobs -rp | wc -l) -ge $at_once ]]; do
            wait -n || true
        done
        judge "$one" &
    done
    wait
    caught=$(cat "$logs"/*.row | grep -c ' caught$' || true)
    echo
    echo "teeth: $caught of ${#patches[@]} caught"
    [[ $caught -eq ${#patches[@]} ]]
}

if [[ ${1:-} == --check ]]; then
    check
    exit
fi
main "$@"
