#!/usr/bin/env bash
# `reshard convert` of a ZeRO-3 checkpoint of 4 ranks that PyTorch wrote, beside `cp` of as many bytes
# (bench/convert.py). Exits with 77 where there is no PyTorch (Debian: python3-torch).
set -euo pipefail
for candidate in /usr/bin/python3 python3; do
    if "$candidate" -c 'import torch' 2>/dev/null; then
        exec "$candidate" bench/convert.py --reshard "${BUILD:-build/release}/reshard" "$@"
    fi
done
echo "no PyTorch here"
exit 77
