#!/usr/bin/env bash
# reshard layout: coordinates, ranges, shards, bytes.
set -u
. "$(dirname "$0")/lib.sh"

# llama-tiny: 4 layers, 8 heads, 4 kv heads, FFN 688, vocabulary 256, tied; three fp32 roles.
tiny=(--model llama-tiny --dtype fp32)
expect 0 'world 8 = tp2 cp1 dp2 pp2' layout tp=2,pp=2,dp=2,zero=1 "${tiny[@]}"
expect 0 '^ +3 +1 +0 +1 +0-1 +4-7 +2-3 +344-687 +128-255 ' layout tp=2,pp=2,dp=2,zero=1 "${tiny[@]}"
holds 'len(j["ranks"]) == 8 and j["world"] == 8' layout tp=2,pp=2,dp=2 "${tiny[@]}" --json
holds 'j["ranks"][3]["kv_heads"] == [2, 4] and j["ranks"][3]["vocab_rows"] == [128, 256]' \
    layout tp=2,pp=2,dp=2 "${tiny[@]}" --json
# On one rank the state is the whole space, and the shards add up to it.
holds 'j["ranks"][0]["total_bytes"] == j["model"]["state_bytes"] == 12 * j["model"]["parameters"]' \
    layout dp=1 "${tiny[@]}" --json
holds 'sum(s["bytes"] for s in j["ranks"][0]["shards"]) == j["ranks"][0]["total_bytes"] and
    j["ranks"][0]["rank"] == 5' layout tp=3,dp=2,zero=1 "${tiny[@]}" --rank 5 --json
# No two shards of a segment overlap.
holds 'all(a["segment"] != b["segment"] or a["offset"] + a["bytes"] <= b["offset"]
    for a, b in zip(j["ranks"][0]["shards"], j["ranks"][0]["shards"][1:]))' \
    layout tp=2,pp=2,dp=2,zero=1 "${tiny[@]}" --rank 7 --json
# bf16 has the master copy beside the moments.
holds 'set(j["ranks"][0]["state_bytes"]) == {"param", "master", "exp_avg", "exp_avg_sq"}' \
    layout dp=1 --model llama-tiny --dtype bf16 --json
expect 0 'layers\.mlp\.gate\.weight +\[1:2,' layout tp=2,pp=2 "${tiny[@]}" --rank 0

# Experts: their own mesh, chunks of layers, and bytes that add up.
moe=(--model mixtral-tiny --dtype fp32)
expect 0 'world 8 = tp2 cp1 dp4 pp1; experts per stage: etp1 ep4 edp2' \
    layout tp=2,dp=4,ep=4,etp=1,zero=1 "${moe[@]}"
holds '[r["experts"] for r in j["ranks"]] == [[0, 2], [2, 4], [4, 6], [6, 8]] * 2' \
    layout tp=2,dp=4,ep=4,etp=1 "${moe[@]}" --json
holds 'sum(s["bytes"] for s in j["ranks"][0]["shards"]) == j["ranks"][0]["total_bytes"] and
    j["ranks"][0]["chunks"] == [[1, 2], [3, 4]] and j["ranks"][0]["layers"] is None' \
    layout pp=2,vpp=2,cp=2,ep=2,zero=1 "${moe[@]}" --rank 3 --json
holds 'sum(r["total_bytes"] for r in j["ranks"]) == j["model"]["state_bytes"]' \
    layout dp=8,ep=4,zero=3,zero_cut=param "${moe[@]}" --json

refuse 2 'etp x ep must divide tp x cp x dp = 4' layout dp=4,ep=3 "${moe[@]}"
refuse 2 '--rank: wanted a rank from 0 to 3, found 4' layout tp=2,dp=2 "${tiny[@]}" --rank 4
holds 'sum(r["total_bytes"] for r in j["ranks"]) == (4 * 2 + 8 * 2) * j["model"]["parameters"]' \
    layout dp=2,zero=1 --model llama-tiny --dtype fp32 --optimizer adamw --redundancy 1 --ranks-per-node 1 --json
refuse 2 'mirrors are on other nodes' layout tp=2,dp=2 "${tiny[@]}" --redundancy 1
refuse 2 'unknown key tpp' layout tpp=2 "${tiny[@]}"
refuse 2 'cp=4' layout sp=4 "${tiny[@]}"
refuse 2 'llama3-8b' layout tp=2 --model no-such-model
finish
