#!/usr/bin/env bash
# A supervised job on two hosts: worlds on both, a helper on the far one, switches in place, an orderly stop;
# losses are those of a run on one host; no host keeps anything, and the secret is on no command line.
#
#   supervised.sh RESHARD TEXT
set -uo pipefail
. "$(dirname "$(readlink -f "$0")")/job.sh"
on_hosts 'host1 slots=2' host2:2
sed -i '1i# two hosts' "$work/hosts"

begin two 12 --layout tp=2,dp=2 --switch 3:pp=2,dp=2,zero=1 --switch 6:tp=4 --switch 9:dp=4,zero=1
until_true 60 stepped two 1
verdict "it trains" $? "$(tail -5 "$work/two.out")"
where=$(cut -d' ' -f2 "$work"/two/ranks/1-* | sort | uniq -c | xargs)
[ "$where" = "2 host1 2 host2" ]
verdict "two ranks on each host" $? "$where"
[ "$(pgrep -fc -- " host --job $work/two ")" -ge 1 ]
verdict "a helper on the far host" $? "$(pgrep -af reshard)"
on host1 "$reshard" status "$work/two" >"$work/status.out" 2>&1
grep -q '^host *host2: 2 ranks, 2 slots$' "$work/status.out"
verdict "the status shows the hosts" $? "$(cat "$work/status.out")"
secret=$(xxd -p -c 64 "$work/two/secret")
lines=$(pgrep -fa .)
[[ "$lines" != *"$secret"* ]]
verdict "the secret is on no command line" $? "$secret"
wait "$job"
verdict "it ends well" $? "$(tail -5 "$work/two.out")"
alone one 12 --layout tp=2,dp=2
same_losses two one 12
check_switches two 3
nothing_left two

# Stopped in the middle; the state goes on both hosts.
begin stopped 100000 --layout dp=2,tp=2
until_true 60 stepped stopped 2
verdict "another one trains" $? "$(tail -5 "$work/stopped.out")"
stop_job stopped
nothing_left stopped

# Killed with all that is there to watch it; what is left on both hosts is removed.
begin killed 100000 --layout dp=2,tp=2
until_true 60 stepped killed 2
verdict "a third one trains" $? "$(tail -5 "$work/killed.out")"
kill -9 "$(pgrep -f -- "^$reshard train .*--job $work/killed ")"
wait "$job" 2>/dev/null
for host in host1 host2; do
    [ -n "$(on $host find /dev/shm -maxdepth 1 -name 'reshard-*killed*.table')" ]
    verdict "its state is kept on $host" $? "$(on $host ls /dev/shm)"
done
on host1 timeout 60 "$reshard" clean "$work/killed" >"$work/clean.out" 2>&1
verdict "it is cleaned" $? "$(cat "$work/clean.out")"
nothing_left killed

# What there is, and what is missing.
printf 'host1 slots=2\nhost2 slots=2\n' >"$work/hosts"
on host1 "$reshard" doctor --hosts "$work/hosts" --rsh-agent "$agent" --model llama-tiny --layout tp=2,dp=2 \
    --job "$work" >"$work/doctor.out" 2>&1
verdict "the doctor finds nothing" $? "$(cat "$work/doctor.out")"
grep -q '^ok *host2: shared folder' "$work/doctor.out" && grep -q '^ok *slots *4 slots on 2 hosts for 4 ranks' \
    "$work/doctor.out"
verdict "and has looked at the far host" $? "$(cat "$work/doctor.out")"
printf 'host1 slots=2\nnowhere slots=1\n' >"$work/hosts"
on host1 "$reshard" doctor --hosts "$work/hosts" --rsh-agent "$agent" --model llama-tiny --layout tp=2,dp=2 \
    --job /dev/shm >"$work/doctor.out" 2>&1
[ $? -eq 1 ] && grep -q '^NO *nowhere: reached' "$work/doctor.out" && grep -q '^NO *slots' "$work/doctor.out"
verdict "a host that is none, and too few slots" $? "$(cat "$work/doctor.out")"
printf 'host2 slots=1\n' >"$work/hosts"
on host1 "$reshard" doctor --hosts "$work/hosts" --rsh-agent "$agent" --job /dev/shm >"$work/doctor.out" 2>&1
[ $? -eq 1 ] && grep -q '^NO *host2: shared folder' "$work/doctor.out"
verdict "a folder that is not shared" $? "$(cat "$work/doctor.out")"

# What is wrong with hosts is said before anything is started.
printf 'host1 slots=1\nhost2\n' >"$work/hosts"
refused few 'the hosts have 2 slots' --layout tp=4
printf 'host1 slots=2\nhost2 slots=many\n' >"$work/hosts"
refused malformed 'line 2: wanted a host' --layout tp=2
printf 'host1 slots=2\nnowhere slots=2\n' >"$work/hosts"
refused unreachable 'host nowhere cannot be reached' --layout tp=4
conclude
