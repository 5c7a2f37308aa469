#!/usr/bin/env bash
# reshard inspect: the JSON, the table, selections, refusals. Real checkpoints lie beside the source tree; without
# them only what needs none is tested.
set -u
fixtures=$(cd "$(dirname "$0")/../.." && pwd)/../shared/fixtures
. "$(dirname "$0")/lib.sh"

refuse 1 'No such file' inspect no-such-file
mkdir empty
refuse 1 'no checkpoint is in this folder' inspect empty
printf 'version https://git-lfs.github.com/spec/v1\n' >pointer.safetensors
refuse 1 'LFS pointer' inspect pointer.safetensors
refuse 2 'PATH is missing' inspect
printf '\x08\0\0\0\0\0\0\0{}      ' >none.safetensors
holds 'j == {"format": "safetensors", "layout": None, "tensors": [], "extras": {"metadata": {}}, "warnings": []}' \
    inspect none.safetensors --json
refuse 2 'unknown format "zip"' inspect none.safetensors --format zip

if [ ! -d "$fixtures" ]; then
    echo "skipped the rest: $fixtures is not there"
    finish
fi
z3=$fixtures/deepspeed/b-z3-bf16-w4-sub/checkpoint
expect 0 '^format +deepspeed$' inspect "$z3"
expect 0 '^layout +tp=1,pp=1,dp=4,zero=3$' inspect "$z3"
expect 0 '^embed.weight +param +bfloat16 +\[61,24\] .* from master$' inspect "$z3"
expect 0 '^exp_avg +33 ' inspect "$z3"
holds 'set(j) == {"format", "layout", "tensors", "extras", "warnings"} and j["extras"]["step"] == 3 and
    j["extras"]["writer"] == "DeepSpeed 0.19.5" and j["warnings"] == []' inspect "$z3" --json
# 16-bit weights that no file holds are the masters rounded; a tied one has a second name.
holds '[t for t in j["tensors"] if t["name"] == "head.weight"] == [{"name": "head.weight", "role": "param",
    "dtype": "bfloat16", "shape": [61, 24], "stored": False, "derived_from": "master",
    "alias_of": "embed.weight"}]' inspect "$z3" --json
truth="{(t['name'], {'fp32': 'master'}.get(t['kind'], t['kind'])): t['sha256']
    for t in json.load(open('$z3/../truth.json'))['tensors'] if 'sha256' in t}"
holds "all({(t['name'], t['role']): t['sha256'] for t in j['tensors']}[k] == v for k, v in $truth.items())" \
    inspect "$z3" --json --hash
holds 'len(j["tensors"]) == 4 * 2 and all("attn.q_proj" in t["name"] and len(t["sha256"]) == 64
    for t in j["tensors"] if t["role"] == "master")' \
    inspect "$z3" --tensors 'layers.*.attn.q_proj.weight' --json --hash
# A tag's folder, one file of it, and the root are the same checkpoint.
holds 'len(j["tensors"]) > 130 and j["extras"]["tag"] == "global_step3"' inspect "$z3/global_step3" --json
expect 0 '^format +torch$' inspect "$z3/global_step3/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"
# Names as in a plain file; the index of shards; kinds that are known by sight.
holds '{t["name"] for t in j["tensors"]} >= {"model.a.weight", "optimizer.state.0.exp_avg"} and
    j["extras"]["epoch"] == 4' inspect "$fixtures/torchsave-2.6/adam-training-state/data.pt" --json
holds '[t["name"] for t in j["tensors"]] == [""]' inspect "$fixtures/torchsave-2.6/bare-tensor/data.pt" --json
holds 'len(j["tensors"]) == 39' inspect "$fixtures/safetensors/sharded-3/model.safetensors.index.json" --json
holds 'len(j["tensors"]) == 39' inspect "$fixtures/safetensors/sharded-3" --json
refuse 1 'torch.distributed.checkpoint' inspect "$fixtures/dcp/plain-w2/checkpoint"
refuse 1 'Megatron-LM' inspect "$fixtures/megatron/torch-tp2-fp32/checkpoint"
refuse 1 'Megatron-LM' inspect "$fixtures/megatron/dist-tp2-fp32/checkpoint/iter_0000003"
refuse 1 'data.pt: byte [0-9]+: names posix.system' inspect "$fixtures/torchsave-2.6/evil-os-system-zip/data.pt"
refuse 1 'data-parallel ranks 1 of 2' inspect "$fixtures/deepspeed-broken/missing-rank1/checkpoint"
# Cut over two ranks, and nothing says how: refused by name; with rules, read.
noinfo=$fixtures/deepspeed3d/pp2-tp2-z1-noinfo-w4/checkpoint
refuse 1 '"tied_modules.embed.weight" is held by 2 tensor-parallel ranks' inspect "$noinfo"
cat >rules.json <<'EOF'
{"rules": [{"match": ".*norm\\.(weight|bias)|.*down_bias", "replicated": true},
           {"match": ".*\\.(o|down)\\.weight", "split": 1}, {"match": ".*gate_up", "split": 0, "parts": 2}],
 "otherwise": {"split": 0}}
EOF
holds 'j["layout"] == "tp=2,pp=2,dp=1,zero=1" and [80, 24] in [t["shape"] for t in j["tensors"]]' \
    inspect "$noinfo" --rules rules.json --json
# What cannot be printed is no success; a closed stream is no file to be written to.
for command in "inspect $z3" "inspect $z3 --json" "verify $z3" "verify $z3 --json" "show $z3 embed.weight --limit 2000" \
    "convert $z3 no --to native --dry-run" "plan --model llama-tiny --from tp=2 --to dp=2" "help convert" --help; do
    # shellcheck disable=SC2086
    "$reshard" $command >/dev/full 2>full.log
    verdict "$command to a full disk" "$([ $? -eq 1 ] && [ "$(grep -c 'cannot write to standard output' full.log)" = 1 ]; echo $?)" "$(cat full.log)"
done
"$reshard" convert "$z3" closed --to native >&- 2>&- <&-
expect 0 '^equal' verify "$z3" closed
refuse 1 'no-rules.json' inspect "$noinfo" --rules no-rules.json
finish
