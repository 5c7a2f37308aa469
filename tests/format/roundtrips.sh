#!/usr/bin/env bash
# Real checkpoints of DeepSpeed through all pairs of formats that conversions write, equal to the bit each time; and
# what is written as PyTorch sees it, against the fixtures' truth.
#   roundtrips.sh RESHARD FIXTURES [FAMILY/CASE...]    all cases unless some are named, of one of a kind all pairs
# RS_TEST_TORCH names a Python that has PyTorch, of any version, other than Debian's.
set -u
fixtures=$2
. "$(dirname "$0")/../cli/lib.sh"
shift 2
here=$(cd "$OLDPWD" && cd "$(dirname "$0")" && pwd)
if [ ! -d "$fixtures/deepspeed" ]; then
    echo "skipped: the fixtures are not here"
    exit 77
fi
named=
[ $# -eq 0 ] || named=named
[ $# -gt 0 ] || set -- $(cd "$fixtures" && ls -d deepspeed/* deepspeed3d/*)
torch=${RS_TEST_TORCH:-/usr/bin/python3} # a Python that has PyTorch
"$torch" -c 'import torch' 2>/dev/null || torch=
[ -n "$torch" ] || echo "skipped in part: no PyTorch, what it sees is not checked"
roles=param,master,exp_avg,exp_avg_sq,momentum_buffer,buffer

# convert SRC NAME FORMAT [OPTION...]: equal to the source in all that the formats of both hold.
convert() {
    local source=$1 name=$2 format=$3 all=$roles
    shift 3
    rm -rf "$name"
    expect 0 'wrote' convert "$source" "$name" --to "$format" "$@"
    case "$format $*" in
    safetensors* | native\ --weights-only | torch\ --weights-only) all=param ;;
    deepspeed-universal*) ;;
    *) expect 0 '^equal: [1-9]' verify "$source" "$name" ;;
    esac
    expect 0 '^equal: [1-9]' verify "$source" "$name" --roles $all
}

for case in "$@"; do
    source=$fixtures/$case/checkpoint
    truth=$fixtures/$case/truth.json
    if ! "$reshard" inspect "$source" >log 2>&1; then
        [[ $case == *noinfo* ]] && grep -q 'nothing in the checkpoint says how it was cut' log
        verdict "$case: cannot be opened" $? "$(cat log)"
        continue
    fi
    convert "$source" a.native native
    convert "$source" a.pt torch
    convert "$source" a.uni deepspeed-universal
    convert "$source" a.hf safetensors
    convert "$source" a.w.pt torch --weights-only
    case $named$case in
    named* | *z0-bf16-w2 | *z2-bf16-w4 | *z3-bf16-w4 | *b-z1-fp16-w2 | *tp2-dp2-z1* | *pp2-z1*) pairs='native pt uni' ;;
    *) pairs= ;;
    esac
    for from in $pairs; do
        for to in native torch deepspeed-universal safetensors; do
            convert a.$from b "$to"
        done
    done
    convert a.hf b torch --weights-only
    convert a.hf b native --weights-only
    convert a.hf b safetensors
    convert a.w.pt b native --weights-only
    convert a.w.pt b safetensors
    # What was written, written again, is the same to the byte.
    rm -rf again.pt again.w.pt
    expect 0 wrote convert a.pt again.pt --to torch
    check "$case: the same bytes again" cmp a.pt again.pt
    expect 0 wrote convert a.w.pt again.w.pt --to torch --weights-only
    check "$case: the same bytes again" cmp a.w.pt again.w.pt
    if grep -q exp_avg_sq "$truth"; then
        convert "$source" a.uni3 deepspeed-universal --layout zero=3
        convert a.uni3 b native
    fi
    if [ -n "$torch" ]; then
        check "$case: PyTorch reads them" "$torch" "$here/torch_truth.py" "$truth" a.pt a.w.pt a.uni a.uni3
    fi
    rm -rf a.* b again.*
done
finish
