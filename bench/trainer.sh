#!/usr/bin/env bash
# The whole trainer (bench/trainer.c) against PyTorch (bench/trainer_torch.py) and against its own
# arithmetic without the job around it (bench/stage.c), one rank and one thread each, by turns; figures
# are medians of the rounds' ratios. Then what preparing a switch costs the steps that go on meanwhile.
set -euo pipefail
. bench/lib/median.sh
build=${BUILD:-build/release}
rounds=${ROUNDS:-3}
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1

python=
for candidate in /usr/bin/python3 python3; do
    if "$candidate" -c 'import torch' 2>/dev/null; then
        python=$candidate
        break
    fi
done

by_clock=
by_processor=
by_stage=
sums=
journals=
for ((round = 0; round < rounds; round++)); do
    ours=$("$build/bench/trainer" speed 8)
    stage=$("$build/bench/stage" --steps 8)
    echo "trainer $ours"
    echo "stage   $stage"
    read -r our_clock _ our_processor _ _ _ _ share _ _ _ _ journal _ <<<"$ours"
    read -r _ _ stage_processor _ <<<"$stage"
    by_stage+=$(awk "BEGIN { printf \"%.3f\", $stage_processor / $our_processor }")$'\n'
    sums+=$share$'\n'
    journals+=$journal$'\n'
    if [ -n "$python" ]; then
        theirs=$("$python" bench/trainer_torch.py --steps 8)
        echo "PyTorch $theirs"
        read -r their_clock _ their_processor _ <<<"$theirs"
        by_clock+=$(awk "BEGIN { printf \"%.3f\", $our_clock / $their_clock }")$'\n'
        by_processor+=$(awk "BEGIN { printf \"%.3f\", $our_processor / $their_processor }")$'\n'
    fi
done
stage=$(median "$by_stage")
share=$(median "$sums")
journal=$(median "$journals")
echo "figure: trainer's processor time by that of its arithmetic alone $stage (wanted: <= 1.03)"
echo "figure: keeping sums, share of a step $share (wanted: < 0.01)"
echo "figure: the journal of the update, share of a step $journal (wanted: < 0.03)"
good=$(awk "BEGIN { print ($stage <= 1.03 && $share < 0.01 && $journal < 0.03) }")
if [ -n "$python" ]; then
    clock=$(median "$by_clock")
    processor=$(median "$by_processor")
    echo "figure: trainer tokens/s by PyTorch's, one rank, one thread $clock (wanted: >= 1.0)"
    echo "figure: the same by processor time, which other processes disturb less $processor (wanted: >= 1.0)"
    good=$(awk "BEGIN { print ($good && $processor >= 1.0) }")
else
    echo "PyTorch is not there (Debian: python3-torch): not compared"
fi
mpirun=$(command -v mpirun.openmpi || command -v mpirun)
ahead=$("$mpirun" -n 2 "$build/bench/trainer" ahead)
echo "$ahead"
read -r ratio share <<<"$(tail -1 <<<"$ahead")"
echo "figure: steps while a switch is prepared, by those before, by the clock $ratio (wanted: < 1.05)"
echo "figure: the time in them that preparing takes, share of a step $share (wanted: < 0.05)"
awk "BEGIN { exit !($good && $share < 0.05) }"
