#!/usr/bin/env bash
# The rules of this code base that a script can check. Usage: check.sh [--root DIR] [RULE...]
# Prints one line `file:line: rule: what is wrong` for each violation, and exits with 1 if there is any.
# Without rule names, all of them: those of check_text.py (see there), and
#   headers    every header compiles alone, the public ones as C17 and as C++17
#   format     clang-format would change nothing (skipped, with a note, where it is not installed)
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
if [ "${1:-}" = --root ]; then
    root=$(cd "$2" && pwd)
    shift 2
fi
failed=0

wanted() {
    [ ${#rules[@]} -eq 0 ] && return 0
    local rule
    for rule in "${rules[@]}"; do
        [ "$rule" = "$1" ] && return 0
    done
    return 1
}

# compile_alone FILE COMPILER ARGUMENT...: an object from nothing but an include of the header.
compile_alone() {
    local file=$1 output
    shift
    if ! output=$(echo "#include \"$file\"" |
        "$@" -Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude -Isrc - 2>&1); then
        echo "$file:1: headers: does not compile alone with $1"
        echo "$output" | sed 's/^/    /' | head -5
        return 1
    fi
}

check_headers() {
    local file mpi
    mpi=$(mpicc.openmpi --showme:incdirs 2>/dev/null || true)
    mpi=${mpi:-/usr/include}
    for file in include/reshard/*.h; do
        [ -e "$file" ] || continue
        compile_alone "$file" "${CC:-cc}" -std=c17 -isystem "${mpi%% *}" -x c || failed=1
        compile_alone "$file" "${CXX:-c++}" -std=c++17 -isystem "${mpi%% *}" -x c++ || failed=1
    done
    while IFS= read -r file; do
        compile_alone "$file" "${CC:-cc}" -std=gnu17 -D_GNU_SOURCE -isystem "${mpi%% *}" -x c || failed=1
    done < <(find src -name '*.h' | sort)
}

check_format() {
    local clang_format
    clang_format=$(command -v clang-format-14 || command -v clang-format || true)
    if [ -z "$clang_format" ]; then
        echo "note: format was not checked: clang-format is not installed" >&2
        return
    fi
    local files=()
    mapfile -t files < <(find include src tests bench examples -name '*.[ch]' 2>/dev/null | sort)
    [ ${#files[@]} -eq 0 ] && return
    "$clang_format" --dry-run -Werror "${files[@]}" 2>&1 |
        sed -nE 's/^([^:]+:[0-9]+):[0-9]+: error: code should be clang-formatted.*/\1: format: .\/dev fmt changes this line/p' |
        sort -u -t: -k1,1 -k2,2n
    [ "${PIPESTATUS[0]}" -eq 0 ] || failed=1
}

rules=("$@")
cd "$root" || exit 2
text_rules=()
for rule in ${rules[@]+"${rules[@]}"}; do
    case "$rule" in
    headers | format) ;;
    *) text_rules+=("$rule") ;;
    esac
done
if [ ${#rules[@]} -eq 0 ] || [ ${#text_rules[@]} -gt 0 ]; then
    python3 "$here/check_text.py" "$root" ${text_rules[@]+"${text_rules[@]}"} || failed=1
fi
if wanted headers; then
    check_headers
fi
if wanted format; then
    check_format
fi
if [ $failed -eq 0 ]; then
    echo "check: clean"
fi
exit $failed
