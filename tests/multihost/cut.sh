#!/usr/bin/env bash
# Hosts cut off at a bad moment. The link goes while a ferry carries over it: the change is given up, the old world
# trains on, and nothing is left of the new one once the link is back. Then a host goes on which a whole world is, rank
# 0 with it, so that it could train on and write the job's files: it ends by itself before another world begins, and
# ranks that were stopped meanwhile write nothing when they go on.
#
#   cut.sh RESHARD TEXT
set -uo pipefail
. "$(dirname "$(readlink -f "$0")")/job.sh"
on_hosts 'host1 slots=2' 'host2 slots=2' 'host3 slots=0'
alone_until one 100000 40 --layout tp=2

# stage NAME EVENT STAGE: there is such a line.
stage() {
    grep -q "\"event\":\"$2\",.*\"stage\":\"$3\"" "$work/$1/metrics.jsonl"
}
# workers HOST: the ranks there.
workers() {
    local pid
    ip netns pids "$hosts_id-${1#host}" | while read -r pid; do
        grep -qzE '^(worker|ferry)$' "/proc/$pid/cmdline" 2>/dev/null && echo "$pid"
    done
    true
}
no_workers() {
    [ -z "$(workers "$1")" ]
}
# Its rank 0, which alone writes the job's files; the others may wait for it in MPI.
no_writer() {
    local pid
    for pid in $(workers "$1"); do
        ! grep -qzxE 'PMIX?_RANK=0' "/proc/$pid/environ" 2>/dev/null || return 1
    done
}

on host1 tc qdisc add dev eth0 root tbf rate 16mbit burst 256kb latency 400ms
begin carried 100000 --layout tp=2 --heartbeat-timeout 6
until_true 60 stepped carried 2
verdict "it trains" $? "$(tail -5 "$work/carried.out")"
on host1 timeout 100 "$reshard" scale "$work/carried" 4 >"$work/scale.out" 2>&1 &
scale=$!
until_true 60 stage carried ferry carries
verdict "a ferry carries" $? "$(tail -5 "$work/carried.out")"
sleep 1
! stage carried ferry carried
verdict "and is not done" $? "$(tail -3 "$work/carried/metrics.jsonl")"
link host2 down
cut=$SECONDS
until_true 30 stage carried world 'given up'
verdict "the change is given up" $? "$(tail -3 "$work/carried/metrics.jsonl")"
[ $((SECONDS - cut)) -le 9 ]
verdict "when the host has been silent for the time that it may be ($((SECONDS - cut)) s)" $? "later"
! wait "$scale" && grep -q 'no new world for tp=2,dp=2: .*no sign of life' "$work/scale.out"
verdict "who asked is told why" $? "$(cat "$work/scale.out")"
until_true 30 stepped carried $(($(last_step carried) + 3))
verdict "the old world trains on" $? "$(tail -5 "$work/carried.out")"
on host1 tc qdisc del dev eth0 root
link host2 up
until_true 60 cleaned host2 carried && until_true 10 no_workers host2
verdict "nothing is left there when the link is back" $? "$(on host2 ls /dev/shm; workers host2)"
output=$(on host1 timeout 100 "$reshard" scale "$work/carried" 4 2>&1)
grep -qE '^switched after step [0-9]+: .* -> tp=2,dp=2$' <<<"$output"
verdict "and it can be used" $? "$output"
until_true 60 stepped carried 40
stop_job carried
same_losses carried one 40
nothing_left carried

# All ranks are on a host that the supervisor is not on.
printf '%s\n' 'host1 slots=0' 'host2 slots=2' 'host3 slots=2' >"$work/hosts"
begin away 100000 --layout tp=2 --heartbeat-timeout 6 --save-every 5
until_true 60 stepped away 7
verdict "a world trains without the supervisor's host" $? "$(tail -5 "$work/away.out")"
on host1 "$reshard" status "$work/away" | grep -qE '^host *host2: 2 ranks'
verdict "on one host" $? "$(on host1 "$reshard" status "$work/away")"
! no_writer host2
verdict "its rank 0 is there" $? "$(workers host2)"
link host2 down
until_true 30 no_writer host2
verdict "cut off, its rank 0 ends by itself" $? "$(workers host2)"
! restarted away 1
verdict "before another one begins" $? "$(tail -5 "$work/away.out")"
goes_on away 1 "the host of rank 0 cut off"
grep -qE 'going back to step [0-9]*[05], the newest checkpoint' "$work/away.out"
verdict "it goes back, and says where" $? "$(tail -8 "$work/away.out")"
link host2 up
until_true 60 cleaned host2 away
verdict "the host that comes back is cleaned" $? "$(on host2 ls /dev/shm)"
until_true 60 stepped away $(($(last_step away) + 7))
! no_writer host3
verdict "its rank 0 is there" $? "$(workers host3)"
workers host3 >"$work/stopped"
xargs kill -STOP <"$work/stopped"
link host3 down
goes_on away 2 "the same, and its ranks stopped"
xargs kill -CONT <"$work/stopped"
until_true 10 no_writer host3
verdict "rank 0 ends when it goes on, though nobody reaches it" $? "$(workers host3)"
until_true 60 stepped away 40
link host3 up
until_true 60 cleaned host3 away
verdict "their host is cleaned" $? "$(on host3 ls /dev/shm)"
stop_job away
same_losses away one 40
nothing_left away
conclude
