#!/usr/bin/env bash
# Checkpoints whose files lie in several folders (J07), and indexes written anew (I11), as they are typed.
set -u
. "$(dirname "$0")/lib.sh"

cat >make.py <<'PY'
import json, struct
def save(path, names, rows):
    head, data = {}, b""
    for n in names:
        head[n] = {"dtype": "F32", "shape": [rows, 8], "data_offsets": [len(data), len(data) + 32 * rows]}
        data += struct.pack(f"<{8 * rows}f", *(ord(n[0]) + i / 64 for i in range(8 * rows)))
    head = json.dumps(head).encode()
    open(path, "wb").write(struct.pack("<Q", len(head)) + head + data)
save("one.safetensors", ["a", "b", "x"], 60)
PY
check "weights by hand" python3 make.py

# The files of four ranks, two of them on another disk.
expect 0 'wrote near' convert one.safetensors near --to native --weights-only --layout dp=4,zero=3
mkdir far
mv near/step-*/rank-0000[13].safetensors far
refuse 1 'near/step-00000000: the files of ranks 1, 3 are missing' inspect near
refuse 1 'ranks 1, 3 are missing' convert near no --to safetensors
holds 'len(j["tensors"]) == 3 and j["warnings"] == []' inspect near --also far --json
expect 0 'wrote hub: 3 tensors' convert near hub --to safetensors --also far
expect 0 '^equal: 3 tensors' verify hub one.safetensors --roles param
expect 0 '^equal: 3 tensors' verify near one.safetensors --also far --roles param
expect 0 '^equal: 3 tensors' verify one.safetensors near --also-b far --roles param
expect 0 'checksums: all [0-9]+ are right' verify near --also far
expect 0 '^\[0,:\] 97 97.015625$' show near 'a[0,:2]' --also far
cp near/step-*/rank-00000.safetensors far
expect 0 'checksums: all [0-9]+ are right' verify near --also far
printf X | dd of=far/rank-00000.safetensors bs=1 seek=300 conv=notrunc 2>/dev/null
refuse 1 'near/step-00000000/rank-00000.safetensors and far/rank-00000.safetensors are the same file .* differ, first at byte 300' \
    convert near no --to safetensors --also far
rm far/rank-00003.safetensors far/rank-00000.safetensors
refuse 1 'near/step-00000000 and far: the files of ranks 3 are missing' convert near no --to safetensors --also far
refuse 2 'one.safetensors: is no folder' inspect near --also one.safetensors
refuse 1 'near: has nothing of the checkpoint .hugging-face' inspect near --also hub
refuse 2 'also-b: wanted only with B' verify near --also-b far
refuse 2 'also: wanted only with --init' train --model llama-tiny --data one.safetensors --steps 1 --layout dp=1 --job j --also far
check "nothing was made" test ! -e no

# Several processes open it together; one of them compares.
if [ -n "${RS_TEST_MPIRUN:-}" ]; then
    cp near/step-*/rank-00000.safetensors far
    out=$("$RS_TEST_MPIRUN" -n 2 "$reshard" convert near no --to safetensors --also far 2>&1)
    verdict "an error that all have, said once" \
        "$([ $? -ne 0 ] && [ "$(grep -c 'ranks 3 are missing' <<<"$out")" -eq 1 ]; echo $?)" "$out"
    check "nothing was made of it" test ! -e no
fi

# An index that is wrong, put right when told to.
expect 0 'in 3 files' convert one.safetensors shards --to safetensors --max-shard-size 1000
index=shards/model.safetensors.index.json
expect 0 'right as it is: the index of shards: 3 tensors in 3 shards, 5.62 KiB' convert shards --rebuild-index
cp $index good.json
sed -i 's/"x": "model-00003/"x": "model-00001/; s/5760/5764/; /"b": /d' $index
holds 'len(j["warnings"]) == 5' inspect shards --json
refuse 1 'index.json: is there already .*--force' convert shards --rebuild-index
refuse 2 'rebuild-index: wanted with SRC alone' convert shards --rebuild-index --target-rules good.json
expect 0 'puts "x" into "model-00001-of-00003.safetensors", it is in "model-00003-of-00003.safetensors"' \
    convert shards --rebuild-index --dry-run
expect 0 'would write the index of shards' convert shards --rebuild-index --dry-run
holds 'not j["right"] and not j["written"] and len(j["findings"]) == 5 and j["total_size"] == 5760' \
    convert shards --rebuild-index --dry-run --json
expect 0 'wrote the index of shards' convert shards --rebuild-index --force
check "it is the index that was" cmp $index good.json
sed -i 's/"x": /"y": /' $index
refuse 1 'puts "y" into .*no shard has it; .*does not name the tensor "x"' convert shards --rebuild-index --force
refuse 1 'puts "y" into' inspect shards
refuse 2 'wanted with SRC alone' convert shards other --rebuild-index
refuse 2 'DST is missing' convert shards --to native
refuse 2 '.--to F is missing' convert shards other
rm $index shards/model-00002*
refuse 1 'these are missing: 2' convert shards --rebuild-index
refuse 2 'the model is in one file' convert hub --rebuild-index
finish
