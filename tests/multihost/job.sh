# shellcheck shell=bash
# Supervised jobs on the hosts of hosts.sh. Sourced by a test with its own arguments: RESHARD TEXT.
#
#   on_hosts LINE...                 brings up hosts, each a line of the file of hosts $work/hosts
#   begin NAME STEPS ARGUMENT...     starts a job on host1 in the background: $job
#   alone NAME STEPS ARGUMENT...     runs one on this machine as one host
#   alone_until NAME STEPS STEP ...  the same, stopped after STEP
#   verdict WHAT CODE TEXT           a check; TEXT explains a failure
#   wipe NAME HOST                   kills a job's ranks on a host and removes their memory
#   goes_on NAME RESTARTS WHAT       so many restarts, and further steps
#   exact NAME                       no restart lost a step
#   conclude                         the end of the test

reshard=$1
text=$2
. "$(dirname "$(readlink -f "$0")")/hosts.sh"
failed=0
job=0
train=(train --model llama-tiny --data "$text" --global-batch 4 --micro-batch 2 --seq 64 --dtype fp32 --seed 3
    --save-on-exit off)

on_hosts() {
    hosts_up $#
    work=$hosts_folder/work
    mkdir "$work"
    printf '%s\n' "$@" >"$work/hosts"
}

verdict() {
    if [ "$2" -eq 0 ]; then
        echo "ok: $1"
    else
        echo "FAILED: $1: $3"
        failed=1
    fi
}

conclude() {
    [ $failed -eq 0 ] || exit 1
    echo "passed"
}

# until_true SECONDS COMMAND...
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.1
    done
}

begin() {
    local name=$1 steps=$2
    shift 2
    on host1 timeout 200 "$reshard" "${train[@]}" --steps "$steps" --job "$work/$name" --hosts "$work/hosts" \
        --rsh-agent "$agent" "$@" >"$work/$name.out" 2>&1 &
    job=$!
}

alone() {
    local name=$1 steps=$2
    shift 2
    OMPI_MCA_btl=self,vader timeout 200 "$reshard" "${train[@]}" --steps "$steps" --job "$work/$name" "$@" \
        >"$work/$name.out" 2>&1
    verdict "one host" $? "$(tail -5 "$work/$name.out")"
}

# alone_until NAME STEPS STEP ARGUMENT...: stops it after STEP. (The rate depends on STEPS.)
alone_until() {
    local name=$1 steps=$2 step=$3 process
    shift 3
    OMPI_MCA_btl=self,vader timeout 200 "$reshard" "${train[@]}" --steps "$steps" --job "$work/$name" "$@" \
        >"$work/$name.out" 2>&1 &
    process=$!
    until_true 100 stepped "$name" "$step"
    "$reshard" stop "$work/$name" >>"$work/$name.out" 2>&1
    wait $process
    verdict "one host" $? "$(tail -5 "$work/$name.out")"
}

# stop_job NAME: ends a running job well.
stop_job() {
    local asked=0 ended=0
    on host1 timeout 60 "$reshard" stop "$work/$1" >"$work/stop.out" 2>&1 || asked=$?
    wait "$job" || ended=$?
    [ "$asked $ended" = "0 0" ]
    verdict "it is stopped ($asked, $ended)" $? "$(cat "$work/stop.out"; tail -5 "$work/$1.out")"
}

# refused NAME PATTERN ARGUMENT...: a job that does not begin, and why.
refused() {
    local name=$1 pattern=$2
    shift 2
    begin "$name" 5 "$@"
    ! wait "$job" && grep -qE "$pattern" "$work/$name.out"
    verdict "refused: $pattern" $? "$(cat "$work/$name.out")"
    nothing_left "$name"
}

# stepped NAME STEP: it has come so far.
stepped() {
    [ -f "$work/$1/metrics.jsonl" ] && python3 - "$work/$1/metrics.jsonl" "$2" <<'PYTHON'
import json, sys
steps = [0]
for line in open(sys.argv[1]):
    if line.endswith("\n") and '"loss"' in line:
        steps.append(json.loads(line).get("step", 0))
sys.exit(max(steps) < int(sys.argv[2]))
PYTHON
}

# last_step NAME: the last step that has a line.
last_step() {
    python3 - "$work/$1/metrics.jsonl" <<'PYTHON'
import json, sys
print(max([0] + [json.loads(l).get("step", 0) for l in open(sys.argv[1]) if l.endswith("\n") and '"loss"' in l]))
PYTHON
}

# comparable NAME MOST: the last step of the job that is there to compare, at most MOST.
comparable() {
    local step
    step=$(last_step "$1")
    echo $((step < $2 ? step : $2))
}

# further NAME: it has made two more steps since this was first asked after the last restart.
further() {
    python3 - "$work/$1/metrics.jsonl" <<'PYTHON'
import json, sys
steps = 0
for line in open(sys.argv[1]):
    if not line.endswith("\n"):
        continue
    row = json.loads(line)
    steps = 0 if row.get("event") == "restart" else steps + ("loss" in row)
sys.exit(steps < 2)
PYTHON
}

# events NAME EVENT: how many there are.
events() {
    grep -c "\"event\": *\"$2\"" "$work/$1/metrics.jsonl"
}

# restarted NAME N: at least so often.
restarted() {
    [ "$(events "$1" restart)" -ge "$2" ]
}

# check_events NAME EXPRESSION: of some row r of all rows.
check_events() {
    local text
    text=$(python3 - "$work/$1/metrics.jsonl" "$2" 2>&1 <<'PYTHON'
import json, sys
rows = [r for r in map(json.loads, open(sys.argv[1])) if "event" in r]
assert any(eval(sys.argv[2]) for r in rows), rows
PYTHON
    )
    verdict "$1: $2" $? "$text"
}

# cleaned HOST NAME: nothing of the job is in its memory.
cleaned() {
    local left
    left=$(on "$1" find /dev/shm -maxdepth 1 -name "reshard-*$2*") && [ -z "$left" ]
}

# same_losses NAME OTHER STEPS [TOLERANCE]: every step once, and within 1e-5 (0 where the layout never changes).
same_losses() {
    local text
    text=$(python3 - "$work/$1" "$work/$2" "$3" "${4:-1e-5}" 2>&1 <<'PYTHON'
import json, sys
def read(folder):
    return [(r["step"], r["loss"]) for r in map(json.loads, open(f"{folder}/metrics.jsonl")) if "loss" in r]
one, two, last, most = read(sys.argv[1]), read(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
assert [s for s, _ in one] == list(range(1, len(one) + 1)), [s for s, _ in one]
one, two = dict(one), dict(two)
bad = [s for s in range(1, last + 1) if abs(one[s] - two[s]) > most * abs(two[s])]
assert not bad, [(s, one[s], two[s]) for s in bad]
PYTHON
    )
    verdict "$1: the losses of $2, every step once" $? "$text"
}

# check_switches NAME COUNT: so many, all certified.
check_switches() {
    local text
    text=$(python3 - "$work/$1/metrics.jsonl" "$2" 2>&1 <<'PYTHON'
import json, sys
switches = [r for r in map(json.loads, open(sys.argv[1])) if r.get("event") == "switch"]
assert len(switches) == int(sys.argv[2]) and all(r["certificate"] == "ok" for r in switches), switches
PYTHON
    )
    verdict "$1: $2 switches, certified" $? "$text"
}

no_process() {
    ! pgrep -f -- "--job $work/$1 " >/dev/null
}

# nothing_left NAME: no process, no file of the job on any host.
nothing_left() {
    local k left
    until_true 10 no_process "$1"
    verdict "$1: no process is left" $? "$(pgrep -af -- "--job $work/$1 ")"
    for ((k = 1; k <= hosts_count; k++)); do
        left=$(on "host$k" find /dev/shm /tmp -maxdepth 1 -name "reshard-*$1*" -newer "$hosts_folder/hosts") &&
            [ -z "$left" ]
        verdict "$1: nothing is left on host$k" $? "$left"
    done
}

# wipe NAME HOST [COMMAND...]: kills the ranks there, or has COMMAND do it, and removes their arenas; who would recover
# them waits meanwhile.
wipe() {
    local name=$1 host=$2 watch rank
    shift 2
    watch=$(pgrep -f -- " host --job $work/$name .*--name $host( |\$)" ||
        pgrep -f -- "^$reshard train .*--job $work/$name ")
    kill -STOP "$watch"
    "$@"
    ip netns pids "$hosts_id-${host#host}" | while read -r rank; do
        grep -qz '^worker$' "/proc/$rank/cmdline" 2>/dev/null && kill -9 "$rank"
    done
    on "$host" find /dev/shm -maxdepth 1 -type f -name "reshard-$name-*" -delete
    kill -CONT "$watch"
}

# goes_on NAME RESTARTS WHAT
goes_on() {
    until_true 60 restarted "$1" "$2"
    verdict "$3: the world is replaced" $? "$(tail -8 "$work/$1.out")"
    until_true 60 further "$1"
    verdict "$3: it goes on" $? "$(tail -8 "$work/$1.out")"
}

# exact NAME: no restart went back behind the last step that had been told.
exact() {
    local text
    text=$(python3 - "$work/$1/metrics.jsonl" 2>&1 <<'PYTHON'
import json, sys
last = 0
for row in map(json.loads, open(sys.argv[1])):
    last = max(last, row["step"]) if "loss" in row else last
    assert row.get("event") != "restart" or row["step"] == last, (last, row)
PYTHON
    )
    verdict "$1: every restart is at the step where it was" $? "$text"
}
