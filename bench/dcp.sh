#!/usr/bin/env bash
# Changing a layout through a checkpoint, 2 ranks save and 4 load: beside PyTorch's distributed checkpoints
# (bench/dcp.py). Wants a PyTorch with DTensor (2.5 or later), which Debian 12 does not have: RS_BENCH_TORCH names a
# Python that has one, such as that of a folder made by
#   python3 -m venv FOLDER && FOLDER/bin/pip install torch numpy
# Exits with 77 where there is none.
set -euo pipefail
. bench/lib/mpi_env.sh
export OMP_NUM_THREADS=1
for candidate in ${RS_BENCH_TORCH:-} python3 /usr/bin/python3; do
    if "$candidate" -c 'import torch.distributed.tensor, torch.distributed.checkpoint' 2>/dev/null; then
        exec "$candidate" bench/dcp.py --program "${BUILD:-build/release}/bench/dcp" "$@"
    fi
done
echo "no PyTorch 2.5 or later here (RS_BENCH_TORCH)"
exit 77
