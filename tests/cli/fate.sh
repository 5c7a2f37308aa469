#!/usr/bin/env bash
# Deaths that are counted: the same step twice or the same slot three times by a rank's own fault, and restarts.
set -u
. "$(dirname "$0")/lib.sh"
for name in fault slot often; do
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
finish
