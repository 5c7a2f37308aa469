#!/usr/bin/env bash
# Compares the losses of two runs step by step. Usage: compare_losses.sh METRICS METRICS LIMIT
# Prints every fifth step, and the largest relative difference; exits with 1 if it is above LIMIT, if a step
# appears twice or in one run only, or if there are no steps.
set -euo pipefail

awk -v limit="$3" '
# The value of a key in a line of flat JSON, as text.
function value(key,    pattern, found) {
    pattern = "\"" key "\":[ ]*(\"[^\"]*\"|[^,}]*)"
    if (!match($0, pattern))
        return ""
    found = substr($0, RSTART, RLENGTH)
    sub("^\"" key "\":[ ]*", "", found)
    gsub("\"", "", found)
    return found
}
/"loss":/ {
    step = value("step") + 0
    run = FNR == NR ? 1 : 2
    if ((run, step) in loss) {
        print "step " step " appears twice in " FILENAME
        bad = 1
    }
    loss[run, step] = value("loss")
    layout[run, step] = value("layout")
    last[run] = step > last[run] + 0 ? step : last[run]
}
END {
    if (last[1] == 0 || last[1] != last[2]) {
        print "the runs have " last[1] + 0 " and " last[2] + 0 " steps"
        exit 1
    }
    printf "%5s  %-22s %-14s %-14s %s\n", "step", "layout", "loss", "unswitched", "difference"
    worst = 0
    for (step = 1; step <= last[1]; step++) {
        a = loss[1, step]
        b = loss[2, step]
        if (a == "" || b == "" || b + 0 <= 0) {
            print "step " step " is not in both runs"
            bad = 1
            continue
        }
        difference = (a - b) / b
        difference = difference < 0 ? -difference : difference
        if (difference > worst)
            worst = difference
        if (step == 1 || step % 5 == 0)
            printf "%5d  %-22s %-14s %-14s %.1e\n", step, layout[1, step], a, b, difference
    }
    printf "largest relative difference of %d losses: %.1e (allowed: %.0e)\n", last[1], worst, limit
    exit bad || worst > limit + 0
}' "$1" "$2"
