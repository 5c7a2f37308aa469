#!/usr/bin/env bash
# Loading a checkpoint on 4 ranks under other layouts: bytes read, and speed beside plain reads (bench/load.c).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${BUILD:-build/release}/bench/load" "$@" "$folder/checkpoint"
