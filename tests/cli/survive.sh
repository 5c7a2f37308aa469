#!/usr/bin/env bash
# A job outlives its ranks: whatever is killed or stopped, it goes on from exactly the step where it was, with
# the losses of a job that nothing happened to, every step once, and nothing is left (L01, L06).
set -u
. "$(dirname "$0")/lib.sh"
for name in kill plain deaf lost copy mirror back; do
    declare "$name=cli$name$$"
done

seq 1 6000 >data
train=(train --model llama-tiny --data data --seq 32 --save-on-exit off --steps 100000)
small=(--global-batch 4 --micro-batch 2)
launcher_process() {
    status_of "$1" 'j["worlds"][0]["launcher"]'
}

begin "$kill" "${small[@]}" --layout tp=2 --heartbeat-timeout 2
kill -9 "$(rank_process "$kill" 1)"
goes_on "$kill" 'rank 1 killed' 2
kill -9 "$(rank_process "$kill" 0)"
goes_on "$kill" 'rank 0 killed' 3
kill -9 "$(launcher_process "$kill")"
goes_on "$kill" 'mpirun killed' 4
kill -STOP "$(rank_process "$kill" 1)"
goes_on "$kill" 'rank 1 stopped' 5
expect 0 '^switched .* tp=2 -> tp=2,dp=2' scale "$kill" 4
kill -9 "$(rank_process "$kill" 3)"
goes_on "$kill" 'rank 3 of a world that took over killed' 7
expect 0 '^switched .* -> pp=2,dp=2' switch "$kill" pp=2,dp=2
kill -SEGV "$(rank_process "$kill" 2)"
goes_on "$kill" 'after a switch in place' 8
expect 0 '^switched .* -> dp=3' scale "$kill" 3
expect 0 'restart step [0-9]+ from tp=2 to tp=2 why rank 1' events "$kill"
stop_job "$kill"
[ "$(grep -c '; going on from there' "$kill.log")" -eq 6 ]
verdict "six deaths, six lines" $? "$(grep '^reshard' "$kill.log")"
check "every step once, and soon again" python3 -c "
import json
lines = [json.loads(l) for l in open('$kill/metrics.jsonl')]
steps = [l['step'] for l in lines if 'loss' in l]
assert steps == list(range(1, len(steps) + 1)), steps
deaths = [l for l in lines if l.get('event') == 'restart']
assert len(deaths) == 6, deaths
times = {l['step']: l['time'] for l in lines if 'loss' in l}
for d in deaths:
    print(d['step'], d['why'], times[d['step'] + 1] - times[d['step']])
"

# The same losses as without any of it; the same bits up to the first change of layout.
last=$(comparable "$kill" 50)
begin "$plain" "${small[@]}" --layout tp=2
until_true 60 is_at "$plain" "$last"
stop_job "$plain"
same_losses "$kill" "$plain" "$last"

# A launcher that does not see its ranks go (Open MPI's was found so) is ended after a while.
begin "$deaf" "${small[@]}" --layout tp=2
kill -STOP "$(launcher_process "$deaf")"
kill -9 "$(rank_process "$deaf" 0)" "$(rank_process "$deaf" 1)"
goes_on "$deaf" 'a launcher that sees nothing' 2 60
expect 0 'restart .* why rank 0 .* has gone, and the launcher' events "$deaf"
stop_job "$deaf"

# A place that is lost: the nearest layout, then what --fallback says.
begin "$lost" "${small[@]}" --layout tp=2,dp=2 --lose-slot 3
kill -9 "$(rank_process "$lost" 3)"
goes_on "$lost" 'a place lost' 2
[ "$(status_of "$lost" '(j["layout"], j["ranks"])')" = "('tp=2', 2)" ]
verdict "it keeps tp" $? "$(tail -5 "$lost.log")"
grep -q 'a rank.s place is lost, 3 are left: going on in tp=2, which keeps tp, then pp, and shrinks dp; 1 spare' \
    "$lost.log"
verdict "it says what it chose and why" $? "$(grep '^reshard' "$lost.log")"
stop_job "$lost"
lost=${lost}b
begin "$lost" "${small[@]}" --layout tp=2,dp=2 --lose-slot 0 --fallback dp=4 --fallback dp=3 --fallback tp=2
kill -9 "$(rank_process "$lost" 0)"
goes_on "$lost" 'a place lost' 2
[ "$(status_of "$lost" '(j["layout"], j["ranks"])')" = "('dp=3', 3)" ]
verdict "the first fallback that fits" $? "$(tail -5 "$lost.log")"
stop_job "$lost"

# Nodes that are lost with their arenas: while the supervisor looks away, a node's ranks die and their memory goes.
generations='*'
lose_node() { # NAME RANK...: of the newest world; what it has in arenas of $generations
    local name=$1 rank
    shift
    kill -STOP $job
    for rank in "$@"; do kill -9 "$(rank_process "$name" "$rank")"; done
    until_true 30 bash -c "! pgrep -f -- 'worker --job [^ ]*$name '"
    verdict "$name: its ranks have ended" $? "$(pgrep -af -- "$name")"
    for rank in "$@"; do rm /dev/shm/reshard-*"$name"*-g$generations-r"$rank".*; done
    kill -CONT $job
}
begin "$copy" "${small[@]}" --layout tp=2,dp=2 --ranks-per-node 2
lose_node "$copy" 2 3
goes_on "$copy" 'a node lost, and its replica not' 2
lose_node "$copy" 1 0
goes_on "$copy" 'the other node lost' 3
[ "$(grep -cE 'the arenas of ranks (2, 3|0, 1) are gone; all that they held is in others too' "$copy.log")" -eq 2 ]
verdict "it says what is gone" $? "$(grep '^reshard' "$copy.log")"
expect 0 'recover step [0-9]+ .* lost 2' events "$copy"
stop_job "$copy"
copy=${copy}b
begin "$copy" "${small[@]}" --layout tp=2,dp=2 --ranks-per-node 2 --lose-slot 3 --fallback dp=2
lose_node "$copy" 3 2
goes_on "$copy" 'a node lost with its places' 2
[ "$(status_of "$copy" '(j["layout"], j["ranks"])')" = "('dp=2', 2)" ]
verdict "another layout, from what is left" $? "$(tail -5 "$copy.log")"
stop_job "$copy"

# What ZeRO gave to one node alone has a mirror, also after changes of the layout and of the world. (Ranks of a world
# that took over lie in part in arenas of the one before, which the test leaves alone.)
begin "$mirror" "${small[@]}" --layout dp=2,zero=1 --ranks-per-node 1 --redundancy 1
lose_node "$mirror" 1
goes_on "$mirror" 'a node lost, and its mirror not' 2
expect 0 '^switched .* -> dp=3,zero=1' scale "$mirror" 3
expect 0 '^switched .* -> dp=3,zero=3' switch "$mirror" dp=3,zero=3
generations='[1-9][0-9][0-9][0-9][0-9]*' lose_node "$mirror" 2
goes_on "$mirror" 'another one lost after changes' 5 # the ferry of scale was a job with a number of its own
expect 0 '^switched .* -> pp=3' switch "$mirror" pp=3
until_true 10 grep -q \
    'redundancy 1 mirrors what ZeRO divides over nodes; under pp=3 up to .* of a rank are on its node alone' "$mirror.log"
verdict "it says what is not mirrored" $? "$(tail -5 "$mirror.log")"
[ "$(grep -c 'all that they held is in others too' "$mirror.log")" -eq 2 ]
verdict "two nodes, two lines" $? "$(grep '^reshard' "$mirror.log")"
stop_job "$mirror"

# What nobody else had is taken from the newest checkpoint, with all the rest.
begin "$back" "${small[@]}" --layout dp=2,zero=1 --ranks-per-node 1 --save-every 3
until_true 60 [ -e "$back/checkpoints/latest" ]
lose_node "$back" 1
goes_on "$back" 'a node lost and a checkpoint there' 2
grep -qE 'no other copy: .*going back to step [0-9]+, the newest checkpoint' "$back.log"
verdict "it says why, and where it goes back to" $? "$(grep '^reshard' "$back.log")"
check "every step once" python3 -c "
import json
lines = [json.loads(l) for l in open('$back/metrics.jsonl')]
steps = [l['step'] for l in lines if 'loss' in l]
assert steps == list(range(1, len(steps) + 1)), steps
resumed = [l for l in lines if l.get('event') == 'resume']
assert len(resumed) == 1 and resumed[0]['step'] % 3 == 0, resumed
"
stop_job "$back"
back=${back}b
begin "$back" "${small[@]}" --layout dp=2,zero=1 --ranks-per-node 1
lose_node "$back" 0
code=0
wait $job || code=$?
[ $code -eq 1 ] && grep -q 'no other copy: .*; there is no checkpoint to go back to' "$back.log"
verdict "no checkpoint to go back to (exit code $code)" $? "$(tail -5 "$back.log")"
expect 0 'nothing of .* is left in memory' clean "$back"
check_gone "$back"
finish
