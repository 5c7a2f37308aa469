#!/usr/bin/env bash
# run.sh PROGRAM SEEDS CORPUS [SECONDS]: a minute of fuzzing. An input that crashes, takes more than ten seconds
# or more than a gigabyte is left in the current folder under the name that the program prints.
set -eu
[ -d "$2" ] || {
    echo "skipped: no seeds in $2"
    exit 77
}
mkdir -p "$3"
exec "$1" -max_total_time="${4:-60}" -timeout=10 -rss_limit_mb=1024 -max_len=65536 -print_final_stats=1 "$3" "$2"
