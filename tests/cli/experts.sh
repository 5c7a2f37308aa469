#!/usr/bin/env bash
# Models with experts from the command line: training tells the balance, a checkpoint goes on under other meshes,
# its weights become a Hugging Face folder with a tensor for each expert, and a job begins with those.
set -u
. "$(dirname "$0")/lib.sh"

# Names that no other run of this test has: what is left in memory is looked for by them.
moekill=moekill$$
moewhole=moewhole$$

seq 1 6000 >data
small=(train --data data --seq 16 --global-batch 4 --micro-batch 1)

expect 0 'experts per stage: etp1 ep4 edp1' "${small[@]}" --model qwen2-moe-tiny --layout tp=2,dp=2,etp=1,ep=4,zero=1 \
    --steps 2 --job qwen
check "steps tell the balance loss and close choices" python3 -c "
import json
steps = [json.loads(line) for line in open('qwen/metrics.jsonl')]
steps = [line for line in steps if 'event' not in line]
assert len(steps) == 2 and all(line['aux_loss'] > 0 and line['close_choices'] >= 0 for line in steps)"
expect 0 'wrote qwen-hf: 129 tensors' convert qwen qwen-hf --to safetensors
holds '{"model.layers.0.mlp.gate_proj.weight", "model.layers.1.mlp.gate.weight",
    "model.layers.1.mlp.experts.0.gate_proj.weight", "model.layers.3.mlp.experts.7.down_proj.weight",
    "model.layers.3.mlp.shared_expert.up_proj.weight", "model.layers.3.mlp.shared_expert_gate.weight"}
    <= {t["name"] for t in j["tensors"]}' inspect qwen-hf --json
expect 0 '^equal: 23 tensors' verify qwen-hf qwen --roles param
expect 0 'wrote qwen-full: [0-9]+ tensors' convert qwen qwen-full --to native
expect 0 '^equal: 69 tensors' verify qwen-full qwen

# On under other meshes: the same steps, the same losses.
cp -r qwen other
expect 0 'step 4/4' train --resume qwen --steps 4 --override steps --layout dp=4,ep=4
expect 0 'step 4/4' train --resume other --steps 4 --override steps --layout tp=2,etp=2
check "losses after a checkpoint do not depend on the mesh" python3 -c "
import json
losses = [[line['loss'] for line in map(json.loads, open(f'{job}/metrics.jsonl')) if 'event' not in line]
          for job in ('qwen', 'other')]
assert len(losses[0]) == 4 and all(abs(a - b) <= 1e-5 * a for a, b in zip(*losses)), losses"

# A job begins with the weights of a folder: its first loss is that of the job that wrote them, one step on.
expect 0 'finished: 1 steps' "${small[@]}" --model mixtral-tiny --layout dp=2,ep=2 --steps 1 --lr 1e-12 --job mixtral
expect 0 'wrote mixtral-hf: 127 tensors' convert mixtral mixtral-hf --to safetensors
holds '{"model.layers.3.block_sparse_moe.gate.weight", "model.layers.3.block_sparse_moe.experts.7.w2.weight"}
    <= {t["name"] for t in j["tensors"]}' inspect mixtral-hf --json
expect 0 'finished: 1 steps' "${small[@]}" --model mixtral-tiny --layout tp=2,dp=2,etp=1,ep=2 --steps 1 --job again \
    --init mixtral-hf
check "the first loss is that of the weights" python3 -c "
import json
first = [next(line['loss'] for line in map(json.loads, open(f'{job}/metrics.jsonl')) if 'event' not in line)
         for job in ('mixtral', 'again')]
assert abs(first[0] - first[1]) <= 1e-5 * first[0], first"

# Its universal checkpoint, written from under expert parallelism: a job begins with it, and under the trainer's names one goes
# on from it, with the losses of the job that goes on itself.
expect 0 'wrote mixtral-uni: 508 tensors' convert mixtral mixtral-uni --to deepspeed-universal
expect 0 '^equal: 26 tensors' verify mixtral-uni mixtral --roles exp_avg,exp_avg_sq
expect 0 'finished: 1 steps' "${small[@]}" --model mixtral-tiny --layout tp=2,dp=2,etp=1,ep=4,zero=3 --steps 1 --job fromuni \
    --init mixtral-uni
expect 0 'wrote mixtral-own' convert mixtral-uni mixtral-own --to native --dialect reshard --model mixtral-tiny \
    --layout tp=2,dp=2,etp=1,ep=4,zero=1
mkdir onuni
cp -r mixtral-own onuni/checkpoints
expect 0 'step 2/2' train --resume onuni --steps 2 --override steps --layout tp=2,dp=2,etp=1,ep=4,zero=1
expect 0 'step 2/2' train --resume mixtral --steps 2 --override steps --layout dp=4,ep=2
check "the losses are those of the job that wrote it" python3 -c "
import json
losses = {job: [line['loss'] for line in map(json.loads, open(f'{job}/metrics.jsonl')) if 'event' not in line]
          for job in ('mixtral', 'again', 'fromuni', 'onuni')}
assert abs(losses['fromuni'][0] - losses['again'][0]) <= 1e-5 * losses['again'][0], losses
assert len(losses['mixtral']) == 2 and len(losses['onuni']) == 1, losses
assert abs(losses['onuni'][0] - losses['mixtral'][1]) <= 1e-5 * losses['onuni'][0], losses"

# Layers with experts among others, and a router's bias: their names tell the layer, from a job's checkpoint, from what was
# converted, and back.
cat >mixed.json <<'JSON'
{"model_type": "qwen3_moe", "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 40, "moe_intermediate_size": 24,
 "num_hidden_layers": 6, "mlp_only_layers": [3], "decoder_sparse_step": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
 "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "topk_method": "noaux_tc", "vocab_size": 256,
 "tie_word_embeddings": false, "rms_norm_eps": 1e-6}
JSON
expect 0 'finished: 2 steps' "${small[@]}" --model mixed.json --layout dp=2,ep=2,zero=1 --steps 2 --job mixed
expect 0 'wrote mixed-full: [0-9]+ tensors' convert mixed mixed-full --to native
for from in mixed mixed-full; do
    expect 0 "wrote $from-hf: [0-9]+ tensors" convert $from $from-hf --to safetensors
    holds '{"model.layers.0.mlp.gate_proj.weight", "model.layers.3.mlp.up_proj.weight",
        "model.layers.1.mlp.experts.3.gate_proj.weight", "model.layers.5.mlp.experts.0.down_proj.weight",
        "model.layers.5.mlp.gate.weight", "model.layers.5.mlp.gate.e_score_correction_bias"}
        <= {t["name"] for t in j["tensors"]} and
        not [t for t in j["tensors"] if ".3.mlp.experts" in t["name"] or ".5.mlp.up_proj" in t["name"]]' \
        inspect $from-hf --json
done
expect 0 '^equal' verify mixed-hf mixed-full-hf
expect 0 'finished: 1 steps' "${small[@]}" --model mixed.json --layout pp=3 --steps 1 --job mixedinit --init mixed-full-hf

# A killed rank: the job goes on under another mesh from what stands in memory, as if nothing had been.
steps_of() {
    python3 -c "
import json
print(max([line['step'] for line in map(json.loads, open('$1/metrics.jsonl')) if 'event' not in line], default=0))"
}
has_steps() {
    [ -f "$1/metrics.jsonl" ] && [ "$(steps_of "$1")" -ge "$2" ]
}
long=("${small[@]}" --model qwen2-moe-tiny --steps 100000 --save-on-exit off)
"$reshard" "${long[@]}" --max-restarts 0 --layout dp=3,ep=3,zero=1 --job $moekill >$moekill.log 2>&1 &
job=$!
until_true 60 has_steps $moekill 3
kill -9 "$(cut -d' ' -f1 $moekill/ranks/1-2)"
wait $job
before_kill=$(steps_of $moekill)
"$reshard" train --resume $moekill --layout tp=2,dp=2,etp=1,ep=4 --save-on-exit off >$moekill.log 2>&1 &
job=$!
until_true 60 has_steps $moekill $((before_kill + 1))
expect 0 'stop' stop $moekill
wait $job
"$reshard" "${long[@]}" --layout dp=3,ep=3,zero=1 --job $moewhole >$moewhole.log 2>&1 &
job=$!
until_true 60 has_steps $moewhole $((before_kill + 1))
expect 0 'stop' stop $moewhole
wait $job
check "the killed job has the losses of one that was not, the first step after it included" python3 -c "
import json
killed, whole = [{line['step']: line['loss'] for line in map(json.loads, open(f'{job}/metrics.jsonl'))
                  if 'event' not in line} for job in ('$moekill', '$moewhole')]
last = $before_kill + 1
assert sorted(killed)[:last] == list(range(1, last + 1)), sorted(killed)
assert all(killed[step] == whole[step] for step in range(1, last)), (killed, whole)
assert abs(killed[last] - whole[last]) <= 1e-4 * whole[last], (last, killed[last], whole[last])"
check_clean $moekill
check_clean $moewhole

refuse 2 'the model has no experts; the nearest that fits is dp=2' "${small[@]}" --model llama-tiny --layout dp=2,ep=2 \
    --steps 1 --job no
refuse 2 'latent attention' "${small[@]}" --model deepseek-tiny --layout dp=2,ep=2 --steps 1 --job no
expect 0 'experts per stage' plan --model mixtral-tiny --from dp=4,ep=4 --to tp=2,dp=2,etp=1,ep=2
finish
