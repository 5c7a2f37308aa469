#!/usr/bin/env bash
# `reshard convert` of a ZeRO-3 checkpoint of 4 ranks that PyTorch wrote, beside `cp` of as many bytes, and beside
# DeepSpeed's ds_to_universal (bench/convert.py). RS_BENCH_DEEPSPEED names a Python that has PyTorch and DeepSpeed, such as
# that of the folder that tests/format/deepspeed_oracle.sh makes, which is found by itself; without one that comparison is
# left out. Exits with 77 where there is no PyTorch (Debian: python3-torch).
set -euo pipefail
build=${BUILD:-build/release}
deepspeed=()
for candidate in ${RS_BENCH_DEEPSPEED:-} "$build/tests/deepspeed/bin/python" python3; do
    if DS_ACCELERATOR=cpu "$candidate" -c 'import deepspeed' >/dev/null 2>&1; then
        deepspeed=(--deepspeed "$candidate")
        break
    fi
done
for candidate in /usr/bin/python3 python3; do
    if "$candidate" -c 'import torch' 2>/dev/null; then
        exec "$candidate" bench/convert.py --reshard "$build/reshard" "${deepspeed[@]}" "$@"
    fi
done
echo "no PyTorch here"
exit 77
