#!/usr/bin/env bash
# Ends that nobody wanted: a rank killed, Ctrl-C, the supervisor killed. Each within seconds, with one clear
# line. Where a process was killed the state stays in memory, to be gone on with or removed; else nothing stays.
set -u
. "$(dirname "$0")/lib.sh"

for name in kill zero launch int term hang grace user nan lost orphan; do
    declare "$name=cli$name$$"
done

seq 1 6000 >data
train=(train --model llama-tiny --data data --seq 32 --global-batch 4 --micro-batch 2 --layout tp=2
    --steps 100000 --max-restarts 0)
# begin NAME: starts a job, its output in NAME.log, its process in $job.
begin() { # NAME ARGUMENT...
    # A process group of its own, as on a terminal: a background job of a script ignores SIGINT.
    python3 -c "
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])" "$reshard" "${train[@]}" --job "$@" >"$1.log" 2>&1 &
    job=$!
    until_true 60 is_at "$1" 1
    verdict "$1 begins" $? "$(tail -5 "$1.log")"
}
# ends NAME CODE SECONDS PATTERN: the job ends in time, with this code and this message.
ends() {
    local start=$SECONDS code=0
    wait $job || code=$?
    [ $code -eq "$2" ] && [ $((SECONDS - start)) -le "$3" ] && grep -qE -- "$4" "$1.log"
    verdict "$1 ends with $2 within $3 s (found $code after $((SECONDS - start)) s), saying '$4'" $? \
        "$(tail -20 "$1.log")"
    until_true 10 bash -c "! pgrep -f -- '--job $1( |\$)'"
    verdict "no process of $1 is left" $? "$(pgrep -af -- "--job $1( |\$)")"
}

# kept NAME: its state stands in memory, is told of, and goes when asked to.
kept() {
    grep -q "^its state is kept in memory: .reshard train --resume $1. " "$1.log"
    verdict "$1 says that its state is kept" $? "$(tail -5 "$1.log")"
    [ -f "$1/state.json" ] && compgen -G "/dev/shm/reshard-$1-*.ledger" >/dev/null
    verdict "the state of $1 is there" $? "$(ls "$1" /dev/shm)"
    expect 0 "its state is kept in memory" stop "$1"
    holds 'j["kept"] and not j["running"]' stop "$1" --json
    holds 'j["message"] == "nothing of '"$1"' is left in memory" and j["removed"] == {"state": True, "arenas": 2}' \
        clean "$1" --json
    [ ! -f "$1/state.json" ]
    verdict "no record of $1 is left" $?
    check_clean "$1"
}

begin "$kill"
refuse 1 "job directory $kill is in use" clean "$kill"
kill -9 "$(rank_process "$kill" 1)"
ends "$kill" 1 15 '^reshard train: rank 1 \(process [0-9]+ on [^ ]+\) (was killed by signal 9 \(Killed\)|died) after step [0-9]+'
[ "$(grep -c '^reshard train: ' "$kill.log")" -eq 1 ] && ! grep -qE -- '-----|=====' "$kill.log"
verdict "one line, no banners" $? "$(tail -20 "$kill.log")"
expect 0 'it was killed|failed' status "$kill"
kept "$kill"

begin "$zero"
kill -SEGV "$(rank_process "$zero" 0)"
ends "$zero" 1 15 '^reshard train: rank 0 .* was killed by signal 11 \(Segmentation fault\)'
kept "$zero"

begin "$launch"
kill -9 "$(pgrep -P $job)"
ends "$launch" 1 15 '^reshard train: the launcher \(process [0-9]+\) was killed by signal 9'
kept "$launch"

begin "$int"
kill -INT $job
ends "$int" 130 30 '^(stopped|terminated) after step [0-9]+'
check_clean "$int"

begin "$term"
kill -TERM $job
ends "$term" 75 30 '^(stopped|terminated) after step [0-9]+'
check_clean "$term"

# Twice: at once, though a rank hangs.
begin "$hang"
kill -STOP "$(rank_process "$hang" 0)"
kill -INT $job
until_true 10 grep -q 'once more: at once' "$hang.log"
kill -INT $job
ends "$hang" 130 20 'once more: at once'
check_clean "$hang"

# Told to end in time, and a rank does not: at once when the time is over.
begin "$grace" --grace 1
kill -STOP "$(rank_process "$grace" 1)"
kill -USR1 $job
ends "$grace" 138 20 'the step has not ended within 1 s \(--grace\): at once'
grep -qE '^reshard train: ended by force after step [0-9]+, and never saved$' "$grace.log"
verdict "it says what that has cost" $? "$(tail -5 "$grace.log")"
check_clean "$grace"

# SIGUSR1: the step ends, the state is saved, and 75 asks to be started again.
begin "$user"
kill -USR1 $job
ends "$user" 75 30 '^(stopped|terminated) after step [0-9]+'
check_clean "$user"
last=$(sed 's/^step-0*//' "$user/checkpoints/latest")
grep -q "^\(stopped\|terminated\) after step $last" "$user.log"
verdict "the last step is saved" $? "$(tail -3 "$user.log")"
expect 0 "goes on from step $last" train --resume "$user" --steps $((last + 2)) --override steps

# A failure of the job's own leaves nothing either.
expect 1 'is not finite' "${train[@]}" --job "$nan" --lr 9e5 --warmup 0
[ ! -f "$nan/state.json" ]
verdict "a job that failed has no record" $?
check_clean "$nan"

# The supervisor itself: its ranks keep the state until somebody takes over, and end then.
begin "$lost"
kill -9 $job
wait $job 2>/dev/null
sleep 2
compgen -G "/dev/shm/reshard-$lost-*.ledger" >/dev/null
verdict "the state of a job without supervisor is there" $? "$(ls /dev/shm)"
steps() {
    python3 -c "
import json
print([l['step'] for l in map(json.loads, open('$1/metrics.jsonl')) if 'event' not in l])"
}
last=$(($(steps "$lost" | tr -d '[],' | wc -w)))
expect 0 "going on from it" train --resume "$lost" --steps $((last + 5)) --override steps
[ "$(steps "$lost")" = "$(python3 -c "print(list(range(1, $last + 6)))")" ]
verdict "every step of $lost exactly once" $? "$(steps "$lost" | tail -c 200)"
until_true 30 bash -c "! pgrep -f -- '--job $lost( |\$)'"
verdict "the old ranks have ended" $? "$(pgrep -af "$lost")"
expect 0 "no job runs in $lost" stop "$lost"
check_clean "$lost"

# Nobody takes over: the ranks save and remove the state in time.
begin_orphan() {
    "$reshard" "${train[@]}" --job "$orphan" --orphan-timeout 0.05 >"$orphan.log" 2>&1 &
    job=$!
    until_true 60 is_at "$orphan" 1
}
begin_orphan
kill -9 $job
wait $job 2>/dev/null
until_true 30 bash -c "! pgrep -f -- '--job $orphan( |\$)'"
verdict "orphans end after their time" $? "$(pgrep -af "$orphan")"
[ ! -f "$orphan/state.json" ] && [ -f "$orphan/checkpoints/latest" ]
verdict "they have saved, and kept nothing in memory" $? "$(ls -R "$orphan" /dev/shm | tail -30)"
expect 0 "nothing of $orphan is left" clean "$orphan"
check_clean "$orphan"
finish
