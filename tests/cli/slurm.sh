#!/usr/bin/env bash
# A job inside a real Slurm of one node: worlds started by srun grow and are survived, a preemption notice saves
# and asks to be queued again, and the next job goes on. Needs root and Debian's slurm-wlm and munge.
set -u
for program in munged slurmctld slurmd srun sbatch scancel; do
    if ! PATH=$PATH:/usr/sbin:/sbin command -v $program >/dev/null; then
        echo "skipped: no $program (Debian packages slurm-wlm and munge)"
        exit 77
    fi
done
if [ "$(id -u)" -ne 0 ]; then
    echo "skipped: not root, who alone can start a Slurm"
    exit 77
fi
. "$(dirname "$0")/lib.sh"
PATH=$PATH:/usr/sbin:/sbin
for name in batch short inner outer; do
    declare "$name=slurm$name$$"
done

# The cluster: munge, one controller, one node with more processors than it has.
chmod 755 "$work"
mkdir state spool
head -c 128 /dev/urandom >munge.key
chmod 600 munge.key
node=$(hostname -s)
port=$((20000 + $$ % 20000))
cat >slurm.conf <<END
ClusterName=reshard
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
NodeName=$node NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=$node Default=YES MaxTime=INFINITE State=UP
END
export SLURM_CONF=$work/slurm.conf
no_cluster() {
    ! pgrep -f -- "$work/"
}
end_cluster() {
    scancel --full --state=RUNNING >/dev/null 2>&1
    for file in slurmd slurmctld munged; do
        [ ! -s "$work/$file.pid" ] || kill "$(cat "$work/$file.pid")" 2>/dev/null
    done
    until_true 20 no_cluster
    tidy
}
trap end_cluster EXIT
munged --force --key-file="$work/munge.key" --socket="$work/munge.socket" --pid-file="$work/munged.pid" \
    --log-file="$work/munged.log" --seed-file="$work/munged.seed" 2>munged.err
slurmctld -f "$SLURM_CONF" && slurmd -f "$SLURM_CONF"
if ! until_true 60 bash -c 'sinfo -h -o %T | grep -qx idle'; then
    echo "skipped: Slurm does not start here: $(tail -2 munged.err slurmctld.log slurmd.log)"
    exit 77
fi

seq 1 6000 >data
train=("$reshard" train --model llama-tiny --data "$work/data" --seq 32 --global-batch 4 --micro-batch 2)
# submit NAME COMMAND...: a batch job of eight processors; its number in $number, its output in NAME.log.
submit() {
    local name=$1
    shift
    printf '#!/bin/bash\nexec %s\n' "$(printf '%q ' "$@")" >"$name.sh"
    number=$(sbatch --parsable -n 8 -o "$work/$name.log" --open-mode=append "$name.sh")
}
# ends_with CODE: the batch job ends with this exit code.
ends_with() {
    until_true 60 bash -c "scontrol show job $number | grep -qE 'JobState=(COMPLETED|FAILED)'"
    scontrol show job "$number" | grep -q "ExitCode=$1:0"
    verdict "job $number ends with $1" $? "$(scontrol show job "$number" | grep State; tail -5 "$2.log")"
}

# Inside an allocation the worlds are srun's.
submit "$batch" "${train[@]}" --steps 100000 --layout tp=2 --job "$work/$batch"
until_true 60 is_at "$batch" 3
verdict "it trains" $? "$(tail -5 "$batch.log")"
launcher=$(status_of "$batch" 'j["worlds"][0]["launcher"]')
tr '\0' ' ' <"/proc/$launcher/cmdline" | grep -q '^[^ ]*srun .*--overlap .*--mpi=pmi'
verdict "srun starts its ranks" $? "$(tr '\0' ' ' <"/proc/$launcher/cmdline")"
expect 0 '^switched .* tp=2 -> tp=2,dp=2' scale "$batch" 4
kill -9 "$(rank_process "$batch" 3)"
goes_on "$batch" 'a rank killed' 3
grep -qE '^reshard train: rank 3 .*was killed by signal 9 \(Killed\) after step [0-9]+; going on from there' "$batch.log"
verdict "it names the rank" $? "$(grep -v '^step' "$batch.log" | tail -5)"
! grep -qE '^(srun|slurmstepd)' "$batch.log"
verdict "Slurm's own lines are kept aside" $? "$(grep -E '^(srun|slurmstepd)' "$batch.log")"

# A preemption notice: the step ends, the state is saved, 75 asks for a place in the queue; there it goes on.
scancel --batch --signal=USR1 "$number"
ends_with 75 "$batch"
check_clean "$batch"
last=$(sed 's/^step-0*//' "$batch/checkpoints/latest")
submit "$batch" "${train[0]}" train --resume "$work/$batch"
until_true 60 is_at "$batch" $((last + 3))
verdict "queued again, it goes on" $? "$(tail -5 "$batch.log")"
scancel --full --signal=TERM "$number"
ends_with 75 "$batch"
check_clean "$batch"
check "every step once" python3 -c "
import json
steps = [l['step'] for l in map(json.loads, open('$batch/metrics.jsonl')) if 'loss' in l]
assert steps == list(range(1, len(steps) + 1)) and len(steps) > $last, steps"

# mpirun inside an allocation if that is asked for; srun outside of one, which then gets its own.
submit "$inner" "${train[@]}" --launcher mpirun --steps 5 --layout dp=2 --job "$work/$inner"
ends_with 0 "$inner"
expect 0 'finished: 5 steps' "${train[@]:1}" --launcher srun --steps 5 --layout dp=2 --job "$short"
check_clean "$short"

# Under an srun of the user's own the job is one fixed world.
srun --mpi=pmix -n 2 "${train[@]}" --steps 100000 --layout tp=2 --job "$outer" >"$outer.log" 2>&1 &
job=$!
until_true 60 is_at "$outer" 3
expect 2 "one fixed world of 2 ranks.*reshard train --resume $outer --layout tp=2,dp=2" scale "$outer" 4
expect 0 '-> dp=2' switch "$outer" dp=2
expect 0 'the job has stopped' stop "$outer"
wait $job
check_clean "$outer"
finish
