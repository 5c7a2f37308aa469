#!/usr/bin/env bash
# A world of which a rank stands still before it says a word: given up after two minutes, and nothing is left (L10).
set -u
. "$(dirname "$0")/lib.sh"
name=clijoins$$
seq 1 6000 >data
begun=$SECONDS code=0
RESHARD_CRASH=begins:0:-1:1:19 timeout 200 "$reshard" train --model llama-tiny --data data --seq 32 --global-batch 4 \
    --micro-batch 2 --layout tp=2 --steps 10 --max-restarts 0 --job $name >$name.log 2>&1 || code=$?
took=$((SECONDS - begun))
[ $code -eq 1 ] && grep -q 'world 1 has not joined within 120 s' $name.log
verdict "it is given up, and it says why (exit code $code)" $? "$(cat $name.log)"
[ $took -ge 119 ] && [ $took -le 150 ]
verdict "in time (after $took s)" $?
check_gone $name
finish
