#!/usr/bin/env bash
# kill -9 of a rank, of the launcher, and of the supervisor (which is started again with --resume at once): the
# seconds until the next step begins, median and worst over the rounds.
set -euo pipefail
build=${BUILD:-build/release}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_WAIT_POLICY=passive
python3 - "$PWD/$build/reshard" "$work" "${ROUNDS:-10}" <<'END'
import json
import os
import signal
import statistics
import subprocess
import sys
import time

reshard, work, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.chdir(work)
with open("data", "w") as file:
    file.write("".join(f"{i}\n" for i in range(6000)))
job = f"kill{os.getpid()}"
log = open("log", "w")
GOOD = 110  # steps without a death, after which a restart does not have to wait


def start(arguments):
    return subprocess.Popen([reshard, "train"] + arguments, stdout=log, stderr=log)


def steps():
    """Those of metrics.jsonl: number, begin."""
    found = []
    with open(f"{job}/metrics.jsonl") as file:
        for text in file:
            line = json.loads(text) if text.endswith("\n") else {}
            if "loss" in line:
                found.append((line["step"], line["time"] - line["seconds"]))
            elif line.get("event") == "recover":
                found.append((line["step"], None))
    return found


def await_step(step):
    deadline = time.time() + 60
    while not os.path.exists(f"{job}/metrics.jsonl") or not steps() or steps()[-1][0] < step or steps()[-1][1] is None:
        if time.time() > deadline:
            sys.exit(f"no step {step} within a minute: {open('log').read()[-2000:]}")
        time.sleep(0.05)


def victim(kind, supervisor):
    if kind == "supervisor":
        return supervisor.pid
    with open(f"{job}/worlds.json") as file:
        world = json.load(file)["worlds"][0]
    if kind == "launcher":
        return world["launcher"]
    with open(f"{job}/ranks/{world['world']}-1") as file:
        return int(file.read().split()[0])


supervisor = start(["--model", "llama-tiny", "--data", "data", "--seq", "32", "--global-batch", "2", "--micro-batch", "1",
                    "--layout", "tp=2", "--steps", "1000000", "--save-on-exit", "off", "--job", job])
worst = 0
await_step(GOOD)
try:
    for kind in ("rank", "launcher", "supervisor"):
        seconds = []
        for _ in range(rounds):
            killed = time.time()
            os.kill(victim(kind, supervisor), signal.SIGKILL)
            if kind == "supervisor":
                supervisor.wait()
                supervisor = start(["--resume", job])
            before = steps()[-1][0]
            await_step(before + GOOD)
            found = steps()
            mark = max(i for i, (_, begun) in enumerate(found) if begun is None)
            seconds.append(next(begun for step, begun in found[mark + 1:] if step > found[mark][0]) - killed)
        worst = max(worst, max(seconds))
        print(f"{kind}: median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s of "
              f"{' '.join(f'{s:.2f}' for s in seconds)}")
finally:
    subprocess.run([reshard, "stop", job], stdout=log, stderr=log)
    supervisor.wait()
print(f"figure: seconds from kill -9 to the next step, worst of {3 * rounds} {worst:.2f} (wanted: < 3)")
sys.exit(worst >= 3)
END
