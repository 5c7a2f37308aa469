#!/usr/bin/env bash
# Redundancy over hosts: a host's ranks are killed and its arenas wiped, which nobody else has but mirrors. With
# them the job goes on at exactly the step, on the same host, on a spare one when the host is cut off, and on what is
# left when there is no spare; without them it goes back to the newest checkpoint, and says which step that is.
#
#   mirrored.sh RESHARD TEXT
set -uo pipefail
. "$(dirname "$(readlink -f "$0")")/job.sh"
on_hosts 'host1 slots=2' 'host2 slots=2' 'host3 slots=2'
alone_until one 100000 40 --layout dp=4,zero=1

begin mirrored 100000 --layout dp=4,zero=1 --redundancy 1 --heartbeat-timeout 6
until_true 60 stepped mirrored 3
verdict "it trains" $? "$(tail -5 "$work/mirrored.out")"
wipe mirrored host2
goes_on mirrored 1 "a host's memory lost"
grep -q 'the arenas of ranks 2, 3 are gone; all that they held is in others too' "$work/mirrored.out"
verdict "it says what was lost, and that it is there" $? "$(tail -8 "$work/mirrored.out")"
link host2 down
goes_on mirrored 2 "the host lost"
on host1 "$reshard" status "$work/mirrored" | grep -qE '^host *host3: 2 ranks'
verdict "its slots are filled on the spare host" $? "$(on host1 "$reshard" status "$work/mirrored")"
# Mirrors have been made anew there: the other one may go now.
wipe mirrored host1
goes_on mirrored 3 "the other host's memory lost"
link host3 down
goes_on mirrored 4 "the spare host lost"
grep -q 'going on in dp=2,zero=1' "$work/mirrored.out"
verdict "in what fits the host that is left" $? "$(tail -8 "$work/mirrored.out")"
until_true 60 stepped mirrored 40
link host2 up
link host3 up
until_true 60 cleaned host2 mirrored && until_true 60 cleaned host3 mirrored
verdict "what was on the lost hosts is removed when they come back" $? "$(on host2 ls /dev/shm; on host3 ls /dev/shm)"
# A world that took over has mirrors on its own hosts.
output=$(on host1 timeout 100 "$reshard" scale "$work/mirrored" 4 2>&1)
grep -qE '^switched after step [0-9]+: .* -> dp=4,zero=1$' <<<"$output"
verdict "it grows again" $? "$output"
wipe mirrored host2
goes_on mirrored 5 "a host's memory lost after a change of worlds"
stop_job mirrored
exact mirrored
same_losses mirrored one 40
nothing_left mirrored

begin bare 100000 --layout dp=4,zero=1 --save-every 4
until_true 60 stepped bare 6
wipe bare host2
goes_on bare 1 "without redundancy"
grep -qE 'the arenas of ranks 2, 3 are gone.*no other copy.*going back to step [0-9]*[048], the newest checkpoint' \
    "$work/bare.out"
verdict "it goes back, and says where" $? "$(tail -8 "$work/bare.out")"
until_true 60 stepped bare 20
stop_job bare
same_losses bare one 20
nothing_left bare
conclude
