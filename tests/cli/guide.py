#!/usr/bin/env python3
"""Types the commands of a guide, in order, in one shell in a new folder, and looks for the output that it shows.

Usage: guide.py GUIDE RESHARD SOURCES

A command is a line of a code block that begins with "$ ", with the lines that it is continued on; what follows up to
the next is its output. Numbers may be others, blanks too; "..." stands for anything. Exit code 77 where the guide
asks for PyTorch and there is none.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

MARK = "-- done --"


def blocks(text):
    """Commands with their expected lines."""
    commands, block = [], False
    for line in text.split("\n"):
        if not line.startswith("    "):
            block = False if line.strip() else block
            continue
        line = line[4:]
        if line.startswith("$ "):
            commands.append([line[2:], []])
            block = True
        elif block and commands[-1][0].endswith("\\") and not commands[-1][1]:
            commands[-1][0] += "\n" + line
        elif block:
            commands[-1][1].append(line)
    return commands


def pattern(line):
    """The line with any numbers and blanks."""
    parts = re.split(r"(\d[\d.,]*(?:e[+-]?\d+)?|\s+)", line.strip())
    out = ""
    for part in parts:
        if not part:
            continue
        out += r"\s+" if part.isspace() else r"-?\d[\d.,]*(?:e[+-]?\d+)?" if part[0].isdigit() else re.escape(part)
    # Units change with the number before them.
    out = re.sub(r"(?<=\)\?)(\\s\+)(?:ms|s|us)\b", r"\1(?:ms|s|us|min)", out)
    return out


def check(command, expected, output):
    at = 0
    for line in expected:
        if line.strip() == "...":
            continue
        found = re.compile(pattern(line)).search(output, at)
        if not found:
            sys.exit(f"$ {command}\nthe guide shows\n    {line}\nand it was\n{output}")
        at = found.end()


def main():
    guide, reshard, sources = (pathlib.Path(p).resolve() for p in sys.argv[1:4])
    python = next((p for p in ("python3", "/usr/bin/python3")
                   if subprocess.run([p, "-c", "import torch"], capture_output=True, check=False).returncode == 0), None)
    if python is None:
        print("skipped: no Python here has PyTorch, which the guide asks for")
        return 77
    commands = blocks(guide.read_text())
    assert len(commands) >= 25, len(commands)
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "bin").mkdir()
        (pathlib.Path(folder) / "bin" / "reshard").symlink_to(reshard)
        if python != "python3":
            (pathlib.Path(folder) / "bin" / "python3").symlink_to(python)
        (pathlib.Path(folder) / "work").mkdir()
        shell = subprocess.Popen(["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 text=True, cwd=f"{folder}/work")
        shell.stdin.write(f"export PATH={folder}/bin:$PATH RESHARD={sources}\n")
        for command, expected in commands:
            shell.stdin.write(f"{command}\necho; echo '{MARK}'\n")
            shell.stdin.flush()
            output = ""
            for line in shell.stdout:
                if line.strip() == MARK:
                    break
                output += line
            check(command, expected, output)
        shell.stdin.close()
        shell.wait(timeout=60)
    print(f"{len(commands)} commands, all as the guide shows")
    return 0


sys.exit(main())
