#!/usr/bin/env bash
# Worlds over two and three supposed hosts (--ranks-per-node): ranks of one do not map the memory of
# another, so what changes host goes by ferry. The losses are those of a job that does not change; a ferry
# that dies, fails or hangs leaves the job as it was; a dead world is gone on from over hosts too; nothing
# is left.
set -u
. "$(dirname "$0")/lib.sh"
for name in ferry plain dead hang lost; do
    declare "$name=clif$name$$"
done

seq 1 6000 >data
train=(train --model llama-tiny --data data --seq 32 --global-batch 8 --micro-batch 2 --save-on-exit off
    --steps 100000)
scale() {
    expect 0 "^switched after step [0-9]+: .* -> $2$" scale "$ferry" "$1"
}
change() {
    expect 0 "^switched after step [0-9]+: .* -> $1$" switch "$ferry" "$1"
}

# Over hosts, up and down: to a second host, to a third, back to one.
begin "$ferry" --layout tp=2 --ranks-per-node 2
scale +2 tp=2,dp=2
change tp=2,pp=3,zero=1
change dp=3
scale 1 dp=1
change tp=2,dp=2,zero=1
stop_job "$ferry"
check "every step once, certified, by ferry where bytes change host and only there" python3 -c "
import json
lines = [json.loads(l) for l in open('$ferry/metrics.jsonl')]
steps = [l['step'] for l in lines if 'loss' in l]
assert steps == list(range(1, len(steps) + 1)), steps
events = [l for l in lines if l.get('event') == 'switch']
assert len(events) == 5, events
assert all(e['certificate'] == 'ok' and e['bytes_moved'] == e['bytes_minimum'] for e in events), events
stages, carried = {}, {}
for l in lines:
    if l.get('event') == 'ferry':
        stages.setdefault(l['world'], []).append(l['stage'])
        if l['stage'] == 'carried':
            carried[l['world']] = (l['bytes'], l['processes'])
for e in events:
    bytes, processes = carried.get(e['world'], (0, 0))
    print(e['to'], e['bytes_moved'], bytes, processes)
    assert e['bytes_ferried'] == bytes, e
    assert (bytes > 0) == (e['world'] in stages), e
    assert bytes == 0 or stages[e['world']][:4] == ['started', 'ready', 'carries', 'carried'], stages
    assert e['bytes_moved'] >= bytes
by = {e['to']: carried.get(e['world']) for e in events}
assert by['tp=2,dp=2'][1] == 2 and by['tp=2,pp=3,zero=1'][1] == 3 and by['dp=3'][1] == 3, by
assert by['dp=1'] is None, by      # the replica is on its host already
# A second replica of the whole state on the second host: each of its two ranks gets its half.
assert by['tp=2,dp=2'][0] == events[0]['bytes_moved'], events[0]
"
last=$(comparable "$ferry" 40)
begin "$plain" --layout tp=2
until_true 60 is_at "$plain" "$last"
stop_job "$plain"
same_losses "$ferry" "$plain" "$last"

# What does not come to be leaves the job as it was.
goes_on() { # NAME WHAT
    local step
    step=$(status_of "$1" 'j["step"]')
    until_true 30 is_at "$1" $((step + 2))
    verdict "$2: the job goes on" $? "$(tail -5 "$1.log")"
    until_true 20 bash -c "! pgrep -f -- '(ferry|worker) --job $1 --world [2-9]'"
    verdict "$2: no process of ferry or new world is left" $? "$(pgrep -af -- "--job $1 ")"
    holds 'j["layout"] == "tp=2" and [w["world"] for w in j["worlds"]] == [1]' status "$1" --json
    until_true 10 bash -c "[ \$(find /dev/shm -maxdepth 1 -name 'reshard-$1-*.table' | wc -l) -eq 2 ]"
    verdict "$2: so are its arenas" $? "$(find /dev/shm -maxdepth 1 -name "reshard-$1-*")"
}
# kill -9 of a process of it: when it is ready, when it carries, when it has carried.
for point in ferry.ready:1:0 ferry.carry:1:0 ferry.carried:0:0; do
    dead=${dead}x
    RESHARD_CRASH=$point begin "$dead" --layout tp=2 --ranks-per-node 2
    expect 1 'ferry between hosts.*(killed by signal 9|ended before)' scale "$dead" 4
    goes_on "$dead" "$point"
    stop_job "$dead"
    check "the ferry's death is told" grep -q '"event":"ferry".*"stage":"died"' "$dead/metrics.jsonl"
done
# One that does not get ready.
RESHARD_CRASH=ferry.ready:1:0:1:19 begin "$hang" --layout tp=2 --ranks-per-node 2 --world-timeout 12
expect 0 'world' scale "$hang" 4 --no-wait
until_true 40 grep -qE 'no new world for tp=2,dp=2: .*(not ready within 12 s|no sign of life)' "$hang.log"
verdict "a ferry that hangs is given up" $? "$(tail -5 "$hang.log")"
goes_on "$hang" 'a ferry that hangs'
stop_job "$hang"

# A dead world whose state lies on two hosts, of which one is not used any more.
begin "$lost" --layout tp=2,dp=2,zero=1 --ranks-per-node 2 --lose-slot 3 --fallback tp=2
kill -9 "$(cut -d' ' -f1 "$lost/ranks/1-3")"
until_true 60 bash -c "'$reshard' status $lost --json | python3 -c '
import json, sys
j = json.load(sys.stdin)
sys.exit(not (j[\"layout\"] == \"tp=2\" and len(j[\"worlds\"]) == 1 and j[\"worlds\"][0][\"stage\"] == \"trains\"))'"
verdict "a dead world is gone on from over hosts" $? "$(tail -5 "$lost.log")"
step=$(status_of "$lost" 'j["step"]')
until_true 30 is_at "$lost" $((step + 2))
stop_job "$lost"
check "from its memory on both hosts" python3 -c "
import json
lines = [json.loads(l) for l in open('$lost/metrics.jsonl')]
steps = [l['step'] for l in lines if 'loss' in l]
assert steps == list(range(1, len(steps) + 1)), steps
event, = [l for l in lines if l.get('event') == 'switch']
assert event['certificate'] == 'ok' and event['bytes_ferried'] > 0, event
a = {l['step']: l['loss'] for l in lines if 'loss' in l}
b = {l['step']: l['loss'] for l in map(json.loads, open('$plain/metrics.jsonl')) if 'loss' in l}
both = sorted(set(a) & set(b))
assert both and all(abs(a[s] - b[s]) <= 1e-5 * b[s] for s in both), [(a[s], b[s]) for s in both]
"
finish
