#!/usr/bin/env bash
# The demonstration: a small Llama learns to write licence texts on up to four MPI ranks, and changes its
# parallel layout four times while it does. Then the same training runs again without a switch, and the
# losses of the two are compared, step by step. Usage: demo.sh [FOLDER] (default: a temporary one).
set -euo pipefail
cd "$(dirname "$0")/.."
reshard=$PWD/build/reshard

if [ $# -gt 0 ]; then
    work=$1
    mkdir -p "$work"
else
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
fi

# Real text that every Debian system has: the licences, and this project's own documents.
cat /usr/share/common-licenses/[A-Z]* LICENSE ./*.md docs/*.md >"$work/text"

compare=$PWD/scripts/compare_losses.sh
cd "$work"
train() {
    set -- train --model llama-tiny --data text --steps 50 --seq 64 --layout 'tp=2,dp=2,zero=1' "$@"
    echo "\$ reshard $*"
    "$reshard" "$@"
}

echo "A model of 3 million parameters, $(wc -c <text) bytes of text, 50 steps, four changes of layout:"
echo
train --job switching --switch 10:pp=2,tp=2 --switch 20:dp=3,zero=1 --switch 30:tp=4 \
    --switch 40:tp=2,dp=2,zero=1
echo
echo "The same training without a switch (every tenth step shown):"
echo
train --job plain | awk '!/^step/ || $2 % 10 == 0'
echo
"$compare" switching/metrics.jsonl plain/metrics.jsonl 1e-5
