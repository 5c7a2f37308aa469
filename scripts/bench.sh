#!/usr/bin/env bash
# Runs the benchmark scripts bench/NAME.sh, all or those named, and lists their figures at the end. Each
# measures its ratio within its own run; nothing else should run beside them. Usage: bench.sh [NAME...]
set -uo pipefail
cd "$(dirname "$0")/.." || exit
export BUILD=build/release

names=("$@")
if [ ${#names[@]} -eq 0 ]; then
    for script in bench/*.sh; do
        names+=("$(basename "$script" .sh)")
    done
fi
for name in "${names[@]}"; do
    if [ ! -x "bench/$name.sh" ]; then
        echo "no benchmark $name; there are: $(cd bench && echo *.sh | sed 's/\.sh//g')" >&2
        exit 2
    fi
done

log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0
for name in "${names[@]}"; do
    printf '\n== %s\n' "$name"
    status=0
    "bench/$name.sh" 2>&1 | tee -a "$log" || status=$?
    case $status in
    0) ;;
    77) echo "figure: $name skipped" >>"$log" ;;
    *)
        echo "figure: $name FAILED (exit $status)" >>"$log"
        failed=1
        ;;
    esac
done
printf '\n== figures\n'
sed -n 's/^figure: //p' "$log"
exit $failed
