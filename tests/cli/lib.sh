# shellcheck shell=bash
# The runner of the command's tests; sourced by each with the path of the command as $1. A test is a command
# line, the exit code that it must have, and a pattern (grep -E) that its output must match. However a test ends,
# what it started ends too: a job's processes are known by their folder, which is the test's own.

reshard=$1
work=$(mktemp -d)
passed=0
failed=0
in_work() {
    find /proc/[0-9]*/cwd -maxdepth 0 -lname "$work*" 2>/dev/null | cut -d/ -f3
}
tidy() {
    local status=$? job try
    cd / || return
    for try in 1 2 3 4 5; do
        in_work | xargs -r kill -9 2>/dev/null
        [ -n "$(in_work)" ] || break
        sleep 0.2
    done
    for job in "$work"/*/job.json; do
        [ ! -f "$job" ] || timeout 60 "$reshard" clean "${job%/*}" >/dev/null 2>&1
    done
    ! mountpoint -q "$work/small" || umount -l "$work/small"
    rm -rf "$work"
    # What failed counts, wherever the test ended.
    [ $status -ne 0 ] || [ $failed -eq 0 ] || exit 1
}
trap tidy EXIT
cd "$work" || exit 1

# What jobs have in shared memory, and their launchers in the temporary folder.
of_jobs() {
    find /dev/shm "${TMPDIR:-/tmp}" -maxdepth 1 -name 'reshard-*' | sort
}

before=$(of_jobs)

# verdict NAME CONDITION_STATUS [DETAIL]
verdict() {
    if [ "$2" -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $1"
        [ $# -lt 3 ] || printf '%s\n' "$3" | head -30 | sed 's/^/    /'
    fi
}

# expect CODE PATTERN ARGUMENT...: both streams together.
expect() {
    local code=$1 pattern=$2 output status=0
    shift 2
    output=$(timeout 240 "$reshard" "$@" 2>&1 </dev/null) || status=$?
    [ "$status" -eq "$code" ] && grep -qE -- "$pattern" <<<"$output"
    verdict "reshard $* (wanted exit code $code, found $status; pattern $pattern)" $? "$output"
}

# refuse CODE PATTERN ARGUMENT...: an error: on standard error alone, beginning with "reshard".
refuse() {
    local code=$1 pattern=$2 output status=0
    shift 2
    output=$(timeout 60 "$reshard" "$@" 2>&1 >"$work/stdout" </dev/null) || status=$?
    [ "$status" -eq "$code" ] && [ ! -s "$work/stdout" ] && [[ $output == reshard* ]] &&
        grep -qE -- "$pattern" <<<"$output"
    verdict "reshard $* (wanted error $code, found $status; pattern $pattern)" $? "$output"
}

# holds EXPRESSION ARGUMENT...: the JSON that the command prints, as `j`, satisfies a Python expression.
holds() {
    local expression=$1 output status=0
    shift
    output=$(timeout 120 "$reshard" "$@" 2>&1 </dev/null |
        python3 -c "
import json, sys
j = json.load(sys.stdin)
if not ($expression):
    print(json.dumps(j)[:2000])
    sys.exit(1)" 2>&1) || status=$?
    verdict "reshard $* : $expression" $status "$output"
}

# check NAME COMMAND...: any other command that must succeed.
check() {
    local name=$1 output status=0
    shift
    output=$("$@" 2>&1) || status=$?
    verdict "$name: $*" $status "$output"
}

# check_clean NAME: nothing of jobs of this name is left, but for what others left before this test.
check_clean() {
    local left
    left=$(comm -13 <(echo "$before") <(of_jobs) | grep -F -- "$1")
    [ -z "$left" ]
    verdict "/dev/shm and ${TMPDIR:-/tmp} are clean after $1" $? "$left"
}

# until_true SECONDS COMMAND...: waits until the command succeeds.
until_true() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $deadline ] || return 1
        sleep 0.1
    done
}

# check_gone NAME: nothing is left of a job, processes neither.
check_gone() {
    check_clean "$1"
    until_true 10 bash -c "! pgrep -f -- '--job $1( |\$)'"
    verdict "no process of $1 is left" $? "$(pgrep -af -- "--job $1( |\$)")"
}

# stop_job NAME: ends a running job whose process is $job, and whose output is in NAME.log.
stop_job() {
    expect 0 'the job has stopped' stop "$1"
    wait $job
    verdict "$1 ends with 0" $? "$(tail -5 "$1.log")"
    check_gone "$1"
}

# status_of NAME EXPRESSION: of the job's status, as `j`.
status_of() {
    "$reshard" status "$1" --json | python3 -c "
import json, sys
j = json.load(sys.stdin)
print($2)"
}

# is_at NAME STEP: the job has come so far.
is_at() {
    [ "$(status_of "$1" 'j["step"]')" -ge "$2" ]
}

# begin NAME ARGUMENT...: starts the job of "${train[@]}", its process in $job, its output in NAME.log.
begin() {
    local name=$1
    shift
    "$reshard" "${train[@]}" --job "$name" "$@" >"$name.log" 2>&1 &
    job=$!
    until_true 60 is_at "$name" 3
    verdict "$name begins" $? "$(tail -5 "$name.log")"
}

# rank_process NAME RANK: of the newest world.
rank_process() {
    local world
    world=$(status_of "$1" 'j["worlds"][0]["world"]')
    cut -d' ' -f1 "$1/ranks/$world-$2"
}

# goes_on NAME WHAT WORLD [SECONDS]: the job makes steps again, in the world of this number.
goes_on() {
    local step
    step=$(status_of "$1" 'j["step"]')
    until_true "${4:-30}" bash -c "[ \"\$('$reshard' status $1 --json | python3 -c '
import json, sys
j = json.load(sys.stdin)
print(j[\"step\"] > $step + 2 and j[\"worlds\"][0][\"world\"] == $3)')\" = True ]"
    verdict "$2: the job goes on" $? "$(tail -5 "$1.log"; cat "$1/worlds.json")"
}

# comparable NAME MOST: the last step of the job that is there to compare, at most MOST.
comparable() {
    python3 -c "
import json
print(min($2, max(l['step'] for l in map(json.loads, open('$1/metrics.jsonl')) if 'loss' in l)))"
}

# same_losses NAME OTHER LAST: to step LAST the losses are those of OTHER, which began alike and had no switch: to the
# bit until the first switch of NAME, then within 1e-5.
same_losses() {
    check "the same losses" python3 -c "
import json
def read(path):
    lines = [json.loads(l) for l in open(path)]
    return lines, {l['step']: l['loss'] for l in lines if 'loss' in l}
lines, a = read('$1/metrics.jsonl')
_, b = read('$2/metrics.jsonl')
first = min(l['step'] for l in lines if l.get('event') == 'switch')
for s in range(1, $3 + 1):
    assert a[s] == b[s] if s <= first else abs(a[s] - b[s]) <= 1e-5 * b[s], (s, first, a[s], b[s])
"
}

# small_room SIZE: the folder "small" is a memory file system of this size; without the right to mount one, false.
small_room() {
    mkdir -p small && mount -t tmpfs -o size="$1" tmpfs small 2>/dev/null ||
        { echo "skipped: what needs a full memory file system, which only root can mount" && false; }
}

finish() {
    echo "$passed passed, $failed failed"
    [ "$passed" -gt 0 ] && [ "$failed" -eq 0 ]
    exit
}
