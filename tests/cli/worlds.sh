#!/usr/bin/env bash
# A job that grows and shrinks: 2 -> 4 -> 3 -> 7 -> 1 -> 5 ranks by worlds that boot while it trains, with the
# losses of a job that does not; what is cancelled, fails or takes too long leaves it as it was; nothing is
# left (L09). ROUNDS (1) rounds.
set -u
. "$(dirname "$0")/lib.sh"
rounds=${2:-1}
# Names that no other run of this test has: processes are looked for by them.
for name in worlds fail slow full still int stop outer plain; do
    declare "$name=cli$name$$"
done

seq 1 6000 >data
train=(train --model llama-tiny --data data --seq 32 --global-batch 8 --micro-batch 2 --save-on-exit off
    --steps 100000)
descriptors() {
    find "/proc/$job/fd" -mindepth 1 | wc -l
}
memory() {
    awk '/VmRSS/ {print $2}' "/proc/$job/status"
}

# Up and down.
begin $worlds --layout tp=2
scale() {
    expect 0 "^switched after step [0-9]+: .* -> $2$" scale $worlds "$1"
}
for ((round = 0; round < rounds; round++)); do
    [ $round -eq 0 ] || expect 0 '^switched' switch $worlds tp=2 --new-world
    scale +2 tp=2,dp=2
    scale 3 dp=3
    scale 7 dp=7
    scale -6 dp=1
    scale 5 dp=5
    until_true 20 bash -c "! '$reshard' status $worlds --json | grep -q '\"stage\": \"leaves\"'"
    if [ $round -eq 0 ]; then
        first_fds=$(descriptors)
        first_memory=$(memory)
    fi
done
[ "$rounds" -eq 1 ] || echo "after round 1: $first_fds descriptors, $first_memory KiB; after round $rounds:" \
    "$(descriptors) descriptors, $(memory) KiB"
check "no more descriptors than after the first round" test "$(descriptors)" -eq "$first_fds"
[ "$rounds" -lt 5 ] || check "no more memory than after the first round" \
    test "$(memory)" -le $((first_memory + first_memory / 100 + 200))
[ "$(find /dev/shm -maxdepth 1 -name "reshard-$worlds-*.table" | wc -l)" -eq 5 ]
verdict "five ranks, five arenas" $? "$(find /dev/shm -maxdepth 1 -name "reshard-$worlds-*")"
[ "$(find "$worlds/ranks" -type f | wc -l)" -eq 5 ] &&
    [ "$(find /dev/shm/reshard-mpi-"$worlds"-* -mindepth 1 -maxdepth 1 | wc -l)" -eq 1 ]
verdict "of worlds that have gone nothing is left" $? "$(ls "$worlds/ranks"; find /dev/shm/reshard-mpi-"$worlds"-*)"
holds 'j["layout"] == "dp=5" and j["ranks"] == 5 and [w["ranks"] for w in j["worlds"]] == [5] and
    all(s["certificate"] == "ok" for s in j["switches"])' status $worlds --json
expect 0 '^world +[0-9]+ +trains, 5 ranks on [^ ]+: dp=5' status $worlds
expect 0 'quiesced' events $worlds
# In place, in a world that took over; then by new ranks though it could be done in place.
expect 0 '-> tp=5' switch $worlds tp=5
expect 0 '-> dp=5' switch $worlds dp=5
expect 0 '-> dp=5,zero=1' switch $worlds dp=5,zero=1 --new-world
stop_job $worlds
check "every step once, and the stages of every world" python3 -c "
import json
lines = [json.loads(l) for l in open('$worlds/metrics.jsonl')]
steps = [l['step'] for l in lines if 'loss' in l]
assert steps == list(range(1, len(steps) + 1)), steps
events = [l for l in lines if l.get('event') == 'switch']
assert len(events) == 5 * $rounds + $rounds - 1 + 3, len(events)
first = [(e['bytes_moved'], e['bytes_adopted']) for e in events[:5]]
assert all(e['certificate'] == 'ok' and e['bytes_moved'] == e['bytes_minimum'] for e in events), events
assert first[3][0] == 0 < first[3][1], first    # 7 -> 1 moves nothing
assert not any(l.get('event') == 'ferry' for l in lines)    # on one host nothing changes host
stages = {}
for l in lines:
    if l.get('event') == 'world':
        stages.setdefault(l['world'], []).append(l['stage'])
last = max(stages)
for world in range(2, last):
    assert stages[world] == ['started', 'joined', 'ready', 'pulls', 'certified', 'committed', 'trains', 'quiesced',
                             'gone'], (world, stages[world])
"

# The losses are those of a job whose ranks stay.
last=$(comparable "$worlds" 50)
begin "$plain" --layout tp=2
until_true 60 is_at "$plain" "$last"
stop_job "$plain"
same_losses "$worlds" "$plain" "$last"

# Many rounds are about what they leave behind.
[ "$rounds" -eq 1 ] || finish

# What does not come to be leaves the job as it was.
begin $fail --layout tp=2
state() {
    "$reshard" status $fail --json | python3 -c "
import json, sys
j = json.load(sys.stdin)
print(j['layout'], j['ranks'], [w['world'] for w in j['worlds']])"
}
before_state=$(state)
goes_on() {
    local step
    step=$("$reshard" status $fail --json | sed -n 's/.*"step": \([0-9]*\).*/\1/p' | head -1)
    until_true 30 bash -c "'$reshard' status $fail --json |
        python3 -c 'import json, sys; j = json.load(sys.stdin); sys.exit(j[\"step\"] <= $step + 1)'"
    verdict "$1: the job goes on" $? "$(tail -5 $fail.log)"
    until_true 20 bash -c "! pgrep -f -- '--job $fail --world [2-9]'"
    verdict "$1: no process of the new world is left" $? "$(pgrep -af -- "--job $fail")"
    [ "$(state)" = "$before_state" ]
    verdict "$1: the job is as it was" $? "$before_state / $(state)"
    [ "$(find /dev/shm -maxdepth 1 -name "reshard-$fail-*.table" | wc -l)" -eq 2 ]
    verdict "$1: so are its arenas" $? "$(find /dev/shm -maxdepth 1 -name "reshard-$fail-*")"
}
expect 2 'no new world is being built' cancel $fail
expect 2 'has 2 ranks already' scale $fail 2
expect 2 'leaves none' scale $fail -2
expect 2 'wanted a number of ranks' scale $fail many
expect 0 'world' scale $fail 4 --no-wait
expect 1 'another change is under way|is being built' scale $fail 3
expect 0 'is given up' cancel $fail
goes_on cancelled
# Killed while it boots, and while it sleeps or pulls.
expect 0 'world' scale $fail 4 --no-wait
until_true 20 bash -c "ls $fail/ranks/[3-9]-0"
kill -9 "$(cut -d' ' -f1 "$fail"/ranks/[3-9]-0)"
goes_on 'killed at its start'
# Its certificate is wrong.
next=$(python3 -c "
import json
print(1 + max(l['world'] for l in map(json.loads, open('$fail/metrics.jsonl')) if l.get('event') == 'world'))")
sed -i "s/\"fault_certificate_world\": 0/\"fault_certificate_world\": $next/" $fail/job.json
expect 1 'the content sum is' scale $fail 4
goes_on 'a wrong certificate'
# And then it works.
expect 0 '^switched .* tp=2 -> tp=2,dp=2' scale $fail 4
stop_job $fail

# Too slow is given up.
begin $slow --layout dp=1 --world-timeout 0.05
expect 1 'not ready within' scale $slow 2
expect 0 'dp=1' status $slow
stop_job $slow

# One of its ranks stands still while training waits for it.
RESHARD_CRASH=takeover.pull:1:-1:1:19 begin $still --layout dp=1 --heartbeat-timeout 2
expect 1 'no sign of life for [0-9]+ s' scale $still 2
expect 0 '^layout +dp=1' status $still
stop_job $still

# No room for its arenas.
if small_room 56m; then
    begin $full --layout tp=2 --arena-dir "$work/small"
    expect 1 'no new world for tp=2,dp=2: rank [0-9]: .*needs [0-9.]+ MiB .*; [0-9.]+ [KM]iB are free' scale $full 4
    step=$("$reshard" status $full --json | sed -n 's/.*"step": \([0-9]*\).*/\1/p' | head -1)
    until_true 30 bash -c "'$reshard' status $full --json |
        python3 -c 'import json, sys; j = json.load(sys.stdin); sys.exit(j[\"step\"] <= $step + 1 or j[\"ranks\"] != 2)'"
    verdict "it goes on where there is no room for another world" $? "$(tail -5 $full.log)"
    [ "$(find small -name "*.table" | wc -l)" -eq 2 ] && [ "$(find small -type f | wc -l)" -eq 6 ]
    verdict "nothing of the other world is left" $? "$(ls small)"
    stop_job $full
    [ "$(find small -type f | wc -l)" -eq 0 ]
    verdict "nor of the job" $? "$(ls small)"
fi

# Ctrl-C while a world is being built.
begin $int --layout dp=1
expect 0 'world' scale $int 3 --no-wait
kill -TERM $job
wait $job
[ $? -eq 75 ]
verdict "SIGTERM ends the job with 75" $? "$(tail -5 $int.log)"
check_clean $int
until_true 10 bash -c "! pgrep -f -- '--job $int( |\$)'"
verdict "no process of $int is left" $? "$(pgrep -af -- "--job $int( |\$)")"

# A rank that does not move any more.
begin $stop --layout tp=2 --heartbeat-timeout 2 --max-restarts 0
kill -STOP "$(cut -d' ' -f1 $stop/ranks/1-1)"
code=0
wait $job || code=$?
[ $code -eq 1 ] && grep -qE 'no sign of life for [0-9]+ s' $stop.log
verdict "a stopped rank is noticed (exit code $code)" $? "$(tail -5 $stop.log)"
expect 0 'nothing of .* is left in memory' clean $stop
check_clean $stop

# Under a launcher of the user's own the job is one fixed world.
if [ -n "${RS_TEST_MPIRUN:-}" ]; then
    timeout 200 $RS_TEST_MPIRUN -n 2 "$reshard" "${train[@]}" --layout tp=2 --job $outer >$outer.log 2>&1 &
    job=$!
    until_true 60 is_at $outer 1
    expect 2 "one fixed world of 2 ranks.*reshard train --resume $outer --layout tp=2,dp=2" scale $outer 4
    expect 0 '-> dp=2' switch $outer dp=2
    expect 0 'the job has stopped' stop $outer
    wait $job
    check_clean $outer
fi
finish
