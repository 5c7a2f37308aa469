#!/usr/bin/env bash
# What mirrors (train --redundancy 1) cost a step: jobs with and without them by turns, two ranks that are a node each,
# dp=2,zero=1. Medians over the rounds of the ratios of median steps. The first batch is large for the weights, as
# it is in training; the second is small, so that updates and messages count for much.
set -euo pipefail
. bench/lib/median.sh
build=${BUILD:-build/release}
reshard=$PWD/$build/reshard
rounds=${ROUNDS:-3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export OMP_WAIT_POLICY=passive

seq 1 20000 >data
cat >config.json <<'END'
{"model_type": "llama", "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4,
 "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 256,
 "tie_word_embeddings": false}
END

# step_of BATCH REDUNDANCY: seconds of a step, the median.
step_of() {
    local name=bench$$
    "$reshard" train --model config.json --data data --layout dp=2,zero=1 --ranks-per-node 1 --steps 12 \
        --global-batch "$1" --micro-batch "$(($1 < 8 ? $1 / 2 : 4))" --seq 128 --save-on-exit off \
        --redundancy "$2" --job "$name" >log 2>&1 || { tail -5 log >&2; return 1; }
    python3 - "$name" <<'END'
import json, statistics, sys
steps = [l["seconds"] for l in map(json.loads, open(f"{sys.argv[1]}/metrics.jsonl")) if "loss" in l]
print(f"{statistics.median(steps[4:]):.4f}")
END
    rm -rf "$name"
}

figure_of() { # BATCH WHAT
    local ratios= with without
    for ((round = 0; round < rounds; round++)); do
        without=$(step_of "$1" 0)
        with=$(step_of "$1" 1)
        echo "$1 sequences a step: $without s, with mirrors $with s"
        ratios+=$(awk "BEGIN { printf \"%.3f\", $with / $without }")$'\n'
    done
    ratio=$(median "$ratios")
    echo "figure: a step with mirrors by one without, $2 $ratio (wanted: $3)"
}
figure_of 32 "4096 tokens a step" "< 1.1"
good=$(awk "BEGIN { print ($ratio < 1.1) }")
figure_of 2 "256 tokens a step" "told"
[ "$good" -eq 1 ]
