#!/usr/bin/env bash
# Deaths that are counted: the same step twice or the same slot three times by a rank's own fault, and restarts.
set -u
. "$(dirname "$0")/lib.sh"
for name in fault slot often early; do
    declare "$name=cli$name$$"
done

seq 1 6000 >data
train=(train --model llama-tiny --data data --seq 32 --save-on-exit off --steps 100000)
small=(--global-batch 4 --micro-batch 2)

# Deaths by a rank's own fault, in the same instant of each world. The same step twice ends the job, its state stays.
ends_by_step() { # NAME DEATH PATTERN
    local code=0
    RESHARD_CRASH=$2 "$reshard" "${train[@]}" "${small[@]}" --job "$1" --layout tp=2 >"$1.log" 2>&1 || code=$?
    [ $code -eq 1 ] && grep -qE "^reshard train: step 5 \\(samples 16 to 19\\) died twice by a rank.s own fault: $3" "$1.log"
    verdict "a step that dies twice ends the job (exit code $code)" $? "$(grep -v '^step' "$1.log" | tail -5)"
    [ "$(grep -c '; going on from there' "$1.log")" -eq 1 ] && grep -q '^its state is kept in memory' "$1.log"
    verdict "it was tried once more, and its state is kept" $? "$(grep -v '^step' "$1.log" | tail -5)"
    expect 0 'nothing of .* is left in memory' clean "$1"
    check_gone "$1"
}
ends_by_step "$fault" forward:1:5:1:11 'rank 1 .* was killed by signal 11'
ends_by_step "${fault}exit" backward:0:5:1:0 'rank 0 .* ended with exit code 3'

# The same slot three times within ten steps, each time in another one: its place is lost.
RESHARD_CRASH=stepped:3:5:1:11 "$reshard" "${train[@]}" "${small[@]}" --job "$slot" --layout tp=2,dp=2 >"$slot.log" 2>&1 &
job=$!
until_true 60 bash -c "'$reshard' status $slot --json | grep -q '\"layout\": \"tp=2\"'"
goes_on "$slot" 'the same slot three times' 4
grep -q 'a rank.s place is lost, 3 are left: going on in tp=2' "$slot.log"
verdict "it says that a place is lost" $? "$(grep '^reshard' "$slot.log")"
stop_job "$slot"
check "steps 5, 6 and 7, each after a longer pause" python3 -c "
import json
lines = [json.loads(l) for l in open('$slot/metrics.jsonl')]
deaths = [l for l in lines if l.get('event') == 'restart']
assert [(d['step'], d['from'], d['to']) for d in deaths] == [(5, 'tp=2,dp=2', 'tp=2,dp=2'), (6, 'tp=2,dp=2', 'tp=2,dp=2'),
    (7, 'tp=2,dp=2', 'tp=2')], deaths
started = {l['world']: l['time'] for l in lines if l.get('event') == 'world' and l['stage'] == 'started'}
assert started[3] - deaths[1]['time'] >= 0.5 and started[4] - deaths[2]['time'] >= 1.0, (started, deaths)
"

# As often as it may.
begin "$often" "${small[@]}" --layout dp=1 --max-restarts 1
kill -9 "$(rank_process "$often" 0)"
goes_on "$often" 'once' 2
kill -9 "$(rank_process "$often" 0)"
code=0
wait $job || code=$?
[ $code -eq 1 ] && grep -q 'restarted as often as it may' "$often.log"
verdict "as often as it may (exit code $code)" $? "$(tail -5 "$often.log")"
expect 0 'nothing of .* is left in memory' clean "$often"
check_gone "$often"

# Before the job has a record, while its first world boots: it begins again, but not by a rank's own fault.
"$reshard" "${train[@]}" "${small[@]}" --steps 6 --job "$early" --layout tp=2 >"$early.log" 2>&1 &
job=$!
until_true 20 pgrep -f -- "mpirun.*--job $early "
kill -9 "$(pgrep -f -- "mpirun.*--job $early ")"
code=0
wait $job || code=$?
[ $code -eq 0 ] && grep -q 'the launcher .* before the job had begun; beginning again (restart 1)' "$early.log"
verdict "killed before it had begun, it begins again (exit code $code)" $? "$(tail -5 "$early.log")"
check "every step once" python3 -c "
import json
lines = [json.loads(l) for l in open('$early/metrics.jsonl')]
assert [l['step'] for l in lines if 'loss' in l] == [1, 2, 3, 4, 5, 6], lines
assert [(l['step'], l['restarts']) for l in lines if l.get('event') == 'restart'] == [(0, 1)], lines
"
check_gone "$early"
for death in record:0:-1 record:0:-1:1:11; do
    code=0
    RESHARD_CRASH=$death "$reshard" "${train[@]}" "${small[@]}" --job "$early$death" --layout tp=2 --max-restarts 1 \
        >"$early.log" 2>&1 || code=$?
    count=$(grep -c 'beginning again' "$early.log")
    [ "$code $count" = "1 $([ "$death" = record:0:-1 ] && echo 1 || echo 0)" ]
    verdict "$death: as often as it may, and not by its own fault (exit code $code, $count times)" $? "$(tail -5 "$early.log")"
    check_gone "$early$death"
done
expect 2 'heartbeat-timeout: wanted at least 2, found 1: ' "${train[@]}" --job "$early" --layout tp=2 --heartbeat-timeout 1
echo localhost slots=2 >hosts
expect 2 'heartbeat-timeout: wanted at least 3 over several hosts, found 2: ' "${train[@]}" --job "$early" --layout tp=2 \
    --hosts hosts --heartbeat-timeout 2
finish
