#!/usr/bin/env bash
# Installs a build into a temporary prefix, and builds and runs examples against it in every way that is
# offered: pkg-config and find_package, shared and static. Usage: install.sh SOURCE BUILD MPICC MPIRUN
set -euo pipefail
source=$1 build=$2 mpicc=$3 mpirun=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

cmake --install "$build" --prefix "$work/staged" >/dev/null
mv "$work/staged" "$prefix" # an installed tree can be moved
pc=$(dirname "$(find "$prefix" -name reshard.pc)")
export PKG_CONFIG_PATH=$pc LD_LIBRARY_PATH=${pc%/pkgconfig}

fail() {
    echo "install: $*" >&2
    exit 1
}

# same NAME COMMAND...: the command prints what the example in the build tree prints.
expected_layout=$("$build/examples/1_layout" tp=3,dp=2,zero=1)
runs_layout() {
    [ "$("$1" tp=3,dp=2,zero=1)" = "$expected_layout" ] || fail "$1 prints something else than the build tree's"
    echo "ok: $(basename "$1")"
}
runs_move() {
    local output
    output=$(timeout 120 "$mpirun" -n 3 "$1") || fail "$1 failed"
    grep -q '^certificate: ok$' <<<"$output" || fail "$1: no certificate in: $output"
    echo "ok: $(basename "$1")"
}

# The shared library's name holds the version that its interface has.
soname=$(readelf -d "$LD_LIBRARY_PATH/libreshard.so" | sed -n 's/.*soname: \[\(.*\)\]/\1/p')
[ "$soname" = "libreshard.so.$(pkg-config --modversion reshard | cut -d. -f1-2)" ] ||
    fail "unexpected soname $soname"

# pkg-config. The flags are words to be split.
# shellcheck disable=SC2046
{
    cc -D_GNU_SOURCE "$source/examples/1_layout.c" -o "$work/pc_layout_shared" \
        $(pkg-config --cflags --libs reshard)
    cc -D_GNU_SOURCE "$source/examples/1_layout.c" -o "$work/pc_layout_static" \
        $(pkg-config --cflags --libs --static reshard | sed 's/-lreshard\b/-l:libreshard.a/')
    "$mpicc" -D_GNU_SOURCE "$source/examples/3_move_mpi.c" -o "$work/pc_move_shared" \
        $(pkg-config --cflags --libs reshard_mpi)
}
runs_layout "$work/pc_layout_shared"
runs_move "$work/pc_move_shared"
ldd "$work/pc_layout_static" | grep -q libreshard && fail "the static program needs the shared library"
LD_LIBRARY_PATH='' runs_layout "$work/pc_layout_static"

# find_package.
cmake -S "$source/tests/install/consumer" -B "$work/consumer" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" \
    -DEXAMPLES="$source/examples" >/dev/null
cmake --build "$work/consumer" >/dev/null
for form in shared static; do
    runs_layout "$work/consumer/layout_$form"
    runs_move "$work/consumer/move_$form"
done

# The command.
"$prefix/bin/reshard" --version | grep -qF "$(pkg-config --modversion reshard)" || fail "bin/reshard --version"
"$prefix/bin/reshard" plan --model llama-tiny --from tp=2 --to pp=2 >/dev/null || fail "bin/reshard plan"
echo "ok: reshard"
