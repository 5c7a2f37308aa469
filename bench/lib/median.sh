# shellcheck shell=bash
# median LINES: the middle one of numbers, a line each; of two middle ones the lower. Sourced.
median() {
    local count
    count=$(printf '%s' "$1" | grep -c .)
    printf '%s' "$1" | sort -n | sed -n "$(((count + 1) / 2))p"
}
