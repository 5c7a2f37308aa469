#!/usr/bin/env bash
# A host that is cut off. What it held other hosts have too: the job goes on from their arenas at the step where it
# was, in the layout that fits. What nobody else has: from the newest checkpoint, and it says so. The host that
# comes back is cleaned, and can be used again.
#
#   lost.sh RESHARD TEXT
set -uo pipefail
. "$(dirname "$(readlink -f "$0")")/job.sh"
on_hosts 'host1 slots=2' 'host2 slots=2'
alone_until one 100000 40 --layout tp=2,dp=2

# Replicas.
begin replicas 100000 --layout tp=2,dp=2 --heartbeat-timeout 6
until_true 60 stepped replicas 3
verdict "it trains" $? "$(tail -5 "$work/replicas.out")"
link host2 down
goes_on replicas 1 "the host lost"
grep -q 'host host2 has not been heard of' "$work/replicas.out" && grep -q 'going on in tp=2' "$work/replicas.out"
verdict "it says so, and what it does" $? "$(tail -8 "$work/replicas.out")"
check_events replicas 'r["event"] == "restart" and r["to"] == "tp=2" and "lost" in str(rows)'
link host2 up
until_true 60 cleaned host2 replicas
verdict "what was on the host is removed when it comes back" $? "$(on host2 ls /dev/shm)"
stop_job replicas
same_losses replicas one "$(comparable replicas 40)"
nothing_left replicas

# A rank dies, and the host's helper while it takes the host's ranks to the step: the others have all, and go on
# without the host until it is reached again. (-2 is the helper.)
RESHARD_CRASH=recover.update:-2:-1 begin helper 100000 --layout tp=2,dp=2 --heartbeat-timeout 6
until_true 60 stepped helper 3
kill -9 "$(cut -d' ' -f1 "$work/helper/ranks/1-3")"
goes_on helper 1 "a rank killed, and the helper"
grep -q 'the arenas of ranks 2, 3 are gone' "$work/helper.out"
verdict "helper: from what the other host has" $? "$(grep ^reshard "$work/helper.out")"
until_true 60 cleaned host2 helper
verdict "helper: its host is cleaned when there is another one" $? "$(on host2 ls /dev/shm)"
stop_job helper
same_losses helper one "$(comparable helper 40)"
nothing_left helper

# Shards that nobody else has.
begin unique 100000 --layout tp=2,dp=2,zero=1 --heartbeat-timeout 6 --save-every 5
until_true 60 stepped unique 8
verdict "another one trains" $? "$(tail -5 "$work/unique.out")"
link host2 down
goes_on unique 1 "the only host of some shards lost"
grep -qE 'no other copy.*going back to step [0-9]*[05], the newest checkpoint' "$work/unique.out"
verdict "it goes back, and says where" $? "$(tail -8 "$work/unique.out")"
on host1 timeout 60 "$reshard" stop "$work/unique" >"$work/stop.out" 2>&1
wait "$job"
grep -q 'what the job left on host host2 is still there' "$work/unique.out"
verdict "what cannot be removed is named" $? "$(tail -5 "$work/unique.out")"
link host2 up
on host1 timeout 60 "$reshard" clean "$work/unique" >"$work/clean.out" 2>&1
verdict "and cleaned when the host can be reached" $? "$(cat "$work/clean.out")"
same_losses unique one "$(comparable unique 40)"
nothing_left unique
conclude
