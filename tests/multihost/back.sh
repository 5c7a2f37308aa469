#!/usr/bin/env bash
# A host that is cut off and comes back while no world is there: the job, which had many deaths before, waits a while
# before it begins the next one from what other hosts have. What the host has still is of no use any more, and goes.
#
#   back.sh RESHARD TEXT
set -uo pipefail
. "$(dirname "$(readlink -f "$0")")/job.sh"
on_hosts 'host1 slots=2' 'host2 slots=2'
deaths=6 # a pause of sixteen seconds after the next one

alone_until one 100000 40 --layout tp=2,dp=2
begin back 100000 --layout tp=2,dp=2 --heartbeat-timeout 6
until_true 60 stepped back 2
verdict "it trains" $? "$(tail -5 "$work/back.out")"
for ((death = 1; death <= deaths; death++)); do
    kill -9 "$(cut -d' ' -f1 "$(echo "$work"/back/ranks/*-0)")"
    goes_on back $death "death $death"
done
link host2 down
until_true 60 restarted back $((deaths + 1))
verdict "the host is noticed to be lost" $? "$(tail -5 "$work/back.out")"
link host2 up
until_true 40 grep -q 'host host2 can be reached again' "$work/back.out" && ! further back
verdict "it comes back before the next world is there" $? "$(tail -5 "$work/back.out")"
until_true 10 cleaned host2 back
verdict "what it has is removed" $? "$(on host2 ls /dev/shm)"
until_true 60 further back
verdict "the job goes on from the other host" $? "$(tail -5 "$work/back.out")"
on host1 "$reshard" status "$work/back" | grep -q 'trains, 2 ranks on host1: tp=2$'
verdict "with what there was when the host was lost" $? "$(on host1 "$reshard" status "$work/back")"
stop_job back
same_losses back one "$(comparable back 40)"
nothing_left back
conclude
