#!/usr/bin/env python3
"""The rules that can be checked by reading text. Usage: check_text.py ROOT [RULE...]

Prints `file:line: rule: what is wrong` and exits with 1 if any rule is broken, with 2 for a bad call.
Rules are the functions marked @rule; their first line says what they ask for. C is read after comments
and strings are blanked out (line numbers stay), so that a rule sees code alone.
"""
import pathlib
import re
import shutil
import subprocess
import sys

# What each layer of src/ may include besides itself. ckpt and sim, and layout and dialect, stand side by
# side. The users (cli, train) stand on the public headers; of the library's inside they may use base/.
BELOW = {
    "base": [],
    "space": ["base"],
    "layout": ["base", "space"],
    "dialect": ["base", "space"],
    "plan": ["base", "space", "layout", "dialect"],
    "move": ["base", "space", "layout", "dialect", "plan"],
    "ckpt": ["base", "space", "layout", "dialect", "plan", "move"],
    "sim": ["base", "space", "layout", "dialect", "plan", "move"],
    "elastic": ["base", "space", "layout", "dialect", "plan", "move", "ckpt", "sim"],
}
USERS = {"train": ["base", "elastic"], "cli": ["base", "elastic", "train"]}

# The layer that each public header belongs to.
HEADER_LAYER = {
    "status.h": "base", "dtype.h": "base", "version.h": "base", "group.h": "base",
    "box.h": "space", "space.h": "space", "placement.h": "space", "memory.h": "space",
    "layout.h": "layout", "model.h": "layout", "optimizer.h": "layout",
    "dialect.h": "dialect",
    "plan.h": "plan",
    "arena.h": "move", "ledger.h": "move", "certificate.h": "move", "move.h": "move", "move_mpi.h": "move",
    "checkpoint.h": "ckpt", "convert.h": "ckpt", "native.h": "ckpt",
    "elastic.h": "elastic", "reshard.h": "elastic",
}

# Functions that nobody calls, and what to call instead.
BANNED = {
    "sprintf": "snprintf", "vsprintf": "vsnprintf", "strcpy": "memcpy with a known size",
    "strcat": "rs_text_append", "strncpy": "memcpy with a known size", "strncat": "rs_text_append",
    "gets": "fgets", "atoi": "strtol", "atol": "strtol", "atoll": "strtoll", "atof": "strtod",
    "strtok": "strtok_r or strcspn", "system": "posix_spawn", "popen": "posix_spawn",
    "rand": "a seeded generator", "srand": "a seeded generator", "random": "a seeded generator",
    "tmpnam": "mkstemp", "mktemp": "mkstemp", "alloca": "a sized array or rs_calloc",
}
# Functions that the library does not call: it never prints and never ends the process.
BANNED_IN_LIBRARY = [
    "exit", "_exit", "quick_exit", "abort", "printf", "vprintf", "fprintf", "vfprintf", "puts", "fputs",
    "putchar", "fputc", "perror", "MPI_Abort",
]
ALLOCATION = ["malloc", "calloc", "realloc", "reallocarray", "strdup", "strndup", "asprintf", "vasprintf"]
# The pure layers neither read files nor communicate; a model's description is a file, so layout may.
PURE_LAYERS = ["space", "plan"]
INPUT_OUTPUT = ["fopen", "open", "openat", "read", "write", "mmap", "getenv", "time", "clock_gettime"]
# Where a count may become an int: what speaks to MPI.
COUNT_FILES = re.compile(r"^src/(move/mpi/|train/comm)")
MPI_FILES = re.compile(r"^(src/move/mpi/|src/train/|src/cli/|include/reshard/move_mpi\.h$)")

MAX_LINES = 900
SOURCE = {".c", ".h", ".py", ".sh"}
TEXT = SOURCE | {".md", ".txt", ".cmake", ".in", ".json", ".supp", ""}
UNFINISHED = ["TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK", "for " + "now", "not " + "implemented"]

# Why each package that ./dev installs is needed: a file (or glob) of the tree, and what in it shows the use.
PACKAGES = {
    "build-essential": ("CMakeLists.txt", r"LANGUAGES C"),
    "cmake": ("CMakeLists.txt", r"cmake_minimum_required"),
    "ninja-build": ("CMakePresets.json", r'"generator": "Ninja"'),
    "pkgconf": ("cmake/dependencies.cmake", r"find_package\(PkgConfig REQUIRED\)"),
    "openmpi-bin": ("cmake/dependencies.cmake", r"mpirun\.\$\{RS_MPI\}"),
    "libopenmpi-dev": ("CMakeLists.txt", r'set\(RS_MPI "openmpi"'),
    "libjansson-dev": ("src/**/*.c", r"#include <jansson\.h>"),
    "libxxhash-dev": ("src/**/*.c", r"#include <xxhash\.h>"),
    "zlib1g-dev": ("src/**/*.c", r"#include <zlib\.h>"),
    "libssl-dev": ("src/**/*.c", r"#include <openssl/"),
    "libpcre2-dev": ("src/**/*.c", r"#include <pcre2\.h>"),
    "libopenblas-openmp-dev": ("src/train/*.c", r"#include <cblas\.h>"),
    "libcmocka-dev": ("tests/**/*.c", r"#include <cmocka\.h>"),
    "mpich": ("CMakePresets.json", r'"RS_MPI": "mpich"'),
    "libmpich-dev": ("CMakePresets.json", r'"RS_MPI": "mpich"'),
    "python3": ("scripts/check.sh", r"python3 "),
    "clang-format": ("scripts/check.sh", r"clang-format"),
    "clang-14": ("CMakePresets.json", r"clang-14"),
    "libclang-rt-14-dev": ("tests/fuzz/CMakeLists.txt", r"-fsanitize=fuzzer"),
    "python3-torch": ("bench/*.py", r"import torch"),
    "libscalapack-openmpi-dev": ("bench/*.c", r"gemr2d"),
    "iproute2": ("tests/multihost/hosts.sh", r"ip netns add"),
    "procps": ("tests/cli/lib.sh", r"pgrep "),
}

RULES = {}
violations = []


def rule(function):
    RULES[function.__name__.replace("_", "-")] = function
    return function


def report(name, file, line, message):
    violations.append((str(file), line, name, message))


class Tree:
    """The files under a root: what git tracks or would, else all of them."""

    def __init__(self, root):
        self.root = root
        names = None
        if (root / ".git").exists() and shutil.which("git"):
            command = ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard"]
            listed = subprocess.run(command, capture_output=True, text=True, check=False)
            if listed.returncode == 0:
                names = listed.stdout.splitlines()
        if names is None:
            names = [str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()]
            names = [n for n in names if not n.startswith((".git/", "build/"))]
        self.names = sorted(n for n in set(names) if (root / n).is_file())
        self.texts = {}

    def text(self, name):
        if name not in self.texts:
            self.texts[name] = (self.root / name).read_text(encoding="utf-8", errors="replace")
        return self.texts[name]

    def select(self, suffixes, under=("",)):
        return [n for n in self.names
                if pathlib.PurePath(n).suffix in suffixes and n.startswith(tuple(under))]

    def code(self, under=("src/", "include/")):
        for name in self.select({".c", ".h"}, under):
            yield name, blank_comments_and_strings(self.text(name))


def blank_comments_and_strings(text):
    """The same lines, with the inside of comments, strings and characters turned to spaces."""
    pattern = re.compile(
        r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)

    def blank(match):
        piece = match.group(0)
        if piece[0] in "\"'":
            return piece[0] + " " * (len(piece) - 2) + piece[0]
        return re.sub(r"[^\n]", " ", piece)

    return pattern.sub(blank, text)


def lines_matching(text, pattern):
    for match in re.finditer(pattern, text):
        yield text.count("\n", 0, match.start()) + 1, match


def calls(text, names):
    """Calls of any of the functions: the name alone, not a member, not a declaration of ours."""
    return lines_matching(text, r"(?<![\w.>])(" + "|".join(names) + r")\s*\(")


def layer_of(name):
    parts = name.split("/")
    return parts[1] if parts[0] == "src" and len(parts) > 2 else None


@rule
def layers(tree):
    """A layer includes only itself and what stands below it."""
    for name in tree.select({".h"}, ["include/reshard/"]):
        if name.split("/")[-1] not in HEADER_LAYER:
            report("layers", name, 1, "scripts/check_text.py does not know which layer this header belongs to")
    for name in tree.select({".c", ".h"}, ["src/", "include/reshard/"]):
        if name.startswith("include/"):
            layer = HEADER_LAYER.get(name.split("/")[-1])
            if layer is None:
                continue
        else:
            layer = layer_of(name)
        if layer in BELOW:
            inside = public = [layer] + BELOW[layer]
        elif layer in USERS:
            inside = [layer] + USERS[layer]
            public = list(BELOW)
        else:
            report("layers", name, 1, f"src/{layer} is no layer of the table in scripts/check_text.py")
            continue
        for line, match in lines_matching(tree.text(name), r'(?m)^\s*#\s*include\s+["<]([^">]+)[">]'):
            path = match.group(1)
            head, _, rest = path.partition("/")
            if head == "reshard":
                other = HEADER_LAYER.get(rest)
                if other is not None and other not in public:
                    report("layers", name, line, f"{layer} includes {path}, which belongs to {other}")
            elif head in BELOW or head in USERS:
                if rest and head not in inside:
                    report("layers", name, line, f"{layer} includes {path}")
                if rest and name.startswith("include/"):
                    report("layers", name, line, f"a public header includes the internal {path}")
            elif path == "mpi.h" and not MPI_FILES.match(name):
                report("layers", name, line, f"{layer} includes mpi.h; only the MPI transport and the users do")


@rule
def banned(tree):
    """No calls that overflow, depend on hidden state, or (in the library) print or end the process."""
    for name, code in tree.code(["src/", "include/", "examples/", "bench/", "tests/"]):
        for line, match in calls(code, list(BANNED)):
            report("banned", name, line, f"{match.group(1)}: use {BANNED[match.group(1)]}")
        layer = layer_of(name)
        if layer not in BELOW:
            continue
        for line, match in calls(code, BANNED_IN_LIBRARY):
            report("banned", name, line, f"{match.group(1)}: the library never prints or ends the process")
        if layer in PURE_LAYERS:
            for line, match in calls(code, INPUT_OUTPUT):
                report("banned", name, line, f"{match.group(1)}: {layer} is pure, it does no I/O")


@rule
def allocation(tree):
    """All allocations go through base/memory.h, so that tests can make the N-th of them fail."""
    for name, code in tree.code(["src/"]):
        if layer_of(name) == "base":
            continue
        for line, match in calls(code, ALLOCATION):
            report("allocation", name, line, f"{match.group(1)}: use base/memory.h")


@rule
def counts(tree):
    """A count is cast to int only where MPI is spoken to."""
    for name, code in tree.code(["src/"]):
        if COUNT_FILES.match(name):
            continue
        for line, match in lines_matching(code, r"\bMPI_\w+\s*\("):
            depth, end = 1, match.end()
            while end < len(code) and depth > 0:
                depth += {"(": 1, ")": -1}.get(code[end], 0)
                end += 1
            if "(int)" in code[match.end():end]:
                report("counts", name, line, "a count cast to int in an MPI call, outside the transports")


@rule
def must_check(tree):
    """Every public function that returns a status is marked RS_MUST_CHECK."""
    for name, code in tree.code(["include/reshard/"]):
        for line, match in lines_matching(code, r"(?m)^rs_status\s+(rs_\w+)\s*\([^;]*;"):
            if "RS_MUST_CHECK" not in match.group(0):
                report("must-check", name, line, f"{match.group(1)} lacks RS_MUST_CHECK")


@rule
def length(tree):
    """Files of source stay below a length that one can read."""
    for name in tree.select(SOURCE):
        count = tree.text(name).count("\n")
        if count > MAX_LINES:
            report("length", name, MAX_LINES + 1, f"{count} lines, at most {MAX_LINES}")


@rule
def whitespace(tree):
    """No tabs, no spaces at line ends, no carriage returns, a newline at the end."""
    for name in tree.select(TEXT):
        if name.startswith("tests/") and "/data/" in name or name == "LICENSE":
            continue
        text = tree.text(name)
        for line, content in enumerate(text.split("\n"), 1):
            if "\t" in content:
                report("whitespace", name, line, "a tab")
            if content != content.rstrip():
                report("whitespace", name, line, "whitespace at the line's end")
        if text and not text.endswith("\n"):
            report("whitespace", name, text.count("\n") + 1, "no newline at the file's end")


@rule
def words(tree):
    """No words that mark unfinished work."""
    pattern = r"\b(" + "|".join(UNFINISHED) + r")\b"
    for name in tree.select(TEXT):
        if name != "LICENSE":
            for line, match in lines_matching(tree.text(name), pattern):
                report("words", name, line, f'"{match.group(1)}": finish it or leave it out')


def anchor(heading):
    """The name that a heading has in links."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).strip().lower()).replace(" ", "-")


def without_code_blocks(text):
    return re.sub(r"(?ms)^```.*?^```", lambda m: "\n" * m.group(0).count("\n"), text)


@rule
def links(tree):
    """Links in documents lead to files and headings that exist; docs/README.md leads to all documents."""
    index = tree.text("docs/README.md") if "docs/README.md" in tree.names else ""
    for name in tree.select({".md"}, ["docs/"]):
        if name != "docs/README.md" and f"]({name.removeprefix('docs/')})" not in index:
            report("links", name, 1, "docs/README.md has no link to it")
    for name in tree.select({".md"}):
        text = without_code_blocks(tree.text(name))
        for line, match in lines_matching(text, r"\]\(([^)\s]+)\)"):
            target, _, heading = match.group(1).partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            path = (tree.root / name).parent / target if target else tree.root / name
            if not path.exists():
                report("links", name, line, f"{match.group(1)} does not exist")
            elif heading and path.suffix == ".md":
                other = without_code_blocks(path.read_text(encoding="utf-8"))
                if heading not in [anchor(h) for h in re.findall(r"(?m)^#+ +(.*)$", other)]:
                    report("links", name, line, f"{match.group(1)}: no such heading")


@rule
def tests(tree):
    """Tests that documents name as `part/test` exist: a source of tests/unit, or named in the part's CMakeLists.txt."""
    parts = {n.split("/")[1] for n in tree.names if re.fullmatch(r"tests/\w+/CMakeLists\.txt", n)} | {"unit"}
    for name in tree.select({".md"}):
        for line, match in lines_matching(tree.text(name), r"`(\w+)/([\w-]+)`"):
            part, test = match.groups()
            if part not in parts or f"tests/{part}/{test}.c" in tree.names:
                continue
            made = tree.text(f"tests/{part}/CMakeLists.txt") if part != "unit" else ""
            if not re.search(rf"(?<![\w-]){re.escape(test)}(?![\w-])", made):
                report("tests", name, line, f"there is no test {part}/{test}")


@rule
def packages(tree):
    """Each package that ./dev installs is used, and the table here names the use."""
    if "dev" not in tree.names:
        return
    text = tree.text("dev")
    for line, match in lines_matching(text, r"(?m)^(\w*PACKAGES)=\(([^)]*)\)"):
        for offset, row in enumerate(match.group(2).split("\n")):
            for package in row.split("#")[0].split():
                if package.startswith('"$'):
                    continue
                if package not in PACKAGES:
                    report("packages", "dev", line + offset,
                           f"{package}: scripts/check_text.py does not say what it is used for")
                    continue
                glob, pattern = PACKAGES[package]
                path = re.escape(glob).replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
                if not any(re.fullmatch(path, n) and re.search(pattern, tree.text(n))
                           for n in tree.names):
                    report("packages", "dev", line + offset, f"{package}: nothing in {glob} uses it ({pattern})")


def main():
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    names = sys.argv[2:] or list(RULES)
    for name in names:
        if name not in RULES:
            print(f"unknown rule {name}; there are: {' '.join(RULES)} headers format", file=sys.stderr)
            return 2
    tree = Tree(pathlib.Path(sys.argv[1]))
    for name in names:
        RULES[name](tree)
    for file, line, name, message in sorted(violations):
        print(f"{file}:{line}: {name}: {message}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
