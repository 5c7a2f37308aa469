#!/usr/bin/env bash
# What an axis costs or gains: the trainer under a layout beside the same ranks without the axis, by turns, one
# thread a rank. A run's figure is its fastest step, a pair's the median of the rounds' ratios.
# Usage: axes.sh [NAME...], some of the rows below.
set -euo pipefail
. bench/lib/median.sh
. bench/lib/mpi_env.sh
reshard=$(realpath "${BUILD:-build/release}/reshard")
rounds=${ROUNDS:-3}
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
seq 1 20000 >"$folder/data"

# name, model, layout without the axis, layout with it, the least ratio of speeds that is wanted
rows="
sp llama-tiny tp=2 tp=2,sp=on 0.8
cp llama-tiny dp=2 cp=2 0.65
vpp llama-tiny pp=2 pp=2,vpp=2 0.9
zero1 llama-tiny dp=2 dp=2,zero=1 0.75
zero2 llama-tiny dp=2 dp=2,zero=2 0.75
zero3 llama-tiny dp=2 dp=2,zero=3 0.7
ep mixtral-tiny dp=2 dp=2,ep=2 0.75
etp mixtral-tiny tp=2 tp=2,ep=2,etp=1 0.75
"

# fastest MODEL LAYOUT: seconds of the fastest step.
fastest() {
    rm -rf "$folder/job"
    "$reshard" train --model "$1" --layout "$2" --data "$folder/data" --seq 128 --global-batch 8 --micro-batch 2 \
        --steps 6 --save-on-exit off --job "$folder/job" >"$folder/log" 2>&1 || {
        cat "$folder/log" >&2
        return 1
    }
    sed -nE 's/.*"seconds": ?([0-9.e-]+).*/\1/p' "$folder/job/metrics.jsonl" | sort -g | head -1
}

good=1
while read -r name model without with least; do
    [ -n "$name" ] || continue
    [ $# -eq 0 ] || [[ " $* " == *" $name "* ]] || continue
    ratios=
    for ((round = 0; round < rounds; round++)); do
        one=$(fastest "$model" "$without" </dev/null)
        other=$(fastest "$model" "$with" </dev/null)
        ratios+=$(awk "BEGIN { printf \"%.3f\", $one / $other }")$'\n'
    done
    ratio=$(median "$ratios")
    echo "figure: speed of $with by that of $without ($model) $ratio (wanted: >= $least)"
    good=$(awk "BEGIN { print ($good && $ratio >= $least) }")
done <<<"$rows"
[ "$good" = 1 ]
