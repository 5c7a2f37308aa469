#!/usr/bin/env bash
# Talking to a running job: status, switch, stop.
set -u
. "$(dirname "$0")/lib.sh"
job_name=clictl$$

seq 1 6000 >data
train=(train --model llama-tiny --data data --seq 32 --global-batch 4 --micro-batch 2)

"$reshard" "${train[@]}" --layout tp=2 --steps 100000 --ranks 2 --job "$job_name" >train.log 2>&1 &
job=$!
until_true 60 is_at "$job_name" 1
verdict "the job begins" $? "$(tail -5 train.log)"

holds 'j["running"] and j["state"] == "training" and j["layout"] == "tp=2" and j["ranks"] == 2 and
    j["loss"] > 0 and j["switches"] == []' status "$job_name" --json
expect 0 "$job_name on .*: training" status "$job_name"
expect 0 'tokens/s' status "$job_name"
refuse 1 "$job_name is in use by process" "${train[@]}" --layout tp=2 --steps 2 --job "$job_name"
check "the job goes on" kill -0 $job

expect 0 'being prepared' switch "$job_name" pp=2 --no-wait
expect 1 'a switch to pp=2 is under way' switch "$job_name" dp=2
until_true 30 bash -c "'$reshard' status $job_name --json | grep -q '\"layout\": \"pp=2\"'"
verdict "the first of two switches is done" $? "$(tail -5 train.log)"
expect 0 '^switched after step [0-9]+: pp=2 -> tp=2' switch "$job_name" tp=2
expect 0 '^switched after step [0-9]+: tp=2 -> dp=2,zero=1' switch "$job_name" dp=2,zero=1
expect 0 'certificate +ok' switch "$job_name" pp=2
holds 'j["state"] == "done" and j["to"] == "tp=2" and j["bytes_moved"] == j["bytes_minimum"]' \
    switch "$job_name" tp=2 --json
expect 2 'has the layout tp=2 already' switch "$job_name" tp=2
refuse 2 'unknown key tpp' switch "$job_name" tpp=2
refuse 2 'would have no layer.*the nearest that fits is pp=4' switch "$job_name" pp=9
holds 'j["layout"] == "tp=2" and [s["to"] for s in j["switches"]] ==
    ["pp=2", "tp=2", "dp=2,zero=1", "pp=2", "tp=2"]' \
    status "$job_name" --json

# Who follows the job hears of its end.
expect 0 '^ *[0-9.:-]+.* switch ' events "$job_name" --kind switch
timeout 60 "$reshard" status "$job_name" --watch >watched 2>&1 &
watcher=$!
timeout 60 "$reshard" events "$job_name" --kind switch --follow --json >followed 2>&1 &
follower=$!
until_true 20 test -s watched -a -s followed
expect 0 '^switched .* tp=2 -> dp=2' switch "$job_name" dp=2

# A world that is being built is given up.
expect 2 '"state": "refused"' cancel "$job_name" --json
refuse 2 'no new world is being built' cancel "$job_name"
expect 0 'world' scale "$job_name" 3 --no-wait
holds 'j["state"] == "done" and "is given up; the job trains on" in j["message"]' cancel "$job_name" --json

refuse 1 'is in use by process' clean "$job_name" --json
holds 'j["job"] == "'"$job_name"'" and j["state"] == "done" and j["message"] == "the job has stopped" and
    not j["running"] and not j["kept"] and j["step"] > 0' stop "$job_name" --json
wait $job
verdict "reshard train ends with 0 when asked to stop" $? "$(tail -5 train.log)"
grep -qE '^stopped after step [0-9]+' train.log
verdict "it says where it stopped" $? "$(tail -5 train.log)"
expect 0 "$job_name on .*: stopped" status "$job_name"
wait $watcher && grep -q ': training' watched && grep -q ': stopped' watched
verdict "status --watch shows it to its end" $? "$(tail -5 watched)"
wait $follower && check "events --follow lists switches alone, and the last" python3 -c "
import json
found = [(e['event'], e['to']) for e in map(json.loads, open('followed'))]
assert found == [('switch', to) for to in ('pp=2', 'tp=2', 'dp=2,zero=1', 'pp=2', 'tp=2', 'dp=2')], found"
verdict "events --follow ends with the job" $?
holds 'j["state"] == "done" and j["message"].startswith("no job runs in") and not j["running"] and not j["kept"]' \
    stop "$job_name" --json
expect 0 '^no job runs in' stop "$job_name"
holds 'j["state"] == "done" and j["removed"] == {"state": False, "arenas": 0}' clean "$job_name" --json
expect 0 "^nothing of $job_name is left in memory" clean "$job_name"
check_clean "$job_name"
finish
