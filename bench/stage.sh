#!/usr/bin/env bash
# The trainer's arithmetic (bench/stage.c) against PyTorch (bench/trainer_torch.py), one thread each,
# by turns; the figure is the median of the rounds' ratios.
set -euo pipefail
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

ratios=
for ((round = 0; round < rounds; round++)); do
    ours=$("$build/bench/stage" --steps 8)
    theirs=$("$python" bench/trainer_torch.py --steps 8)
    echo "reshard $ours"
    echo "PyTorch $theirs"
    ratios+=$(awk -v a="${ours%% *}" -v b="${theirs%% *}" 'BEGIN { printf "%.3f", a / b }')$'\n'
done
median=$(printf '%s' "$ratios" | sort -n | sed -n "$(((rounds + 1) / 2))p")
echo "figure: stage tokens/s by PyTorch's, one thread $median (wanted: >= 1.0)"
awk -v m="$median" 'BEGIN { exit !(m >= 1.0) }'
