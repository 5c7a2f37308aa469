#!/usr/bin/env bash
# Deaths on the far host: a rank killed there (at any moment, and between its update and what others need of it),
# one stopped, the launcher, the helper, the supervisor. The job goes on from the arenas of both hosts at exactly
# the step, with the losses, digit for digit, of a job that nothing happened to.
#
#   survive.sh RESHARD TEXT
set -uo pipefail
. "$(dirname "$(readlink -f "$0")")/job.sh"
on_hosts 'host1 slots=2' 'host2 slots=2'
layout=tp=2,dp=2,zero=1
alone short 12 --layout $layout --save-every 12
alone_until one 100000 60 --layout $layout

# In each of the last two steps: between a rank's update and its giving the parameters to those on the other host;
# and in the middle of the update, so that recovery has to complete it on one host while the other has nothing to do.
for crash in derive:2:11 changed:3:11; do
    name=at-${crash%%:*}
    RESHARD_CRASH=$crash begin "$name" 12 --layout $layout --save-every 12
    wait "$job"
    verdict "$crash: it goes on to its end" $? "$(tail -5 "$work/$name.out")"
    restarted "$name" 1
    verdict "$crash: it died" $? "$(tail -5 "$work/$name.out")"
    same_losses "$name" short 12 0
    output=$("$reshard" verify "$work"/{short,"$name"}/checkpoints/step-00000012 2>&1)
    verdict "$crash: the same state, to the bit" $? "$output"
    nothing_left "$name"
done

begin long 100000 --layout $layout --heartbeat-timeout 8
until_true 60 stepped long 2
verdict "it trains" $? "$(tail -5 "$work/long.out")"
helped() {
    pgrep -f -- " host --job $work/long " >/dev/null
}
rank() {
    cut -d' ' -f1 "$(echo "$work"/long/ranks/*-"$1")"
}
kill -9 "$(rank 3)"
goes_on long 1 "a rank of the far host killed"
kill -STOP "$(rank 2)"
goes_on long 2 "one stopped"
kill -9 "$(pgrep -f "mpirun.*--job $work/long ")"
goes_on long 3 "the launcher killed"
step=$(last_step long)
kill -9 "$(pgrep -f -- " host --job $work/long ")"
until_true 60 stepped long $((step + 3))
verdict "the helper killed: training is not disturbed" $? "$(tail -5 "$work/long.out")"
until_true 60 helped
verdict "another helper comes" $? "$(tail -5 "$work/long.out")"
kill -9 "$(pgrep -f -- "^$reshard train .*--job $work/long ")"
wait "$job" 2>/dev/null
on host1 timeout 200 "$reshard" train --resume "$work/long" >"$work/resume.out" 2>&1 &
job=$!
until_true 60 grep -q 'goes on from step' "$work/resume.out"
verdict "the supervisor killed: another one goes on" $? "$(tail -5 "$work/resume.out")"
step=$(last_step long)
until_true 60 stepped long $((step > 58 ? step + 2 : 60))
verdict "it trains on" $? "$(tail -5 "$work/resume.out")"
stop_job long
grep -q 'is whole in memory' "$work/resume.out"
verdict "from memory" $? "$(cat "$work/resume.out")"
same_losses long one 60 0
nothing_left long
conclude
