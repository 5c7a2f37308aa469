#!/usr/bin/env bash
# Names of other people: convert --dialect and --hf-from, verify across names, types and roles, show. The checkpoints
# are written by hand and by the trainer; what must be in them is known.
set -u
. "$(dirname "$0")/lib.sh"

# A name that no other run of this test has: what is left in memory is looked for by it.
namesjob=namesjob$$

# A GPT-2 of 2 layers whose every number says where it is, as transformers stores it; an embedding that is tied.
cat >make.py <<'PY'
import json, struct, sys

def save(path, tensors, dtype="F32"):
    head, data = {}, b""
    for name, (shape, numbers) in tensors.items():
        raw = b"".join(struct.pack("<f", x)[2 if dtype == "BF16" else 0:] for x in numbers)
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + data)

H, F, V, P = 6, 10, 5, 4
t = {}
def add(name, *shape):
    n = 1
    for s in shape:
        n *= s
    base = 1000 * len(t)
    t[name] = (list(shape), [float(base + i) for i in range(n)])
add("transformer.wte.weight", V, H)
add("transformer.wpe.weight", P, H)
for l in range(2):
    h = f"transformer.h.{l}."
    for n in ("ln_1", "ln_2"):
        add(h + n + ".weight", H), add(h + n + ".bias", H)
    for n, i, o in (("attn.c_attn", H, 3 * H), ("attn.c_proj", H, H), ("mlp.c_fc", H, F), ("mlp.c_proj", F, H)):
        add(h + n + ".weight", i, o), add(h + n + ".bias", o)
add("transformer.ln_f.weight", H), add("transformer.ln_f.bias", H)
save("gpt2/model.safetensors", t)
json.dump({"model_type": "gpt2", "n_embd": H, "n_head": 3, "n_layer": 2, "n_positions": P, "vocab_size": V,
           "n_inner": F}, open("gpt2/config.json", "w"))
open("gpt2/tokenizer.json", "w").write("{}")
bare = {n.removeprefix("transformer."): x for n, x in t.items()}
save("bare.safetensors", bare)
shape, numbers = t["transformer.h.1.mlp.c_fc.bias"]
save("off.safetensors", {**bare, "h.1.mlp.c_fc.bias": (shape, numbers[:3] + [numbers[3] * 1.001] + numbers[4:])})
save("lacks.safetensors", {n: x for n, x in bare.items() if n != "h.0.ln_2.bias"})
small = {n: (s, [x / 1024 + 1e-4 for x in v]) for n, (s, v) in bare.items()}
save("wide.safetensors", small)
rounded = {}
for n, (s, v) in small.items():
    out = []
    for x in v:
        bits = struct.unpack("<I", struct.pack("<f", x))[0]
        bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000
        out.append(struct.unpack("<f", struct.pack("<I", bits))[0])
    rounded[n] = (s, out)
save("narrow.safetensors", rounded, "BF16")
PY
mkdir gpt2
check "a GPT-2 by hand" python3 make.py

# To the trainer's names and back; the model is told by config.json beside the weights.
refuse 2 'name the model .--model.' convert bare.safetensors own --to native --weights-only --dialect reshard
expect 0 'wrote own: 20 tensors' convert gpt2 own --to native --weights-only --dialect reshard
expect 0 'would be copied from gpt2' convert own back --to safetensors --hf-from gpt2 --dry-run
expect 0 '2 files of configuration and tokenizer copied from gpt2' convert own back --to safetensors --hf-from gpt2
check "the same file" cmp gpt2/config.json back/config.json
expect 0 'lacks config.json and the tokenizer' convert own plain --to safetensors
rm back/tokenizer.json
expect 0 "lacks the tokenizer's files" convert own half --to safetensors --hf-from back --force
holds 'j["lacks_tokenizer"] and not j["lacks_config"] and j["copied"] == 1' \
    convert own half --to safetensors --hf-from back --force --json
refuse 2 'nowhere: is no folder' convert own other --to safetensors --hf-from nowhere
check "nothing is left" bash -c "test ! -e other -a ! -e other.tmp-reshard"
expect 0 '^equal: 28 tensors' verify gpt2 back --roles param
# C09: the model is tied: what its output layer is called, where that name is wanted too.
expect 0 '^1 second name of tied tensors left out \(--tied\)$' convert own once --to safetensors
expect 0 'wrote twice: 29 tensors' convert own twice --to safetensors --tied duplicate
expect 0 '^equal: 20 tensors' verify own twice --roles param
holds '(lambda n: n["lm_head.weight"]["shape"] == n["transformer.wte.weight"]["shape"] and
    "alias_of" not in n["lm_head.weight"])({t["name"]: t for t in j["tensors"]})' inspect twice --json
holds 'j["second_names"] == 1 and j["tensors"] == 28' convert own listed --to safetensors --tied listed --json
holds '[t["alias_of"] for t in j["tensors"] if t["name"] == "lm_head.weight"] == ["transformer.wte.weight"]' \
    inspect listed --json
refuse 2 'tied "listed": files written as torch' convert own no.pt --to torch --weights-only --tied listed
refuse 2 "tied: wanted one of once.listed.duplicate, found 'both'" convert own no --to safetensors --tied both
expect 0 'warning: tied "duplicate": the source has no second names' \
    convert bare.safetensors none --to safetensors --tied duplicate
expect 0 '^equal: 20 tensors' verify own bare.safetensors
expect 1 'only in the first' verify gpt2 bare.safetensors
expect 0 '^equal: 20 tensors' verify gpt2 bare.safetensors --model gpt2
refuse 2 'dialect klingon: neither' convert own other --to safetensors --dialect klingon

# E12: verify finds what is not the same, names it, and the first element of it.
expect 1 'param of "layers.mlp.up.bias": 1 of 20 elements differ, the first at \[1,3\]: [0-9.]+ and [0-9.]+' \
    verify own off.safetensors
expect 0 '^equal' verify own off.safetensors --rtol 0.01
expect 0 '^equal' verify own off.safetensors --atol 100 --rtol 0
expect 1 '1 of 20 elements differ' verify own off.safetensors --rtol 0.0001
expect 1 'param of "transformer.h.0.ln_2.bias": only in the first' verify own lacks.safetensors
expect 1 'float32 in the first, bfloat16 in the second' verify wide.safetensors narrow.safetensors
expect 0 '^equal: 28 tensors' verify wide.safetensors narrow.safetensors --cast
expect 0 '^equal: 28 tensors' verify narrow.safetensors wide.safetensors --cast
expect 1 'elements differ' verify wide.safetensors bare.safetensors --cast
holds 'j["different"] == 1 and "[1,3]" in j["findings"][0]' verify own off.safetensors --json

# A dialect of one's own: queries, keys and values in groups, gates above ups, layers from 3 on.
cat >mine.json <<'JSON'
{"dialect": "mine", "prefixes": ["module"], "tensors": [
  {"name": "tok", "of": "embed.weight"},
  {"name": "block{0+3}.qkv", "groups": "kv_heads",
   "of": ["layers.attn.q.weight", "layers.attn.k.weight", "layers.attn.v.weight"]},
  {"name": "block{0+3}.gate_up", "of": ["layers.mlp.gate.weight", "layers.mlp.up.weight"]},
  {"name": "block{0+3}.down", "of": "layers.mlp.down.weight", "transposed": true},
  {"name": "*", "of": "*"}]}
JSON
seq 1 6000 >data
expect 0 'saved step 2' train --model llama-tiny --data data --seq 16 --global-batch 4 --micro-batch 2 \
    --layout tp=2,dp=2,zero=1 --steps 2 --job $namesjob --dtype bf16
expect 0 'wrote mine' convert $namesjob mine --to safetensors --dialect mine.json
holds '{t["name"]: t["shape"] for t in j["tensors"]}["block6.qkv"] == [512, 256] and
    {t["name"]: t["shape"] for t in j["tensors"]}["block3.down"] == [688, 256] and len(j["tensors"]) == 17' \
    inspect mine --json
expect 0 '^equal: 11 tensors' verify $namesjob mine --dialect mine.json --roles param
expect 1 'only in the first' verify $namesjob mine --roles param
expect 0 'wrote again' convert mine again --to safetensors --from-dialect mine.json --dialect hf --model llama-tiny
expect 0 'wrote direct' convert $namesjob direct --to safetensors
check "the same bytes, by whichever way" cmp again/model.safetensors direct/model.safetensors
refuse 1 'line 1' convert $namesjob other --to safetensors --dialect data
expect 0 'wrote state.pt' convert $namesjob state.pt --to torch --dialect mine.json
expect 0 '^equal: 44 tensors' verify $namesjob state.pt --dialect mine.json

# A job begins from them: under names that are found, and what GPT-2 has is not trained.
expect 0 'finished' train --model llama-tiny --data data --seq 16 --global-batch 4 --steps 1 --job begun \
    --init again --layout dp=2
# From torch.save and from the full state too: the same weights, so the same first loss.
expect 0 'wrote again.pt' convert again again.pt --to torch --weights-only
for from in again.pt $namesjob/checkpoints/step-00000002; do
    expect 0 'finished' train --model llama-tiny --data data --seq 16 --global-batch 4 --steps 1 --job "b-${from%%[./]*}" \
        --init "$from" --layout pp=2 --save-on-exit off
done
# J07: shards on two disks.
expect 0 'in [0-9]+ files' convert again halves --to safetensors --max-shard-size 1500KB
mkdir otherdisk
mv halves/model-00002-of-* otherdisk
expect 0 'finished' train --model llama-tiny --data data --seq 16 --global-batch 4 --steps 1 --job b-halves \
    --init halves --also otherdisk --layout tp=2 --save-on-exit off
expect 1 'names the shard "model-00002-of' train --model llama-tiny --data data --seq 16 --global-batch 4 --steps 1 \
    --job none4 --init halves --layout dp=1
# Under names of one's own, where the dialect is given.
expect 0 'finished' train --model llama-tiny --data data --seq 16 --global-batch 4 --steps 1 --job b-mine \
    --init mine --dialect mine.json --layout tp=2 --save-on-exit off
expect 1 'mine: the checkpoint has no .embed.weight' train --model llama-tiny --data data --seq 16 \
    --global-batch 4 --steps 1 --job none3 --init mine --layout dp=1
refuse 2 'dialect klingon: neither' train --model llama-tiny --data data --seq 16 --global-batch 4 --steps 1 --job none2 \
    --init mine --dialect klingon --layout dp=1
# A mistyped path leaves no job in the way of the next try.
refuse 1 '^reshard train: nowhere: cannot open it' train --model llama-tiny --data data --seq 16 --global-batch 4 --steps 1 \
    --job none5 --init nowhere --layout dp=1
check "no job is left" test ! -e none5
refuse 1 '^reshard train: rank 0: [^r]' train --model llama-20m --data data --seq 16 --global-batch 4 --steps 1 \
    --job none6 --init mine --dialect mine.json --layout dp=1
refuse 2 'dialect: wanted only with --init' train --model llama-tiny --data data --seq 16 --global-batch 4 --steps 1 \
    --job none2 --dialect hf --layout dp=1
check "one loss" python3 -c "
import json
lines = [json.loads(line) for job in ('begun', 'b-again', 'b-$namesjob', 'b-mine', 'b-halves') for line in open(f'{job}/metrics.jsonl')]
losses = [line['loss'] for line in lines if line.get('step') == 1 and 'loss' in line]
assert len(losses) == 5
assert max(losses) - min(losses) < 1e-5 * max(losses), losses"
expect 1 'state.pt: the checkpoint has no .embed.weight' train --model llama-tiny --data data --seq 16 --global-batch 4 \
    --steps 1 --job none --init state.pt --layout dp=1
refuse 2 'learnt positions' train --model gpt2-tiny --data data --seq 16 --global-batch 4 --steps 1 --job none --layout dp=1
expect 0 'bytes moved      13.13 MiB; the minimum is 13.13 MiB' plan --model gpt2-tiny --from tp=2 --to tp=3,dp=2

# Values: the first rows of the fused tensor are the first query head's, then the first key head's.
expect 0 '^wte.weight\[1:2,4:6\], param, float32, of \[5,6\]$' show bare.safetensors 'wte.weight[1,4:]'
expect 0 '^\[1,:\] 10 11$' show bare.safetensors 'wte.weight[1,4:]'
holds 'j["values"] == [[10.0, 11.0]] and j["box"] == [[1, 2], [4, 6]]' show bare.safetensors 'wte.weight[1,-2:]' --json
holds 'j["values"] == [[[6003 + 18 * i for i in range(3)]]]' show own 'layers.attn.q.weight[0,3:4,:3]' --json
expect 0 'param, float32' show own 'transformer.h.0.attn.c_attn.weight[:2,:2]' --dialect hf
expect 0 'norm.weight\[0:3\], exp_avg, float32' show $namesjob 'norm.weight[:3]' --role exp_avg
refuse 1 'has no param of "nothing"' show own nothing
refuse 2 'dimension 1 has 6 elements; wanted an index or a range like 0:4, found .9' show bare.safetensors 'wte.weight[1,9]'
refuse 2 'the tensor has 2 dimensions' show bare.safetensors 'wte.weight[1,2,3]'
refuse 2 '30 elements; name a smaller range' show bare.safetensors wte.weight --limit 10
check_clean $namesjob
finish
