#!/usr/bin/env bash
# Proves that each rule of check.sh fires: breaks a copy of the tree in one way after the other, and looks
# for the line that names the place. Usage: check_test.sh [ROOT]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=${1:-$(dirname "$here")}
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
# The sources and what the rules read beside them; the copy is no repository, so every file counts.
(cd "$root" && tar -cf - --exclude=build --exclude=.git --exclude='__pycache__' .) | tar -xf - -C "$copy"
passed=0
failed=0

# expect RULE FILE:LINE TEXT: the rule must report the place, with the text in its message.
expect() {
    local rule=$1 place=$2 text=$3 output status=0
    output=$("$here/check.sh" --root "$copy" "$rule" 2>&1) || status=$?
    if [ $status -eq 1 ] && grep -qF "$place: $rule: " <<<"$output" && grep -qF -- "$text" <<<"$output"; then
        passed=$((passed + 1))
    else
        echo "rule $rule did not report $place with \"$text\"; it exited with $status and said:"
        printf '%s\n' "$output" | head -5 | sed 's/^/    /'
        failed=$((failed + 1))
    fi
}

# breaks RULE FILE TEXT LINE...: the lines make a new file, whose last line breaks the rule.
breaks() {
    local rule=$1 file=$2 text=$3
    shift 3
    mkdir -p "$(dirname "$copy/$file")"
    printf '%s\n' "$@" >"$copy/$file"
    expect "$rule" "$file:$#" "$text"
    rm -f "${copy:?}/$file"
}

# passes RULE FILE LINE...: the same, but nothing is wrong with the file.
passes() {
    local rule=$1 file=$2 output
    shift 2
    printf '%s\n' "$@" >"$copy/$file"
    output=$("$here/check.sh" --root "$copy" "$rule" 2>&1) || true
    if grep -qF "$file:" <<<"$output"; then
        echo "rule $rule is wrong about $file:"
        printf '%s\n' "$output" | grep -F "$file:" | sed 's/^/    /'
        failed=$((failed + 1))
    else
        passed=$((passed + 1))
    fi
    rm -f "${copy:?}/$file"
}

breaks layers src/plan/x.c "plan includes reshard/move.h" '#include "reshard/move.h"'
breaks layers src/space/x.c "space includes plan/graph.h" '/* A comment. */' '#include "plan/graph.h"'
breaks layers src/layout/x.c "layout includes dialect/rule.h" '#include "dialect/rule.h"'
breaks layers src/cli/x.c "cli includes move/window.h" '#include "move/window.h"'
breaks layers src/move/x.c "includes mpi.h" '#include <mpi.h>'
breaks layers src/other/x.c "no layer of the table" 'int x;'
breaks layers include/reshard/other.h "which layer this header belongs to" 'int x;'
breaks layers include/reshard/plan.h "a public header includes the internal" '#include "space/index.h"'
passes layers src/move/x.c '#include "reshard/plan.h"' '#include "base/error.h"' '#include "move/y.h"'
cp "$root/include/reshard/plan.h" "$copy/include/reshard/plan.h"

breaks headers src/plan/x.h "does not compile alone" 'static inline size_t rs_x(void) { return 0; }'
breaks headers include/reshard/x.h "does not compile alone with c++" 'int rs_x(int class);'

for call in 'sprintf(a, b)' 'strcpy(a, b)' 'strcat(a, b)' 'gets(a)' 'atoi(a)' 'strtok(a, b)' 'system(a)' \
    'rand()'; do
    breaks banned src/cli/x.c "${call%%(*}" "int x = $call;"
done
for call in 'exit(1)' 'abort()' 'printf("x")' 'fprintf(stderr, "x")'; do
    breaks banned src/plan/x.c "never prints or ends" "int x(void) { $call; }"
done
breaks banned src/plan/x.c "does no I/O" 'int file = open("x", 0);'
passes banned src/plan/x.c '/* never printf(x) or exit(1) */' 'const char *x = "exit(1)";' 'snprintf(a, 1, b);' \
    'plan->exit(1);' 'rs_exit(1);'
passes banned src/cli/x.c 'exit(1);' 'printf("x");'

for call in malloc calloc realloc strdup; do
    breaks allocation src/layout/x.c "use base/memory.h" "void *x = $call(y);"
done
passes allocation src/base/x.c 'void *x = malloc(1);'
passes allocation src/layout/x.c 'void *x = rs_calloc(1, 1);' 'free(x);'

breaks counts src/train/x.c "a count cast to int" '' 'MPI_Send(buffer, (int)(n), MPI_BYTE, 0, 0, comm);'
passes counts src/train/x.c 'MPI_Send(buffer, (int64_t)n, MPI_BYTE, f(0), 0, comm);' 'int x = (int)y;'

breaks must-check include/reshard/x.h "rs_x lacks RS_MUST_CHECK" '#include "reshard/status.h"' 'rs_status rs_x(void);'

mapfile -t many < <(yes 'int x;' | head -n 901)
breaks length src/plan/x.c "901 lines" "${many[@]}"

breaks whitespace src/plan/x.c "a tab" 'int x;' "$(printf '\tint y;')"
breaks whitespace docs/x.md "whitespace at the line's end" 'text '
printf 'int x;' >"$copy/src/plan/x.c"
expect whitespace src/plan/x.c:1 "no newline"
rm "$copy/src/plan/x.c"

breaks words src/plan/x.c "finish it" "/* TO""DO: later */"
breaks words docs/x.md "finish it" "It works for ""now."

breaks links docs/x.md "does not exist" '# X' '[gone](nowhere.md)'
breaks links docs/x.md "no such heading" '# X' '[gone](#y)'
breaks links docs/x.md "docs/README.md has no link to it" '# X'
# shellcheck disable=SC2016 # the quotes are part of the document
passes links x.md '# The title: `x`' '[here](#the-title-x) [out](https://example.org) [file](LICENSE)'

# shellcheck disable=SC2016
{
    breaks tests x.md "there is no test train/switch_axe" 'Tested by `train/switch_axe`.'
    breaks tests x.md "there is no test unit/axe" 'Tested by `unit/axe`.'
    passes tests x.md 'By `unit/axes`, `train/switch_axes` and `prop/plan`; `src/plan` is no test.'
}

sed -i 's/^MPICH_PACKAGES=(/&cowsay /' "$copy/dev"
line=$(grep -n '^MPICH_PACKAGES=' "$copy/dev" | cut -d: -f1)
expect packages "dev:$line" "cowsay: scripts/check_text.py does not say"
sed -i 's/cowsay //' "$copy/dev"
sed -i 's/"Ninja"/"Unix Makefiles"/' "$copy/CMakePresets.json"
line=$(grep -n 'ninja-build' "$copy/dev" | head -1 | cut -d: -f1)
expect packages "dev:$line" "ninja-build: nothing in CMakePresets.json uses it"

if command -v clang-format >/dev/null; then
    breaks format src/plan/x.c "./dev fmt" 'int x;' 'int  y;'
fi

echo "check_test: $passed passed, $failed failed"
[ $failed -eq 0 ]
