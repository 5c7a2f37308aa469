#!/usr/bin/env bash
# reshard train from beginning to end, and what it refuses before it starts anything.
set -u
. "$(dirname "$0")/lib.sh"

# Names that no other run of this test has: what is left in memory is looked for by them.
for name in dir run plain json nodes tight room outer outer2 slurm srun srun1 srun2 srun3 none; do
    declare "cli$name=cli$$-$name"
done

head -c 20000 /dev/zero | tr '\0' 'a' >flat
seq 1 6000 >data
small=(--model llama-tiny --data data --seq 32 --global-batch 4 --micro-batch 2)
train=(train "${small[@]}")

refuse 2 '--data FILE is missing' train --model llama-tiny --layout tp=2 --steps 2 --job $clidir
refuse 1 'data file nowhere: No such file' train --model llama-tiny --data nowhere --layout tp=2 --steps 2 \
    --job $clidir
cp data $'d\xff'
refuse 2 'is no UTF-8, and the job' train --model llama-tiny --data $'d\xff' --layout tp=2 --steps 2 --job $clidir
check "no job was begun" test ! -e $clidir
refuse 2 'llama3-8b' train --model llama-huge --data data --layout tp=2 --steps 2 --job $clidir
refuse 2 'unknown key tpp' "${train[@]}" --layout tpp=2 --steps 2 --job $clidir
refuse 2 'stage 4 would have no layer.*the nearest that fits is pp=4' "${train[@]}" --layout pp=5 --steps 2 --job $clidir
refuse 2 'needs 4 ranks' "${train[@]}" --layout tp=4 --ranks 2 --steps 2 --job $clidir
refuse 2 'STEP:LAYOUT' "${train[@]}" --layout tp=2 --steps 2 --job $clidir --switch tp=2
refuse 2 'has this layout already' "${train[@]}" --layout tp=2 --steps 2 --job $clidir --switch 1:tp=2
refuse 2 'its step must be' "${train[@]}" --layout tp=2 --steps 2 --job $clidir --switch 9:dp=2
printf abcd >four
refuse 2 'data file four: has 4 bytes' train --model llama-tiny --data four --layout tp=2 --steps 2 --job $clidir
check "nothing was made" test ! -e $clidir

# Two ranks, one switch; the losses are those of one rank.
expect 0 '^switched after step 3: tp=2 -> dp=2,zero=1' "${train[@]}" --layout tp=2 --steps 6 --job $clirun \
    --switch 3:dp=2,zero=1
check "every step once" python3 -c "
import json
lines = [json.loads(l) for l in open('$clirun/metrics.jsonl')]
steps = [l['step'] for l in lines if 'loss' in l]
assert steps == [1, 2, 3, 4, 5, 6], steps
event, = [l for l in lines if l.get('event') == 'switch']
assert event['certificate'] == 'ok' and event['bytes_moved'] == event['bytes_minimum'] > 0, event
"
expect 0 'finished: 6 steps' "${train[@]}" --layout dp=1 --steps 6 --job $cliplain
check "the same losses" python3 -c "
import json
def losses(path):
    return [l['loss'] for l in map(json.loads, open(path)) if 'loss' in l]
for a, b in zip(losses('$clirun/metrics.jsonl'), losses('$cliplain/metrics.jsonl')):
    assert abs(a - b) <= 1e-5 * abs(b), (a, b)
"
refuse 1 "$clirun holds an earlier run" "${train[@]}" --layout tp=2 --steps 2 --job $clirun
expect 0 "$clirun on .*: finished" status $clirun
expect 0 '^  3 +tp=2 +dp=2,zero=1 .* ok$' status $clirun
holds 'j["state"] == "finished" and not j["running"] and len(j["switches"]) == 1 and j["step"] == 6' \
    status $clirun --json
refuse 1 'job directory nowhere: No such file' status nowhere
refuse 1 "no job runs in $clirun" switch $clirun tp=2
expect 0 "no job runs in $clirun" stop $clirun

# Events as JSON, one a line.
check "events" bash -c "'$reshard' ${train[*]} --layout dp=2 --steps 4 --job $clijson --json --switch 2:tp=2 --save-on-exit off |
    python3 -c \"
import json, sys
events = [json.loads(l) for l in sys.stdin]
kinds = [e.get('event', 'step') for e in events]
assert kinds == ['start', 'step', 'step', 'switch', 'step', 'step', 'end'], kinds
assert events[0]['ranks'] == 2 and events[-1]['outcome'] == 'finished'
\""

# A supposed node of one rank each: the bytes go through MPI.
expect 0 'certificate +ok' "${train[@]}" --layout tp=2 --steps 2 --job $clinodes --switch 1:pp=2 \
    --ranks-per-node 1
expect 0 'certificate +ok' "${train[@]}" --layout tp=2 --steps 2 --job $clitight --switch 1:pp=2 --tight \
    --dtype bf16

# Too little room is said before anything starts.
if small_room 8m; then
    refuse 1 'small: the job needs .* found .* free' "${train[@]}" --layout tp=2 --steps 2 --job $cliroom \
        --arena-dir small
    check "nothing was made" test ! -e $cliroom
fi

# Under a launcher of the user's own it is one world.
if [ -n "${RS_TEST_MPIRUN:-}" ]; then
    check "under mpirun" bash -c "timeout 120 $RS_TEST_MPIRUN -n 2 '$reshard' ${train[*]} --layout tp=2 --steps 3 \
        --job $cliouter --switch 2:dp=2 | grep -c '^step .*/3' | grep -qx 3"
    output=$(timeout 60 $RS_TEST_MPIRUN -n 2 "$reshard" "${train[@]}" --layout tp=4 --steps 3 --job $cliouter2 2>&1)
    [ "$(grep -c '^reshard train: ' <<<"$output")" = 1 ]
    verdict "one error from all ranks" $? "$output"
fi

# Inside a Slurm job it asks srun; a stand-in shows the command line and starts the ranks.
if [ -n "${RS_TEST_MPIRUN:-}" ]; then
    mkdir bin
    cat >bin/srun <<END
#!/usr/bin/env bash
if [ "\$1" = --mpi=list ]; then
    echo "MPI plugin types are...  none pmi2 pmix" >&2
    exit
fi
echo "srun \$*"
[ -z "\${SRUN_SAYS:-}" ] || { echo "srun: error: node1: \$SRUN_SAYS" >&2; exit 9; }
while [ "\$1" != -n ]; do shift; done
exec $RS_TEST_MPIRUN "\$@"
END
    chmod +x bin/srun
    SLURM_JOB_ID=1 PATH=$PWD/bin:$PATH expect 0 '^srun --overlap .*--mpi=pmix -n 2 .*worker --job '"$clislurm" \
        "${train[@]}" --layout tp=2 --steps 2 --job $clislurm
    PATH=$PWD/bin:$PATH expect 0 'finished: 2 steps' "${train[@]}" --layout tp=2 --steps 2 --job $clisrun \
        --launcher srun
    SRUN_SAYS='task 1: Killed' PATH=$PWD/bin:$PATH expect 1 \
        '^reshard train: rank 1 was killed by signal 9 \(Killed\) after step 0' \
        "${train[@]}" --layout tp=2 --steps 2 --job $clisrun1 --launcher srun
    SRUN_SAYS='task 0: Exited with exit code 3' PATH=$PWD/bin:$PATH expect 1 \
        '^reshard train: rank 0 ended with exit code 3' \
        "${train[@]}" --layout tp=2 --steps 2 --job $clisrun2 --launcher srun
    SRUN_SAYS='Unable to create step: invalid partition' PATH=$PWD/bin:$PATH expect 1 \
        'invalid partition' "${train[@]}" --layout tp=2 --steps 2 --job $clisrun3 --launcher srun
    mkdir without
    ln -s "$(command -v timeout)" "$(command -v grep)" without
    PATH=$PWD/without refuse 1 'no srun in PATH' "${train[@]}" --layout tp=2 --steps 2 --job $clinone \
        --launcher srun
fi
check_clean "cli$$-"
finish
