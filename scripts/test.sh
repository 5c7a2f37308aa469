# shellcheck shell=bash
# The test run of ./dev test; sourced by it. Every part runs even if one before it failed, and the summary
# at the end says what each part did.

parts=()
failures=0
skips=() # what was skipped, a line each

# part NAME COMMAND...: runs a part, times it, and keeps its closing line and what it skipped for the summary.
part() {
    local name=$1 log status=0 start=$SECONDS closing
    shift
    say "$name"
    log=$(mktemp)
    "$@" 2>&1 | tee "$log" || status=1
    closing=$(grep -E '^[0-9]+% tests passed|^check: ' "$log" | tail -1 || true)
    mapfile -t -O ${#skips[@]} skips < <(sed -n "s|^skip: |$name: |p" "$log")
    rm -f "$log"
    [ $status -eq 0 ] || failures=$((failures + 1))
    parts+=("$(printf '%-6s %-44s %4d s  %s' "$([ $status -eq 0 ] && echo ok || echo FAILED)" \
        "$name" $((SECONDS - start)) "$closing")")
}

# Prints what the last run of CTest skipped, whole or in part: tests say so themselves, and CTest shows what they print
# only where they fail.
say_skipped() {
    awk '/^[0-9]+\/[0-9]+ Test: / { name = $3 }
        /^skipped/ { print "skip: " name ": " $0 }
        /^\[  SKIPPED \] / && !/listed below/ && !seen[name, $0]++ { print "skip: " name ": " $4 }' \
        "build/$1/Testing/Temporary/LastTest.log"
}

# run_ctest PRESET LABELS [ARGUMENT...]
run_ctest() {
    local preset=$1 labels=$2 status=0
    shift 2
    ctest --test-dir "build/$preset" --label-regex "$labels" --parallel "$(nproc)" --no-tests=error \
        --output-on-failure --timeout 600 "$@" || status=$?
    say_skipped "$preset"
    return $status
}

build_fuzzers() {
    install_missing "${FUZZ_PACKAGES[@]}" || return
    cmake --preset fuzz >/dev/null && cmake --build build/fuzz --target fuzzers
}

# Files of jobs and of test programs in shared memory that are there now; those that were there before are not ours to
# judge.
shared_files() {
    find /dev/shm -maxdepth 1 -regextype egrep -regex '.*/(reshard|unit|fault|np|rs)-[^/]*' 2>/dev/null | sort
}

# Prints the files of jobs that are new since $1 and that no process maps.
left_over() {
    local file
    comm -13 <(echo "$1") <(shared_files) | while IFS= read -r file; do
        grep -qsF "$file" /proc/[0-9]*/maps || echo "left in shared memory: $file"
    done
}

# Fails if the tests left a file; what somebody else is making or removing right now gets a moment.
check_left_over() {
    local try left
    for try in 1 2 3 4 5; do
        left=$(left_over "$1")
        [ -z "$left" ] && break
        [ "$try" -eq 5 ] || sleep 1
    done
    echo "${left:-check: nothing left in /dev/shm}"
    [ -z "$left" ]
}

run_tests() {
    local before
    case "$1" in
    quick | full | long) ;;
    *)
        echo "./dev test [quick|full|long]" >&2
        return 2
        ;;
    esac
    before=$(shared_files)
    SECONDS=0
    part "rules" scripts/check.sh
    part "release: build" build release
    if [ "$1" = quick ]; then
        part "release: quick tests" run_ctest release '^quick$'
    else
        part "address sanitizer: build" build asan
        part "address sanitizer: quick tests" run_ctest asan '^quick$'
        part "MPICH: build" build mpich
        part "MPICH: its tests" run_ctest mpich '^mpich$'
        part "release: quick and full tests" run_ctest release '^(quick|full)$'
    fi
    if [ "$1" = long ]; then
        part "thread sanitizer: build" build tsan
        part "thread sanitizer: quick tests" run_ctest tsan '^quick$'
        part "release: long tests" run_ctest release '^long$' --timeout 3600
        part "fuzzers: build" build_fuzzers
        part "fuzzers: a minute each" run_ctest fuzz '^fuzz$'
    fi
    part "shared memory" check_left_over "$before"

    say "summary ($((SECONDS / 60)) min $((SECONDS % 60)) s)"
    printf '%s\n' "${parts[@]}"
    [ ${#skips[@]} -eq 0 ] || printf '%s\n' 'skipped, whole or in part:' "${skips[@]}"
    if [ $failures -gt 0 ]; then
        echo "$failures of ${#parts[@]} parts failed"
        return 1
    fi
    echo "all ${#parts[@]} parts passed"
}
