#!/usr/bin/env bash
# Redundancy over three hosts. A rank dies between its update and its giving parameters to the other hosts, and its
# host's memory is lost: what is left of three hosts does not agree at first. Then one that was in use is lost, and the
# spare slots are on a host where the mirrors of its ranks are: they stay there, and it says that they are no help any
# more.
#
#   torn.sh RESHARD TEXT
set -uo pipefail
. "$(dirname "$(readlink -f "$0")")/job.sh"
on_hosts 'host1 slots=2' 'host2 slots=2' 'host3 slots=4'

no_ranks() {
    ! pgrep -f -- "worker --job $work/torn " >/dev/null
}
all_dead() {
    until_true 60 no_ranks
    verdict "a rank dies, and all others with it" $? "$(pgrep -af -- "worker --job $work/torn ")"
}
alone six 31 --layout dp=6,zero=1
RESHARD_CRASH=derive:2:30 begin torn 31 --layout dp=6,zero=1 --redundancy 1 --heartbeat-timeout 60
until_true 60 stepped torn 3
wipe torn host2 all_dead
wait "$job"
verdict "a host lost in the middle of an update: it goes on to its end" $? "$(tail -8 "$work/torn.out")"
grep -q 'the arenas of ranks 2, 3 are gone' "$work/torn.out"
verdict "it was lost" $? "$(tail -8 "$work/torn.out")"
exact torn
same_losses torn six 31
nothing_left torn

begin moved 100000 --layout dp=6,zero=1 --redundancy 1 --heartbeat-timeout 6
until_true 60 stepped moved 3
link host2 down
goes_on moved 1 "a host lost"
grep -q 'on its node alone' "$work/moved.out"
verdict "its ranks and their mirrors are on one host now, and it says so" $? "$(tail -8 "$work/moved.out")"
link host2 up
until_true 60 cleaned host2 moved
verdict "it is cleaned when it comes back" $? "$(on host2 ls /dev/shm)"
stop_job moved
exact moved
nothing_left moved
conclude
