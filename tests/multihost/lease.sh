#!/usr/bin/env bash
# A world whose rank 0 is cut off from its supervisor. It is still able to train, and to write to the job's folder:
# it ends by itself, before the supervisor has another one go on. Nor does it write anything if it was stopped
# meanwhile, just before it appends a line or names another generation in the record.
#
#   lease.sh RESHARD TEXT
set -uo pipefail
. "$(dirname "$(readlink -f "$0")")/job.sh"
on_hosts 'host1 slots=2' 'host2 slots=2'
printf 'host2 slots=2\nhost1 slots=2\n' >"$work/hosts" # both ranks are on host2, the supervisor on host1
plain=$agent
alone_until one 100000 40 --layout tp=2

rank0() { # NAME: the process of the first world's rank 0
    cut -d' ' -f1 "$work/$1/ranks/1-0"
}
gone() { # PROCESS
    ! kill -0 "$1" 2>/dev/null
}
stands() { # PROCESS: it is stopped
    grep -q '^State:.T' "/proc/$1/status"
}
# strikes POINT: how ranks on host2 are started now; the signal of a stop is 19.
strikes() {
    agent=$work/agent
    printf '#!/bin/sh\nRESHARD_CRASH=%s exec %s "$@"\n' "$1" "$plain" >"$agent"
    chmod +x "$agent"
}
# ends NAME: stopped well, with the losses of a job that nothing happened to.
ends() {
    link host2 up
    until_true 60 cleaned host2 "$1"
    verdict "$1: what was on the host is removed when it comes back" $? "$(on host2 ls /dev/shm)"
    stop_job "$1"
    same_losses "$1" one "$(comparable "$1" 40)"
    nothing_left "$1"
}

begin silent 100000 --layout tp=2 --heartbeat-timeout 6 --save-every 5
until_true 60 stepped silent 8
verdict "it trains" $? "$(tail -5 "$work/silent.out")"
first=$(rank0 silent)
link host2 down
until_true 30 gone "$first"
verdict "the world that is cut off ends" $? "$(tail -5 "$work/silent.out")"
! restarted silent 1
verdict "before another one goes on" $? "$(tail -5 "$work/silent.out")"
goes_on silent 1 "silent: the host is lost"
ends silent

# stopped NAME: rank 0 stands still at its point; the host is cut off, another world goes on; rank 0 wakes up.
stopped() {
    first=$(rank0 "$1")
    until_true 60 stands "$first"
    verdict "$1: rank 0 stands still" $? "$(tail -5 "$work/$1.out")"
    link host2 down
    goes_on "$1" 1 "$1: the host is lost"
    kill -CONT "$first"
    until_true 30 gone "$first"
    verdict "$1: it ends when it wakes up" $? "$(tail -5 "$work/$1.out")"
    until_true 60 stepped "$1" $(($(last_step "$1") + 3))
    verdict "$1: the other one is not disturbed" $? "$(tail -5 "$work/$1.out")"
}
strikes line:0:8:1:19
begin line 100000 --layout tp=2 --heartbeat-timeout 6 --save-every 5
until_true 60 stepped line 7
stopped line
ends line

strikes record:0:8:1:19
begin record 100000 --layout tp=2 --heartbeat-timeout 6 --save-every 5
until_true 60 stepped record 8
on host1 timeout 100 "$reshard" switch --no-wait "$work/record" dp=2 >"$work/switch.out" 2>&1
stopped record
# The record is that of the world that trains: it can be gone on from.
kill -9 "$(pgrep -f "mpirun.*--job $work/record ")"
goes_on record 2 "record: the launcher killed"
grep -q 'launcher.*was killed.*; going on from there' "$work/record.out"
verdict "record: from its state in memory" $? "$(grep ^reshard "$work/record.out")"
ends record
conclude
