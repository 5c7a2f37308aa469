#!/usr/bin/env bash
# Ends that nobody wanted: a rank killed, Ctrl-C, the supervisor killed. Each within seconds, with one clear
# line, and nothing left in shared memory.
set -u
. "$(dirname "$0")/lib.sh"

seq 1 6000 >data
train=(train --model llama-tiny --data data --seq 32 --global-batch 4 --micro-batch 2 --layout tp=2
    --steps 100000)
has_begun() {
    "$reshard" status "$1" --json | grep -q '"step": [1-9]'
}
# begin NAME: starts a job, its output in NAME.log, its process in $job.
begin() {
    # A process group of its own, as on a terminal: a background job of a script ignores SIGINT.
    python3 -c "
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])" "$reshard" "${train[@]}" --job "$1" >"$1.log" 2>&1 &
    job=$!
    until_true 60 has_begun "$1"
    verdict "$1 begins" $? "$(tail -5 "$1.log")"
}
# ends NAME CODE SECONDS PATTERN: the job ends in time, with this code and this message.
ends() {
    local start=$SECONDS code=0
    wait $job || code=$?
    [ $code -eq "$2" ] && [ $((SECONDS - start)) -le "$3" ] && grep -qE -- "$4" "$1.log"
    verdict "$1 ends with $2 within $3 s (found $code after $((SECONDS - start)) s), saying '$4'" $? \
        "$(tail -20 "$1.log")"
    check_clean "$1"
    until_true 10 bash -c "! pgrep -f -- '--job $1( |\$)'"
    verdict "no process of $1 is left" $? "$(pgrep -af -- "--job $1( |\$)")"
}
rank_process() {
    cut -d' ' -f1 "$1/ranks/1-$2"
}

begin clikill
kill -9 "$(rank_process clikill 1)"
ends clikill 1 15 '^reshard train: rank 1 \(process [0-9]+ on [^ ]+\) (was killed by signal 9 \(Killed\)|died) after step [0-9]+'
[ "$(grep -c '^reshard train: ' clikill.log)" -eq 1 ] && ! grep -qE -- '-----|=====' clikill.log
verdict "one line, no banners" $? "$(tail -20 clikill.log)"
expect 0 'it was killed|failed' status clikill

begin clizero
kill -SEGV "$(rank_process clizero 0)"
ends clizero 1 15 '^reshard train: rank 0 .* was killed by signal 11 \(Segmentation fault\)'

begin clilaunch
kill -9 "$(pgrep -P $job)"
ends clilaunch 1 15 '^reshard train: the launcher \(process [0-9]+\) was killed by signal 9'

begin cliint
kill -INT $job
ends cliint 130 30 '^(stopped|terminated) after step [0-9]+'

begin cliterm
kill -TERM $job
ends cliterm 75 30 '^(stopped|terminated) after step [0-9]+'

# Twice: at once, though a rank hangs.
begin clihang
kill -STOP "$(rank_process clihang 0)"
kill -INT $job
sleep 0.5
kill -INT $job
ends clihang 130 20 'once more: at once'

# The supervisor itself: its ranks end with it, and what they leave is cleared on request.
begin clilost
kill -9 $job
wait $job 2>/dev/null
until_true 30 bash -c "! pgrep -f -- '--job clilost( |\$)'"
verdict "the ranks of a killed supervisor end" $? "$(pgrep -af clilost)"
expect 0 'no job runs in clilost' stop clilost
check_clean clilost
finish
