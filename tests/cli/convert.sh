#!/usr/bin/env bash
# reshard convert and verify: formats hold the same, what is there is not overwritten, nothing half-done is left,
# and differences and damage are named.
set -u
. "$(dirname "$0")/lib.sh"

# A name that no other run of this test has: what is left in memory is looked for by it.
cvjob=cvjob$$

seq 1 6000 >data
small=(train --model llama-tiny --data data --seq 16 --global-batch 4 --micro-batch 2)
expect 0 'saved step 2' "${small[@]}" --layout tp=2,dp=2,zero=1 --steps 2 --job $cvjob --dtype bf16

expect 0 'would write hf: 38 tensors' convert $cvjob hf --to safetensors --dry-run
check "nothing was made" test ! -e hf
expect 0 'wrote hf: 38 tensors, 5.66 MiB in 1 file' convert $cvjob hf --to safetensors
refuse 1 'hf: is there already' convert $cvjob hf --to safetensors
# A dry run says what would stand in the way; what has no use is not passed over; what is left out is counted.
expect 0 'warning: hf: is there already' convert $cvjob hf --to safetensors --dry-run
expect 0 '^warning: nowhere: is no folder that hf can be written to' convert $cvjob nowhere/hf --to native --dry-run
expect 0 'values beside the tensors left out' convert $cvjob hf2 --to safetensors --dry-run
holds 'j["extras_left_out"] > 1 and j["warnings"] == []' convert $cvjob hf2 --to safetensors --dry-run --json
holds 'j["extras_left_out"] == 0' convert $cvjob hf2 --to native --dry-run --json
holds 'j["extras_left_out"] == 0' convert hf hf2 --to safetensors --dry-run --json
refuse 2 'universal-version is for' convert $cvjob hf2 --to native --universal-version 0.4
refuse 2 'rebuild-index: wanted with SRC alone' convert hf --rebuild-index --dtype bf16
echo '{"tensors": 7' >bad.json
refuse 2 'bad.json' convert hf hf2 --to native --weights-only --rules bad.json
refuse 2 'bad.json' inspect hf --rules bad.json
expect 0 'in [0-9]+ files' convert $cvjob hf --to safetensors --force --max-shard-size 1000000
check "an index and no rest" bash -c "ls -a hf . | grep -c reshard | grep -qx 0 && test -e hf/model.safetensors.index.json"
holds '{t["dtype"] for t in j["tensors"]} == {"bfloat16"} and len(j["tensors"]) == 38 and not j["warnings"] and
    "model.layers.3.mlp.down_proj.weight" in {t["name"] for t in j["tensors"]}' inspect hf --json
expect 0 '^equal: 11 tensors' verify $cvjob hf --roles param
expect 1 'master of .*: only in the first' verify $cvjob hf
refuse 1 'no optimizer state; --weights-only' convert hf native --to native
refuse 1 'cannot make no/such/x: No such file' convert hf no/such/x --to native --weights-only
refuse 1 'cannot make data/x: Not a directory' convert hf data/x --to native --weights-only
expect 0 'wrote native' convert hf native --to native --weights-only
expect 0 '^equal: 38 tensors' verify native hf
expect 0 'wrote full: 44 tensors' convert $cvjob full --to native
expect 0 '^equal: 44 tensors' verify full $cvjob
expect 0 'checksums: all 44 are right' verify full
expect 0 'structure only' verify hf
expect 0 'goes on|step 3/3' train --resume $cvjob --steps 3 --override steps --layout pp=2
expect 1 '^different: 44 tensors' verify full $cvjob
expect 0 '^equal: 44 tensors' verify full $cvjob/checkpoints/step-00000002
expect 1 'elements differ, the first at \[' verify full $cvjob --rtol 1e-9
expect 0 '^equal: 44 tensors' verify full $cvjob --atol 10 --roles exp_avg,master,param,exp_avg_sq
expect 1 'beside the tensors, "training": .*"steps":2.*"steps":3' verify full $cvjob --atol 10
refuse 2 'nowhere' verify full nowhere
printf X | dd of=full/step-00000002/rank-00000.safetensors bs=1 seek=300000 conv=notrunc 2>/dev/null
expect 1 'rank-00000.safetensors: byte .* is damaged' verify full
holds 'j["findings"] and j["proof"] == "checksums"' verify full --json
# Names of folders need not be UTF-8; JSON is, and damage is damage.
odd=$'odd\xff\xc3'
mv full "$odd"
expect 1 'damaged, or contradicts itself: 1 findings' verify "$odd"
holds 'j["path"] == "odd\ufffd\ufffd" and len(j["findings"]) == 1 and "rank-00000" in j["findings"][0]' \
    verify "$odd" --json
holds 'j["target"] == "\u00fc\ufffd\ufffd" and j["tensors"] == 38' convert hf $'\xc3\xbc\xe2\x82' --to safetensors --json

# Files of torch.save: weights, the whole state, other types; and back.
expect 0 'wrote weights.pt: 38 tensors' convert hf weights.pt --to torch --weights-only
expect 0 '^equal: 38 tensors' verify weights.pt hf
refuse 1 'weights.pt: is there already' convert hf weights.pt --to torch --weights-only
refuse 1 'no optimizer state; --weights-only' convert hf whole.pt --to torch
expect 0 'wrote whole.pt: 152 tensors' convert $cvjob whole.pt --to torch
expect 0 '^equal: 44 tensors' verify whole.pt $cvjob
expect 0 'wrote again: 152 tensors' convert whole.pt again --to native
expect 0 '^equal: 44 tensors' verify again $cvjob
expect 0 'wrote half.pt' convert whole.pt half.pt --to torch --dtype fp32,exp_avg=bf16
holds '{(t["role"], t["dtype"]) for t in j["tensors"]} == {("param", "float32"), ("master", "float32"),
    ("exp_avg", "bfloat16"), ("exp_avg_sq", "float32")}' inspect half.pt --json
expect 0 '^equal: 38 tensors' verify whole.pt half.pt --roles exp_avg_sq
refuse 2 'nothing of role "momentum"' convert whole.pt no.pt --to torch --dtype momentum=bf16
refuse 2 'must be float64, float32' convert whole.pt no.pt --to torch --dtype int8
# DeepSpeed's universal checkpoints.
expect 0 'wrote uni: 152 tensors' convert $cvjob uni --to deepspeed-universal
check "its pointer" test "$(cat uni/latest_universal)" = global_step3_universal
expect 0 '^equal: 11 tensors' verify uni $cvjob --roles master
expect 0 '^equal: 22 tensors' verify uni $cvjob --roles exp_avg,exp_avg_sq
# Its parameter groups: the rate of the next step, and which parameters they have.
holds '(lambda g: j["extras"]["step"] == 3 and [x["weight_decay"] for x in g] == [0.1, 0.0] and
    all(abs(x["lr"] - 1.2e-4) < 1e-12 and x["initial_lr"] == 3e-4 and x["betas"] == [0.9, 0.95] for x in g) and
    "model.layers.3.mlp.down_proj.weight" in g[0]["param_names"] and g[1]["param_names"][-1] == "model.norm.weight" and
    sum(len(x["param_names"]) for x in g) == 38 and j["extras"]["global_steps"] == 3)(j["extras"]["param_groups"])' \
    inspect uni --json
refuse 2 'not with --weights-only' convert $cvjob no --to deepspeed-universal --weights-only
refuse 1 'universal checkpoints know tp, pp, dp and zero alone' convert $cvjob no --to deepspeed-universal --layout cp=2
refuse 2 'is for no layout; native and universal' convert $cvjob no --to safetensors --layout tp=2
refuse 1 'nothing says how it is cut over 2' convert $cvjob no --to deepspeed-universal --layout tp=2
cat >rules.json <<'RULES'
{"rules": [{"match": ".*embed_tokens", "split": 0, "vocabulary": 256}, {"match": ".*(o|down)_proj", "split": 1},
           {"match": ".*norm", "replicated": true}, {"match": ".*_proj", "split": 0},
           {"match": "lm_head", "split": 0, "vocabulary": 256}]}
RULES
expect 0 'wrote sliced: 152 tensors' convert $cvjob sliced --to deepspeed-universal --layout tp=2,dp=2,zero=3 \
    --rules rules.json --universal-version 0.4
check "a model file for each of its ranks" bash -c \
    'test "$(cd sliced/global* && echo *.pt)" = "zero_pp_rank_0_mp_rank_00_model_states.pt zero_pp_rank_0_mp_rank_01_model_states.pt"'
expect 0 '^equal: 44 tensors' verify sliced $cvjob --roles param,master,exp_avg,exp_avg_sq
holds 'j["extras"]["step"] == j["extras"]["global_steps"] == 3 and len(j["extras"]["param_groups"]) == 2' inspect sliced --json
holds '(lambda i: i["universal_checkpoint_version"] == 0.4 and i["original_vocab_size"] == 256 and
    len(i["parameter_with_row_parallelism_patterns"]) == 8 and len(i["tp_replicated_parameter_patterns"]) == 9 and
    "^model\\.norm\\.weight$" in i["tp_replicated_parameter_patterns"])(j["extras"]["universal_checkpoint_info"])' \
    inspect sliced --json
expect 0 'wrote bare' convert $cvjob bare --to native --weights-only
expect 0 '^equal: 11 tensors' verify bare $cvjob --roles param
check "nothing is left behind" bash -c "test -z \"\$(ls -a | grep reshard)\""

# Laid out for another layout: a file for each of its ranks, which a job that has it goes on from.
expect 0 'wrote laid: 44 tensors' convert $cvjob laid --to native --layout pp=2,dp=2,zero=1
check "the files of its ranks" test "$(ls laid/step-00000003 | tr '\n' ' ')" = "manifest.json rank-00000.safetensors \
rank-00001.safetensors rank-00002.safetensors rank-00003.safetensors "
expect 0 '^equal: 44 tensors' verify laid $cvjob
expect 0 'checksums: all [0-9]+ are right' verify laid
holds 'j["layout"] == "pp=2,dp=2,zero=1"' inspect laid --json
mkdir laidjob
cp -r laid laidjob/checkpoints
expect 0 'step 4/4.*pp=2,dp=2,zero=1' train --resume laidjob --steps 4 --override steps --save-on-exit off
refuse 1 'nothing says how tp=2 cuts it' convert hf no --to native --weights-only --layout tp=2
expect 0 'wrote flat' convert hf flat --to native --weights-only --layout dp=3,zero=3
expect 0 '^equal: 38 tensors' verify flat hf
expect 0 'wrote fromhf' convert hf fromhf --to native --weights-only --layout tp=4 --dialect reshard --model llama-tiny
expect 0 '^equal: 11 tensors' verify fromhf $cvjob/checkpoints/step-00000002 --roles param

# Sizes with units; nothing but the right words.
expect 0 'in [0-9]+ files' convert $cvjob hf --to safetensors --force --max-shard-size 1MB --memory 1MiB
refuse 2 '--memory: wanted bytes from 1048576 on, or with a unit' convert $cvjob hf2 --to native --memory 1KiB
refuse 2 'with a layout each of its ranks has one file' convert $cvjob hf2 --to native --layout dp=2,zero=1 --max-shard-size 1MB
refuse 2 'torch is not divided by size' convert $cvjob hf2 --to torch --max-shard-size 1MB
check "nothing was made of it" test ! -e hf2
refuse 2 'found .5XB' convert $cvjob hf2 --to native --max-shard-size 5XB
holds 'j["bytes_read"] == j["bytes"]' convert $cvjob again2 --to native --json

# Several processes: the same bytes, whatever their number, and one voice.
sums() {
    (cd "$1" && find . -type f | sort | xargs sha256sum)
}
for ranks in 1 2 3 5; do
    out=$("$RS_TEST_MPIRUN" -n $ranks "$reshard" convert $cvjob "ranks$ranks" --to native --memory 1MiB \
        --max-shard-size 7MB 2>&1)
    verdict "convert on $ranks ranks" $? "$out"
    verdict "one voice of $ranks" "$([ "$(grep -c '^wrote ranks' <<<"$out")" -eq 1 ]; echo $?)" "$out"
    check "the bytes of $ranks ranks" diff <(sums ranks1) <(sums "ranks$ranks")
done
expect 0 '^equal: 44 tensors' verify ranks5 $cvjob
out=$("$RS_TEST_MPIRUN" -n 3 "$reshard" convert $cvjob laid3 --to native --layout pp=2,dp=2,zero=1 2>&1)
verdict "for a layout on 3 ranks" $? "$out"
check "the bytes of one" diff <(sums laid) <(sums laid3)
out=$("$RS_TEST_MPIRUN" -n 3 "$reshard" convert $cvjob ranks3 --to native 2>&1)
verdict "what is there stays, said once" "$([ $? -ne 0 ] && [ "$(grep -c 'ranks3: is there already' <<<"$out")" -eq 1 ]; echo $?)" "$out"

# Interrupted: the exit code says so, and nothing is left. A source that keeps it busy for a second at least.
python3 -c "
import json, struct
n = 200 << 20
head = json.dumps({'t': {'dtype': 'F32', 'shape': [n], 'data_offsets': [0, 4 * n]}}).encode()
with open('big.safetensors', 'wb') as f:
    f.write(struct.pack('<Q', len(head)) + head)
    f.truncate(8 + len(head) + 4 * n)"
set -m # else what runs beside the script ignores SIGINT
for signal in INT TERM; do
    status=0
    "$reshard" convert big.safetensors cut --to native --weights-only --memory 1MiB >cut.log 2>&1 &
    until_true 20 test -e cut.tmp-reshard
    kill -$signal $!
    wait $! || status=$?
    verdict "convert ended by $signal ($status)" "$([ $status -eq $((128 + $(kill -l $signal))) ] && grep -q 'interrupted; cut is as it was' cut.log; echo $?)" "$(cat cut.log)"
    check "nothing is left after $signal" bash -c 'test -z "$(ls -d cut cut.* 2>/dev/null | grep -v cut.log)"'
done
# Planning for a great many ranks takes long; it is ended as well.
"$reshard" convert $cvjob cut --to native --layout dp=1000000,zero=1 >cut.log 2>&1 &
sleep 1
kill -TERM $!
status=0
wait $! || status=$?
verdict "planning ended by TERM ($status)" "$([ $status -eq 143 ]; echo $?)" "$(cat cut.log)"
"$reshard" convert big.safetensors cut --to native --weights-only --memory 1MiB >/dev/null 2>&1 &
until_true 20 test -e cut.tmp-reshard
kill -KILL $!
wait $! 2>/dev/null
set +m
check "nothing is there after KILL" test ! -e cut
rm -rf cut.*
# Two to one place: the second is told, and the first is not disturbed.
"$reshard" convert big.safetensors cut --to native --weights-only --memory 1MiB >cut.log 2>&1 &
until_true 20 test -e cut.tmp-reshard
refuse 1 'cut.tmp-reshard: another process is writing there' convert hf cut --to safetensors
wait $!
verdict "the first one of two" $? "$(cat cut.log)"
expect 0 '^equal: 1 tensors' verify big.safetensors cut
rm -rf cut cut.* big.safetensors
# --force does not replace what is being read, nor what it lies in; a link to it is a link.
refuse 1 "$cvjob/checkpoints: has $cvjob/checkpoints/.*a conversion does not replace its source" \
    convert $cvjob $cvjob/checkpoints --to native --force
refuse 1 "$cvjob/: has .*does not replace" convert $cvjob/checkpoints/step-00000002 $cvjob/ --to safetensors --force
refuse 1 'weights.pt: has weights.pt' convert weights.pt weights.pt --to safetensors --force
ln -s hf linked
expect 0 'wrote linked' convert linked linked --to safetensors --force
expect 0 '^equal' verify hf linked
# A link to nowhere is not replaced unasked; what cannot be replaced is refused before anything is written.
ln -s nowhere dangling
refuse 1 'dangling: is there already' convert hf dangling --to torch --weights-only
refuse 1 'dangling: is there already' convert hf dangling --to safetensors
check "the link is left" test -L dangling
refuse 2 '"." is no name' convert hf . --to safetensors --force

# No room: nothing is left at the target.
if mkdir small && mount -t tmpfs -o size=2m tmpfs small 2>/dev/null; then
    refuse 1 'No space left' convert $cvjob small/out --to safetensors
    check "nothing is left" bash -c "test -z \"\$(ls small)\""
    umount small
else
    echo "skipped: the test of a full disk needs the right to mount one"
fi

# PyTorch reads what was written, where there is one with a reader of safetensors; else the bytes by hand.
check "the weights, read by hand" python3 -c "
import json, struct, glob
names = {}
for path in glob.glob('hf/*.safetensors'):
    f = open(path, 'rb')
    n = struct.unpack('<Q', f.read(8))[0]
    head = json.loads(f.read(n))
    assert head.pop('__metadata__') == {'format': 'pt'}
    names.update({k: v['shape'] for k, v in head.items()})
index = json.load(open('hf/model.safetensors.index.json'))
assert set(index['weight_map']) == set(names) and names['model.embed_tokens.weight'] == [256, 256]
assert index['metadata']['total_size'] == 5935616, index['metadata']
"
check_clean $cvjob
finish
