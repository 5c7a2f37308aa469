#!/usr/bin/env bash
# transformers.sh RESHARD SCRIPT: runs the oracle with a Python that has transformers, PyTorch and safetensors: that of
# RS_TEST_TRANSFORMERS, else python3. Without one the test is skipped. On Debian 12 one is made so:
#   python3 -m venv --system-site-packages /tmp/venv && /tmp/venv/bin/pip install 'transformers==4.40.2' safetensors
# beside the package python3-torch.
set -u
for python in ${RS_TEST_TRANSFORMERS:+"$RS_TEST_TRANSFORMERS"} python3 /usr/bin/python3; do
    if "$python" -c 'import torch, transformers, safetensors' 2>/dev/null; then
        exec "$python" "$2" "$1"
    fi
done
echo "skipped: no Python here has torch, transformers and safetensors (RS_TEST_TRANSFORMERS names one)"
exit 77
