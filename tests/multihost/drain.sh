#!/usr/bin/env bash
# Leaving hosts: by request, by a signal to a host's ranks, by the file of hosts. Afterwards no process and no
# memory of the job is on the host, and its link may go down; the losses are those of a job that stays.
#
#   drain.sh RESHARD TEXT
set -uo pipefail
. "$(dirname "$(readlink -f "$0")")/job.sh"
on_hosts 'host1 slots=2' 'host2 slots=2' 'host3 slots=2'
alone_until one 100000 30 --layout tp=2,dp=2

# left HOST: nothing of the job is there; of processes the one that stands for the host.
left() {
    local pids
    pids=$(ip netns pids "$hosts_id-${1#host}")
    [ "$(wc -w <<<"$pids")" -eq 1 ] && cleaned "$1" drained
}
shows() { # NAME PATTERN: its status does
    on host1 "$reshard" status "$work/$1" | grep -qE "$2"
}

begin drained 100000 --layout tp=2,dp=2 --heartbeat-timeout 15
until_true 60 stepped drained 2
verdict "it trains" $? "$(tail -5 "$work/drained.out")"
output=$(on host1 timeout 100 "$reshard" drain "$work/drained" --host nowhere 2>&1)
[ $? -eq 2 ] && grep -q "no host 'nowhere'" <<<"$output"
verdict "no such host" $? "$output"
output=$(on host1 timeout 100 "$reshard" drain "$work/drained" --host host2 2>&1)
verdict "a host is left" $? "$output $(tail -5 "$work/drained.out")"
left host2
verdict "nothing is left on it" $? "$(ip netns pids "$hosts_id-2" | xargs -r ps -fp; on host2 ls /dev/shm)"
link host2 down
shows drained '^host *host3: 2 ranks' && shows drained 'tp=2,dp=2'
verdict "under the same layout, on another one" $? "$(on host1 "$reshard" status "$work/drained")"
until_true 60 stepped drained $(($(last_step drained) + 3))
verdict "it goes on without the host's link" $? "$(tail -5 "$work/drained.out")"

# What a host's ranks are sent before the host goes.
ip netns pids "$hosts_id-3" | while read -r pid; do
    grep -qz '^worker$' "/proc/$pid/cmdline" && kill -TERM "$pid"
done
until_true 60 left host3
verdict "signalled ranks leave their host" $? "$(tail -8 "$work/drained.out")"
until_true 30 shows drained 'trains, 2 ranks on host1: tp=2$'
verdict "and are fewer where there are no other slots" $? "$(on host1 "$reshard" status "$work/drained")"

# The file of hosts.
link host2 up
printf 'host1 slots=2\nhost2 slots=2\n' >"$work/hosts"
until_true 60 shows drained '^host *host2: 0 ranks, 2 slots$'
verdict "a host that the file names can be used" $? "$(on host1 "$reshard" status "$work/drained")"
output=$(on host1 timeout 100 "$reshard" scale "$work/drained" 4 2>&1)
grep -qE '^switched after step [0-9]+: .* -> tp=2,dp=2$' <<<"$output"
verdict "and is" $? "$output"
# A change that is given up gives the host its slots back.
cancelled() { # the change under way, as soon as it can be
    on host1 timeout 60 "$reshard" cancel "$work/drained" >"$work/cancel.out" 2>&1
}
until_true 30 grep -q '"change":"idle"' "$work/drained/worlds.json"
on host1 timeout 100 "$reshard" drain "$work/drained" --host host2 >"$work/drain.out" 2>&1 &
asker=$!
until_true 30 cancelled
verdict "leaving a host is cancelled" $? "$(cat "$work/cancel.out" "$work/drain.out")"
! wait $asker && grep -q 'it was cancelled' "$work/drain.out"
verdict "who asked is told" $? "$(cat "$work/drain.out")"
shows drained '^host *host2: 2 ranks, 2 slots$'
verdict "the host is used as before" $? "$(on host1 "$reshard" status "$work/drained")"
# Where nobody asked, it is tried again.
printf 'host1 slots=2\n' >"$work/hosts"
until_true 30 cancelled
verdict "so it is where the file says it" $? "$(cat "$work/cancel.out")"
until_true 60 left host2
verdict "one that is taken out of the file is left" $? "$(tail -8 "$work/drained.out")"
until_true 60 stepped drained 30
stop_job drained
check_switches drained 4
same_losses drained one 30
nothing_left drained

# A host whose helper stands still when it is to be cleaned: it is not waited for so long that the world, which is
# not answered meanwhile, ends or counts as silent.
printf 'host1 slots=2\nhost2 slots=2\nhost3 slots=2\n' >"$work/hosts"
begin stuck 100000 --layout tp=2,dp=2 --heartbeat-timeout 8
until_true 60 stepped stuck 2
verdict "another one trains" $? "$(tail -5 "$work/stuck.out")"
on host1 timeout 100 "$reshard" drain "$work/stuck" --host host2 >"$work/drain.out" 2>&1 &
asker=$!
until_true 60 grep -q '"stage":"ready"' "$work/stuck/metrics.jsonl"
kill -STOP "$(pgrep -f -- " host --job $work/stuck .*--name host2")"
wait $asker
verdict "the change is made" $? "$(cat "$work/drain.out")"
grep -q 'what the job has on host2 is left until it answers: host host2 does not answer' "$work/stuck.out"
verdict "what is not cleaned is said" $? "$(grep ^reshard "$work/stuck.out")"
sleep 3
until_true 60 stepped stuck $(($(last_step stuck) + 3)) && ! restarted stuck 1
verdict "the job is not disturbed" $? "$(tail -8 "$work/stuck.out")"
until_true 60 cleaned host2 stuck
verdict "the host is cleaned when it has another helper" $? "$(on host2 ls /dev/shm)"
stop_job stuck
nothing_left stuck

# Two hosts are to be left at once: the supervisor finds both requests in one look. Either is refused, or its host
# has no rank afterwards.
asked() {
    [ "$(find "$work/both/requests" -name '*.request' | wc -l)" -eq 2 ]
}
printf 'host1 slots=2\nhost2 slots=2\nhost3 slots=2\n' >"$work/hosts"
begin both 100000 --layout tp=2,dp=2 --heartbeat-timeout 15
until_true 60 stepped both 2
supervisor=$(pgrep -f "^$reshard train .*--job $work/both ")
kill -STOP "$supervisor"
declare -A drains
for host in host1 host2; do
    on host1 timeout 100 "$reshard" drain "$work/both" --host $host >"$work/both.$host" 2>&1 &
    drains[$host]=$!
done
until_true 10 asked
verdict "two drains are asked for" $? "$(ls "$work/both/requests")"
kill -CONT "$supervisor"
count=0
for host in host1 host2; do
    if wait "${drains[$host]}"; then
        shows both "^host *$host: 0 ranks"
        verdict "$host is left" $? "$(cat "$work/both.$host"; on host1 "$reshard" status "$work/both")"
        count=$((count + 1))
    else
        grep -q "another change is under way" "$work/both.$host"
        verdict "$host is not left" $? "$(cat "$work/both.$host")"
    fi
done
[ $count -ge 1 ]
verdict "one of two is left" $? "$(cat "$work"/both.host?)"
stop_job both
nothing_left both
conclude
