#!/usr/bin/env bash
# What mirrors (train --redundancy 1) cost a step: a job with and one without them at the same time, so that both have
# the same share of the machine; two ranks that are a node each, dp=2,zero=1. Medians over the rounds of the ratios of
# median steps. The first batch is large for the weights, as it is in training; the second is small, so that updates
# and messages count for much.
set -euo pipefail
. bench/lib/median.sh
build=${BUILD:-build/release}
reshard=$PWD/$build/reshard
rounds=${ROUNDS:-5}
work=$(mktemp -d)
finish() {
    jobs -p | xargs -r kill 2>/dev/null || true
    wait
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM
cd "$work"
export OMP_WAIT_POLICY=passive

seq 1 20000 >data
cat >config.json <<'END'
{"model_type": "llama", "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4,
 "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 256,
 "tie_word_embeddings": false}
END

train() { # BATCH REDUNDANCY STEPS; in the place of the shell, so that who ends that ends the job
    exec "$reshard" train --model config.json --data data --layout dp=2,zero=1 --ranks-per-node 1 --steps "$3" \
        --global-batch "$1" --micro-batch "$(($1 < 8 ? $1 / 2 : 4))" --seq 128 --save-on-exit off \
        --redundancy "$2" --job "bench$$-$2" >"log$2" 2>&1
}

# round BATCH STEPS: leaves the ratio in $ratio.
round() {
    train "$1" 0 "$2" &
    local other=$!
    (train "$1" 1 "$2") || { tail -5 log1 >&2; return 1; }
    wait $other || { tail -5 log0 >&2; return 1; }
    ratio=$(python3 - "bench$$-" "$2" <<'END'
import json, statistics, sys
def steps(redundancy):
    rows = [l for l in map(json.loads, open(f"{sys.argv[1]}{redundancy}/metrics.jsonl")) if "loss" in l]
    return {l["step"]: l for l in rows}
jobs = steps(0), steps(1)
begin = max(job[1]["time"] for job in jobs)
end = min(job[int(sys.argv[2])]["time"] for job in jobs)
medians = [statistics.median(l["seconds"] for l in job.values() if begin < l["time"] - l["seconds"] and l["time"] <= end)
           for job in jobs]
print(f"{medians[1] / medians[0]:.3f}")
END
    )
    rm -rf "bench$$-0" "bench$$-1"
}

figure_of() { # BATCH STEPS WHAT
    local ratios=
    for ((k = 0; k < rounds; k++)); do
        round "$1" "$2"
        echo "$3: $ratio"
        ratios+=$ratio$'\n'
    done
    ratio=$(median "$ratios")
}
figure_of 32 20 "4096 tokens a step"
echo "figure: a step with mirrors by one without, 4096 tokens $ratio (wanted: < 1.15)"
good=$(awk "BEGIN { print ($ratio < 1.15) }")
figure_of 2 100 "256 tokens a step"
echo "figure: a step with mirrors by one without, 256 tokens $ratio (told)"
[ "$good" -eq 1 ]
