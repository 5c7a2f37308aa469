#!/usr/bin/env bash
# One fixed world on two hosts, started by mpirun: the state that stays on a host moves through its
# arenas, the rest by MPI over the network; losses are those of a run on one host without switches, and no
# host keeps anything.
#
#   fixed.sh RESHARD TEXT
set -uo pipefail
reshard=$1
text=$2
here=$(dirname "$(readlink -f "$0")")
. "$here/hosts.sh"
hosts_up 2
work=$hosts_folder/work
mkdir "$work"
failed=0

fail() {
    echo "FAILED: $*"
    failed=1
}

where=$(on host1 mpirun.openmpi -n 4 -H host1:2,host2:2 hostname | sort | uniq -c | xargs)
[ "$where" = "2 host1 2 host2" ] || fail "ranks are on: $where"

train=(train --model llama-tiny --data "$text" --steps 12 --global-batch 4 --micro-batch 2 --seq 64
    --dtype fp32 --seed 3)

on host1 timeout 120 mpirun.openmpi -n 4 -H host1:2,host2:2 "$reshard" "${train[@]}" --layout tp=2,dp=2 \
    --switch 3:pp=2,dp=2,zero=1 --switch 6:tp=4 --switch 9:dp=4,zero=1 --job "$work/two" \
    >"$work/two.out" 2>&1 || fail "two hosts: $(tail -5 "$work/two.out")"
OMPI_MCA_btl=self,vader timeout 120 "$reshard" "${train[@]}" --layout tp=2,dp=2 --job "$work/one" \
    >"$work/one.out" 2>&1 || fail "one host: $(tail -5 "$work/one.out")"

python3 - "$work" <<'PYTHON' || fail "the metrics above"
import json, sys
work = sys.argv[1]
def read(name):
    return [json.loads(line) for line in open(f"{work}/{name}/metrics.jsonl")]
two, one = read("two"), read("one")
steps = {r["step"]: r["loss"] for r in two if "loss" in r}
plain = {r["step"]: r["loss"] for r in one if "loss" in r}
bad = [s for s in range(1, 13) if abs(steps[s] - plain[s]) > 1e-5 * abs(plain[s])]
switches = [r for r in two if r.get("event") == "switch"]
print(f"worst relative difference {max(abs(steps[s] / plain[s] - 1) for s in plain):.1e}")
if bad or len(switches) != 3 or any(r["certificate"] != "ok" for r in switches):
    print("steps that differ:", bad, "switches:", switches)
    sys.exit(1)
PYTHON

for host in host1 host2; do
    left=$(on "$host" find /dev/shm -name 'reshard-*')
    [ -z "$left" ] || fail "left on $host: $left"
done
[ $failed -eq 0 ] || { cat "$work/two.out" | tail -40; exit 1; }
echo "passed"
