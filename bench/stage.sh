#!/usr/bin/env bash
# The trainer's arithmetic (bench/stage.c) against PyTorch (bench/trainer_torch.py), one thread each,
# by turns; a figure is the median of the rounds' ratios.
set -euo pipefail
. bench/lib/median.sh
build=${BUILD:-build/release}
rounds=${ROUNDS:-3}
export OMP_NUM_THREADS=1

python=
for candidate in /usr/bin/python3 python3; do
    if "$candidate" -c 'import torch' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "needs PyTorch (Debian: python3-torch)"
    exit 77
fi

by_clock=
by_processor=
for ((round = 0; round < rounds; round++)); do
    ours=$("$build/bench/stage" --steps 8)
    theirs=$("$python" bench/trainer_torch.py --steps 8)
    echo "reshard $ours"
    echo "PyTorch $theirs"
    read -r our_clock _ our_processor _ <<<"$ours"
    read -r their_clock _ their_processor _ <<<"$theirs"
    by_clock+=$(awk "BEGIN { printf \"%.3f\", $our_clock / $their_clock }")$'\n'
    by_processor+=$(awk "BEGIN { printf \"%.3f\", $our_processor / $their_processor }")$'\n'
done
clock=$(median "$by_clock")
processor=$(median "$by_processor")
echo "figure: stage tokens/s by PyTorch's, one thread $clock (wanted: >= 1.0)"
echo "figure: the same by processor time, which other processes disturb less $processor (wanted: >= 1.0)"
awk "BEGIN { exit !($processor >= 1.0) }"
