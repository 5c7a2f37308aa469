#!/usr/bin/env bash
# The real DeepSpeed 0.14.5 against what is written for it, and against what it writes: a run with ZeRO-2 on 4 ranks and
# one with ZeRO-3 on 3 are converted to universal checkpoints, which DeepSpeed loads on 1, 2 and 3 ranks; masters,
# moments, step and rates are then those of the run, to the bit. And what its own ds_to_universal makes of the runs holds
# the same as what is made here. Then the same with tensor parallelism, from 1 and 2 ranks to 1, 2, 3 and 4: fused
# parts, halves, rows, tensors cut in another shape, averages, and a vocabulary with padding rows.
#   deepspeed_oracle.sh RESHARD FOLDER
# Debian's PyTorch is wanted; DeepSpeed is installed with pip into FOLDER, for this test alone. RS_TEST_DEEPSPEED names
# a Python that has both instead. Without them the test is skipped.
set -u
here=$(cd "$(dirname "$0")" && pwd)
reshard=$1
mkdir -p "$2" || exit 1
environment=$(cd "$2" && pwd)/deepspeed
. "$here/../cli/lib.sh"

skip() {
    echo "skipped: $1"
    exit 77
}

python=${RS_TEST_DEEPSPEED:-$environment/bin/python}
if ! "$python" -c 'import deepspeed' >log 2>&1; then
    [ -z "${RS_TEST_DEEPSPEED:-}" ] || skip "$python cannot import deepspeed"
    /usr/bin/python3 -c 'import torch' 2>/dev/null || skip "Debian's python3-torch is not installed"
    {
        /usr/bin/python3 -m venv --system-site-packages "$environment" &&
            timeout 300 "$environment/bin/pip" install -q --no-input hjson ninja psutil py-cpuinfo tqdm pydantic packaging &&
            DS_BUILD_OPS=0 timeout 300 "$environment/bin/pip" install -q --no-input --no-deps --no-build-isolation \
                deepspeed==0.14.5
    } >log 2>&1 || skip "DeepSpeed 0.14.5 cannot be installed: $(tail -1 log)"
    "$python" -c 'import deepspeed' >log 2>&1 || skip "DeepSpeed does not run here: $(tail -1 log)"
fi

# run RANKS ARGUMENT...: deepspeed_run.py on so many ranks; run_tp: deepspeed_tp.py; run_auto: deepspeed_autotp.py.
run() {
    run_program deepspeed_run.py "$@"
}
run_tp() {
    run_program deepspeed_tp.py "$@"
}
run_auto() {
    run_program deepspeed_autotp.py "$@"
}
run_program() {
    local program=$1 ranks=$2 port=$((20000 + RANDOM % 20000)) rank pids=() status=0
    shift 2
    for ((rank = 0; rank < ranks; rank++)); do
        RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$ranks LOCAL_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
            OMP_NUM_THREADS=1 DS_ACCELERATOR=cpu timeout 200 "$python" "$here/$program" "$@" >"log.$rank" 2>&1 &
        pids+=($!)
    done
    for rank in "${!pids[@]}"; do
        wait "${pids[$rank]}" || status=1
    done
    [ $status -eq 0 ] || tail -n 4 log.[0-3]
    return $status
}

# same TRUTH LOADED
same() {
    "$python" - "$@" <<'PYTHON'
import sys
import torch
a, b = (torch.load(path) for path in sys.argv[1:3])
assert a["tensors"].keys() == b["tensors"].keys() and len(a["tensors"]) == 18
for key, value in a["tensors"].items():
    assert torch.equal(value.view(torch.int32), b["tensors"][key].view(torch.int32)), key
    assert value.abs().max() > 0, key
for key in ("steps", "lr", "weight_decay", "scheduled"):
    assert a[key] == b[key] and a[key], (key, a[key], b[key])
PYTHON
}

for stage in 2 3; do
    if [ $stage = 2 ]; then ranks=4 how=(--stage 2 --groups 2); else ranks=3 how=(--stage 3 --dtype bf16); fi
    check "DeepSpeed trains with ZeRO-$stage on $ranks ranks" run $ranks train run$stage truth$stage "${how[@]}"
    expect 0 '^wrote' convert run$stage made$stage --to deepspeed-universal
    for ranks in 1 2 3; do
        check "DeepSpeed loads it on $ranks ranks" run $ranks load made$stage loaded "${how[@]}"
        check "and has what it had" same truth$stage loaded
        rm -f loaded
    done
    check "ds_to_universal" "$python" -m deepspeed.checkpoint.ds_to_universal --input_folder run$stage/global_step3 \
        --output_folder theirs$stage/universal --inject_missing_state --num_extract_workers 1 --num_merge_workers 1
    for role in param master exp_avg exp_avg_sq; do
        expect 0 '^equal: [67] tensors' verify theirs$stage/universal made$stage --roles $role
        expect 0 '^equal: [67] tensors' verify theirs$stage/universal run$stage --roles $role
    done
    holds 'j["extras"]["step"] == 3 and j["extras"]["global_steps"] == 3' inspect theirs$stage/universal --json
done
expect 0 'frozen parameters, which DeepSpeed does not load from it: frozen' convert run2 again --to deepspeed-universal
# ZeRO-3's run goes on under ZeRO-2, and the other way round with one group; through other formats too.
expect 0 '^wrote' convert run3 native --to native
expect 0 '^wrote' convert native turned --to deepspeed-universal --layout dp=2,zero=2
check "DeepSpeed loads ZeRO-3's state under ZeRO-2" run 2 load turned loaded --stage 2 --dtype bf16
check "and has what it had" same truth3 loaded

# Tensor parallelism: ranks of the target, and the degree.
check "DeepSpeed trains on 2 x 2 ranks" run_tp 4 train of2 truth_of2 --tp 2 --stage 1
expect 0 '^wrote' convert of2 of2.native --to native
for to in 2:1 4:2 3:3 4:4; do
    tp=${to#*:}
    expect 0 '^wrote' convert of2 of2.$tp --to deepspeed-universal --layout tp=$tp
    check "DeepSpeed loads tp=2 as tp=$tp" run_tp ${to%:*} load of2.$tp truth_of2 --tp $tp --stage 1
    expect 0 '^equal: 33 tensors' verify of2.$tp of2 --roles master,exp_avg,exp_avg_sq
done
expect 0 '^wrote' convert of2.native again3 --to deepspeed-universal --layout tp=3 --universal-version 0.4
check "DeepSpeed loads it, written as 0.4 from a native checkpoint" run_tp 3 load again3 truth_of2 --tp 3 --stage 1
refuse 1 'attn.qkv.weight.*part 0 of 24.*evenly by 5' convert of2 of2.5 --to deepspeed-universal --layout tp=5
check "ds_to_universal" "$python" -m deepspeed.checkpoint.ds_to_universal --input_folder of2/global_step3 \
    --output_folder theirs_of2/universal --num_extract_workers 1 --num_merge_workers 1
expect 0 '^equal: 33 tensors' verify theirs_of2/universal of2.3 --roles master,exp_avg,exp_avg_sq
expect 0 '^wrote' convert theirs_of2/universal from_theirs --to deepspeed-universal --layout tp=4
check "DeepSpeed loads what was its own, tp=2, as tp=4" run_tp 4 load from_theirs truth_of2 --tp 4 --stage 1

check "DeepSpeed trains on 1 x 2 ranks" run_tp 2 train of1 truth_of1 --tp 1 --stage 2 --dtype bf16
for tp in 1 2 3; do
    expect 0 '^wrote' convert of1 of1.$tp --to deepspeed-universal --layout tp=$tp
    check "DeepSpeed loads tp=1 as tp=$tp" run_tp $((tp == 1 ? 2 : tp)) load of1.$tp truth_of1 --tp $tp --stage 2 --dtype bf16
    expect 0 '^equal: 33 tensors' verify of1.$tp of1 --roles master,exp_avg,exp_avg_sq
done

# A run that does not say how its tensors are cut, with a rules file that does.
cat >rules.json <<'JSON'
{"rules": [
  {"match": "embed", "split": 0, "vocabulary": 61},
  {"match": "attn\\.qkv", "split": 0, "parts": [24, 12, 12]},
  {"match": "(attn\\.out|mlp\\.down)\\.weight", "split": 1},
  {"match": "mlp\\.gate_up", "split": 0, "parts": 2},
  {"match": "mlp\\.plain", "split": 0},
  {"match": "router", "averaged": true},
  {"match": "heads", "split": 0, "parts": 3}],
 "otherwise": {"replicated": true}}
JSON
check "DeepSpeed trains and does not say" run_tp 2 train silent truth_silent --tp 2 --stage 1 --silent
refuse 1 'nothing in the checkpoint says how it was cut' convert silent silent.3 --to deepspeed-universal --layout tp=3
for tp in 1 3; do
    expect 0 '^wrote' convert silent silent.$tp --to deepspeed-universal --layout tp=$tp --rules rules.json
    check "DeepSpeed loads it as tp=$tp" run_tp $tp load silent.$tp truth_silent --tp $tp --stage 1
done

# Automatic tensor parallelism, whose shares need not be even.
if ! "$python" -c 'import deepspeed, sys; sys.exit(tuple(map(int, deepspeed.__version__.split(".")[:3])) < (0, 19, 6))'; then
    echo "skipped in part: automatic tensor parallelism wants DeepSpeed 0.19.6 (RS_TEST_DEEPSPEED)"
    finish
fi
all=param,master,exp_avg,exp_avg_sq
for stage in 1 3; do
    check "DeepSpeed trains with 3 uneven shares" run_auto 3 train auto$stage --tp 3 --stage $stage
    refuse 1 'along dimension 0 cannot be shared evenly by 3' convert auto$stage auto$stage.02 \
        --to deepspeed-universal --layout tp=3,zero=$stage
    for tp in 2 3; do
        expect 0 '^wrote' convert auto$stage auto$stage.$tp --to deepspeed-universal --universal-version 0.4 \
            --layout tp=$tp,zero=$stage
        check "DeepSpeed loads tp=3 as tp=$tp" run_auto $tp load auto$stage.$tp --tp $tp --stage $stage
        expect 0 '^equal: 72 tensors' verify auto$stage.$tp.again auto$stage --roles $all
        expect 0 '^equal: 54 tensors' verify auto$stage.$tp auto$stage --roles ${all#param,}
    done
done
finish
