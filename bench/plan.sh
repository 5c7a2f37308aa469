#!/usr/bin/env bash
# Time and quality of plans on models of real size (bench/plan.c).
set -euo pipefail
exec "${BUILD:-build/release}/bench/plan" "$@"
