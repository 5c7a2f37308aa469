#!/usr/bin/env bash
# A job that grows over hosts and shrinks again: what changes host goes by ferry over the network; a host
# that is not used any more keeps neither process nor memory of the job; a ferry that is killed leaves the job as
# it was; losses are those of a run on one host.
#
#   worlds.sh RESHARD TEXT
set -uo pipefail
. "$(dirname "$(readlink -f "$0")")/job.sh"
on_hosts 'host1 slots=2' 'host2 slots=2' 'host3 slots=1'

# change NAME COMMAND ARGUMENT TO
change() {
    local output
    output=$(on host1 timeout 100 "$reshard" "$2" "$work/$1" "$3" 2>&1)
    grep -qE "^switched after step [0-9]+: .* -> $4$" <<<"$output"
    verdict "$1: $2 $3" $? "$output $(tail -3 "$work/$1.out")"
}
# ferried NAME TO PROCESSES: the last switch was to TO, with bytes by a ferry of so many processes; 0: by none.
ferried() {
    local text
    text=$(python3 - "$work/$1/metrics.jsonl" "$2" "$3" 2>&1 <<'PYTHON'
import json, sys
lines = [json.loads(l) for l in open(sys.argv[1])]
switch = [l for l in lines if l.get("event") == "switch"][-1]
assert switch["to"] == sys.argv[2] and switch["certificate"] == "ok", switch
assert switch["bytes_moved"] == switch["bytes_minimum"], switch
ferry = [l for l in lines if l.get("event") == "ferry" and l["world"] == switch["world"]]
stages = [l["stage"] for l in ferry][:4]
if sys.argv[3] == "0":
    assert switch["bytes_ferried"] == 0 and not ferry, (switch, ferry)
else:
    assert switch["bytes_ferried"] > 0 and stages == ["started", "ready", "carries", "carried"], (switch, ferry)
    assert ferry[0]["processes"] == int(sys.argv[3]), ferry
PYTHON
    )
    verdict "$1: to $2 by $3 processes of a ferry" $? "$text"
}
has_tables() { # HOST NAME COUNT
    local found
    found=$(on "$1" find /dev/shm -maxdepth 1 -name "reshard-$2-*.table") && [ "$(grep -c . <<<"$found")" -eq "$3" ]
}
only_host1() { # NAME: no rank of it is elsewhere
    [ "$(cut -d' ' -f2 "$work/$1"/ranks/* | sort -u)" = host1 ]
}

begin grows 100000 --layout tp=2
until_true 60 stepped grows 2
verdict "it trains" $? "$(tail -5 "$work/grows.out")"
change grows scale +2 tp=2,dp=2
ferried grows tp=2,dp=2 2
until_true 10 has_tables host2 grows 2
verdict "the second host has two arenas" $? "$(on host2 ls /dev/shm)"
change grows switch dp=5,zero=1 dp=5,zero=1
ferried grows dp=5,zero=1 3
output=$(on host1 timeout 100 "$reshard" scale "$work/grows" 8 2>&1)
[ $? -eq 1 ] && grep -q '8 ranks are wanted, and the hosts have 5 slots' <<<"$output"
verdict "more ranks than slots" $? "$output"
change grows switch tp=2 tp=2
ferried grows tp=2 3
until_true 20 only_host1 grows
verdict "the other hosts have no rank any more" $? "$(head "$work"/grows/ranks/*)"
for host in host2 host3; do
    until_true 10 has_tables $host grows 0
    verdict "nor any arena on $host" $? "$(on $host ls /dev/shm)"
done
change grows scale 4 tp=2,dp=2
change grows scale 2 tp=2
ferried grows tp=2 0
step=$(comparable grows 30)
stop_job grows
alone_until one 100000 "$step" --layout tp=2
same_losses grows one "$step"
check_switches grows 5
nothing_left grows

# A ferry of which a process is killed while the other carries.
RESHARD_CRASH=ferry.carry:0:0 begin dies 100000 --layout tp=2
until_true 60 stepped dies 2
output=$(on host1 timeout 100 "$reshard" scale "$work/dies" 4 2>&1)
[ $? -eq 1 ] && grep -q 'ferry between hosts' <<<"$output"
verdict "a ferry that dies is a change given up" $? "$output"
step=$(last_step dies)
until_true 30 stepped dies $((step + 2))
verdict "the job goes on" $? "$(tail -5 "$work/dies.out")"
until_true 20 has_tables host2 dies 0
verdict "nothing of the new world is on the second host" $? "$(on host2 ls /dev/shm)"
stop_job dies
nothing_left dies
conclude
