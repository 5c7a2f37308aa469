#!/usr/bin/env python3
"""Kills processes of training jobs and goes on: crash.py --reshard PROGRAM phases | nodes | mirrors | random COUNT [SEED].

After every kill the job is resumed until it has ended. Then: the losses of all steps are those of an undisturbed
run, digit for digit; its last state is equal to the bit; metrics.jsonl has every step exactly once; nothing is
left in shared memory, and no process, also where a rank dies in a tensor-parallel group while others wait in a
data-parallel one (L07). `phases` kills at each named instant of a step, of a switch, of a save and of the recovery
itself; `nodes` kills all processes of a job and takes away the shared memory of one of the nodes that it was told
to suppose, `mirrors` where redundancy keeps what was there alone; `random` kills a rank, the launcher or the
supervisor at a random moment.
"""
import glob
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

from jobs import Failed, Jobs, check, main, point

# Steps, the step of the switch, steps between saves: few where the instant is named, more where it is random.
STEPS, SWITCH, SAVES = (240, 120, 50) if "random" in sys.argv else (12, 6, 4)

# What is trained: options, and the switch on the way. Ranks are as many as the layouts need.
JOBS = {
    "tp": ["--layout", "tp=2"],
    "dp": ["--layout", "dp=2"],
    "zero": ["--layout", "dp=2,zero=1"],
    "zero-bf16": ["--layout", "dp=2,zero=1", "--dtype", "bf16", "--threads", "2"],
    "pp": ["--layout", "pp=2"],
    "four": ["--layout", "tp=2,dp=2,zero=1"],
    "switch": ["--layout", "tp=2", "--ranks", "3", "--switch", f"{SWITCH}:dp=3,zero=1"],
    "switch-tight": ["--layout", "dp=2,zero=1", "--switch", f"{SWITCH}:tp=2", "--tight"],
    # On supposed nodes.
    "replicas": ["--layout", "dp=2", "--ranks-per-node", "1"],
    "replicas-bf16": ["--layout", "tp=2,dp=2", "--ranks-per-node", "2", "--dtype", "bf16"],
    "groups": ["--layout", "dp=4,zero=1,shard=2", "--ranks-per-node", "2"],
    "moved": ["--layout", "dp=2", "--ranks", "4", "--ranks-per-node", "2", "--switch", f"{SWITCH}:pp=2,dp=2,order=tp-pp-dp"],
    "alone": ["--layout", "dp=2,zero=1", "--ranks-per-node", "1"],
    "mirrors": ["--layout", "dp=2,zero=1", "--ranks-per-node", "1", "--redundancy", "1"],
    "mirrors-2": ["--layout", "dp=4,zero=2", "--ranks-per-node", "2", "--redundancy", "1", "--dtype", "bf16", "--threads",
                  "2"],
    "mirrors-3": ["--layout", "dp=3,zero=3,zero_cut=param", "--ranks-per-node", "1", "--redundancy", "1"],
    "mirrors-muon": ["--layout", "tp=2,dp=2,zero=1,zero_cut=param", "--ranks-per-node", "2", "--redundancy", "1",
                     "--optimizer", "muon"],
    "mirrors-moved": ["--layout", "dp=2,zero=1", "--ranks", "3", "--ranks-per-node", "1", "--redundancy", "1", "--switch",
                      f"{SWITCH}:dp=3,zero=3"],
    "mirrors-tight": ["--layout", "dp=3,zero=3", "--ranks-per-node", "1", "--redundancy", "1", "--tight", "--switch",
                      f"{SWITCH}:dp=2,zero=1"],
}


class Crash(Jobs):
    def __init__(self, reshard):
        super().__init__(reshard)
        self.references = {}
        self.waited = []

    def command(self, folder, kind):
        return self.train(folder, STEPS, ["--global-batch", "4", "--save-every", "4", "--max-restarts", "0"] + JOBS[kind])

    def resume_command(self, folder, kind):
        """The same run goes on; a switch that has happened is not asked for again."""
        options = list(JOBS[kind])
        at = options.index("--layout")
        first = options[at + 1]
        del options[at:at + 2]
        if "--dtype" in options:
            at = options.index("--dtype")
            del options[at:at + 2]
        if "--switch" in options and self.layout(folder) != first:
            at = options.index("--switch")
            del options[at:at + 2]
        return [self.reshard, "train", "--resume", folder, "--save-every", "4", "--max-restarts", "0"] + options

    @staticmethod
    def layout(folder):
        """Of the state that there is: in memory, else in the newest checkpoint."""
        try:
            with open(os.path.join(folder, "state.json"), encoding="utf-8") as file:
                record = json.load(file)
            return record["building_layout"] if record["building"] >= 0 else record["layout"]
        except FileNotFoundError:
            with open(os.path.join(folder, "checkpoints/latest"), encoding="utf-8") as file:
                latest = file.read().strip()
            with open(os.path.join(folder, "checkpoints", latest, "manifest.json"), encoding="utf-8") as file:
                return json.load(file)["layout"]

    def reference(self, kind):
        if kind not in self.references:
            folder = self.new_folder()
            code, out = self.end(self.start(self.command(folder, kind)))
            check(code == 0, f"the undisturbed run of {kind} ended with {code}:\n{out[-3000:]}")
            self.references[kind] = (folder, self.losses(folder))
        return self.references[kind]

    def check_end(self, folder, kind, out):
        wanted_folder, wanted = self.reference(kind)
        found = self.losses(folder)
        steps = [line[0] for line in found]
        check(steps == list(range(1, STEPS + 1)), f"steps in metrics.jsonl: {steps}\n{out[-2000:]}")
        self.compare(wanted, found)
        last = f"checkpoints/step-{STEPS:08d}"
        self.verify(os.path.join(wanted_folder, last), os.path.join(folder, last))
        self.check_gone(folder)
        shutil.rmtree(folder)

    def go_on(self, folder, kind, out, crash=None):
        """Resumes a job whose processes were killed until it has ended well."""
        # Killed before it had a state at all: it begins anew.
        if not self.has_state(folder):
            subprocess.run([self.reshard, "clean", folder], capture_output=True, check=False)
            shutil.rmtree(folder, ignore_errors=True)
            return self.start(self.command(folder, kind), crash)
        return self.start(self.resume_command(folder, kind), crash)

    def await_step(self, folder, process, before):
        """Waits for the first step after those `before`, and notes how long it took."""
        begun = time.monotonic()
        if not before or before[-1][0] >= STEPS - 1:
            return
        while process.poll() is None and len(self.losses(folder)) <= len(before):
            time.sleep(0.005)
        if process.poll() is None:
            self.waited.append(time.monotonic() - begun)

    def finish(self, folder, kind, out):
        for _ in range(3):
            before = self.losses(folder)
            process = self.go_on(folder, kind, out)
            self.await_step(folder, process, before)
            code, more = self.end(process)
            out += more
            if code == 0:
                return out
        raise Failed(f"cannot be gone on with (exit code {code}):\n{out[-4000:]}")

    def phase(self, kind, crash, recovery=None):
        """Killed at a named instant; with `recovery`, then the supervisor too, at one of its recovery."""
        folder = self.new_folder()
        points = f"{crash},{recovery}" if recovery else crash
        code, out = self.end(self.start(self.command(folder, kind), points))
        check(code != 0, f"{kind} {crash}: nobody was killed")
        self.check_struck(points)
        check(not recovery or code == -signal.SIGKILL,
              f"{kind} {recovery}: nobody was killed in recovery (exit code {code}):\n{out[-3000:]}")
        try:
            out = self.finish(folder, kind, out)
            self.check_end(folder, kind, out)
        except Failed as error:
            raise Failed(f"{kind}, killed at {crash}, {recovery}: {error}") from None

    @staticmethod
    def lose(folder, ranks):
        """Takes the shared memory of ranks away, as the end of their node does."""
        count = 0
        for rank in ranks:
            for path in glob.glob(f"/dev/shm/reshard-*{os.path.basename(folder)}*-g*-r{rank}.*"):
                os.unlink(path)
                count += 1
        check(count > 0, "there was nothing to lose")

    def events(self, folder, name):
        return [line for line in self.lines(folder) if line.get("event") == name]

    def node(self, kind, crash, ranks, again=None):
        """A rank is killed at a named instant, the supervisor as it begins to recover, and the arenas of `ranks` are
        lost. Then others have all, or the newest checkpoint serves. With `again`, the resumption is killed too."""
        folder = self.new_folder()
        command = self.command(folder, kind)
        if kind == "alone":  # a checkpoint is there for certain if the job begins from it
            code, out = self.end(self.start(command))
            check(code == 0, f"the run before ended with {code}:\n{out[-3000:]}")
            command = self.resume_command(folder, kind)
            command[command.index(folder)] += "@4"
        code, out = self.end(self.start(command, f"{crash},recover:-1:-1"))
        check(code == -signal.SIGKILL, f"{kind} {crash}: the supervisor was not killed (exit code {code}):\n{out[-3000:]}")
        self.check_struck(crash)
        self.lose(folder, ranks)
        try:
            if again:
                code, more = self.end(self.go_on(folder, kind, out, again))
                check(code != 0, f"nobody was killed at {again}:\n{more[-2000:]}")
                self.check_struck(again)
                out += more
            out = self.finish(folder, kind, out)
            found = self.events(folder, "recover"), self.events(folder, "resume")
            served = [line["lost"] for line in found[0]]
            if kind == "alone":
                check("there is no other copy" in out and [e["step"] for e in found[1]] == [4, 4] and not found[0],
                      f"the checkpoint was to serve: {found}\n{out[-3000:]}")
            else:
                check(len(ranks) in served and not found[1], f"replicas were to serve: {found}\n{out[-3000:]}")
            if kind == "replicas" and not again:  # L11: the one state that is lost is sent, once
                whole = re.search(r", ([\d.]+ \w+) of state", out).group(1)
                copied = re.findall(r"\(([\d.]+ \w+) copied\)", out)
                check(copied == [whole], f"{copied} copied, the lost rank has {whole}")
            self.check_end(folder, kind, out)
        except Failed as error:
            raise Failed(f"{kind}, killed at {crash}, {again}, the arenas of ranks {ranks} lost: {error}") from None

    def random_kill(self, kind, rng):
        folder = self.new_folder()
        process = self.start(self.command(folder, kind))
        begun = time.monotonic()
        out, kills = "", []
        for _ in range(rng.choice([1, 1, 2, 3])):
            time.sleep(rng.uniform(0.05, 1.6))
            victims = self.victims(folder, rng.choice(["rank", "rank", "launcher", "supervisor"]))
            if not victims:
                continue
            pid = rng.choice(victims)
            kills.append(f"{pid} at {time.monotonic() - begun:.3f} s")
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            code, more = self.end(process)
            out += more
            if code == 0:
                break
            before = self.losses(folder)
            process = self.go_on(folder, kind, out)
            if rng.random() < 0.5:
                self.await_step(folder, process, before)
        try:
            code, more = self.end(process) if process.returncode is None else (process.returncode, "")
            out += more
            if code != 0:
                out = self.finish(folder, kind, out)
            self.check_end(folder, kind, out)
        except Failed as error:
            raise Failed(f"{kind}, killed {kills}: {error}") from None
        return len(kills)


STEP_POINTS = ["forward", "backward", "reduction", "note", "ready", "barrier", "begun", "journal", "opened",
               "opened:3", "changed", "changed:2", "closed:2", "stepped", "derive", "derived", "line"]
SWITCH_POINTS = ["move", "moved", "verified", "record", "recorded", "committed"]
SAVE_POINTS = ["save.begin", "save.write", "save.commit"]


def phases(crash, _):
    kinds = ["tp", "zero", "zero-bf16", "dp", "pp", "four"]
    runs = 0
    for i, name in enumerate(STEP_POINTS):
        rank = 0 if name == "line" else i % 2
        crash.phase(kinds[i % len(kinds)], point(name, rank, 5 if i % 3 else 1))
        runs += 1
    # In the last step: what is to be saved at the end is, though there is no step left to make.
    crash.phase("zero", point("derived", 1, STEPS))
    runs += 1
    for name in SWITCH_POINTS:
        for kind in ("switch", "switch-tight"):
            rank = 0 if name in ("record", ) else 1
            crash.phase(kind, point(name, rank, SWITCH))
            runs += 1
    for name in ("tight.copy", "tight.copy:4", "tight.copy:9", "tight.mark", "tight.mark:5"):
        crash.phase("switch-tight", point(name, runs % 2, SWITCH))
        runs += 1
    for recovery in ("finish.copy", "finish.copy:3", "finish.mark:2", "recover.building"):
        crash.phase("switch-tight", point("tight.copy:4", 1, SWITCH), point(recovery, -1, SWITCH))
        runs += 1
    for name in SAVE_POINTS:
        crash.phase("zero", point(name, 0, 4))
        runs += 1
    for recovery in ("recover.update:-1:5", "recover.update:-1:5:2", "changed:-1:5", "opened:-1:5:2",
                     "recover.derive:-1:5"):
        crash.phase("zero", "changed:1:5:2", recovery)
        runs += 1
    return runs


# Who dies first, and which node goes: what is left has begun to update, or has not.
NODE_POINTS = [("forward", 1), ("note", 0), ("barrier", 1), ("begun", 0), ("changed:2", 1), ("stepped", 0), ("derive", 1),
               ("line", 0)]


def nodes(crash, _):
    runs = 0
    for i, (name, rank) in enumerate(NODE_POINTS):
        crash.node("replicas", point(name, rank, 5 if i % 3 else 1), [i % 2])
        crash.node("groups", point(name, rank, 5), [2, 3] if i % 2 else [0, 1])
        runs += 2
    crash.node("replicas-bf16", point("changed", 3, 5), [2, 3])
    crash.node("replicas-bf16", point("journal", 0, 5), [0, 1], point("mend", 1, 1))
    crash.node("replicas", point("derived", 1, 5), [1], point("mended", 1, 1))
    crash.node("moved", point("changed", 1, SWITCH + 2), [2, 3])
    for name, lost in (("forward", 1), ("changed", 0)):
        crash.node("alone", point(name, 1, 6), [lost])
    return runs + 6


def mirrors(crash, _):
    """What ZeRO gave to one node alone, and a mirror has."""
    runs = 0
    check(crash.reference("mirrors")[1] == crash.reference("alone")[1], "redundancy changes losses")
    for i, (name, rank) in enumerate([("mirror", 0)] + NODE_POINTS):
        crash.node("mirrors", point(name, rank, 5 if i % 3 else 1), [i % 2])
        crash.node("mirrors-2", point(name, rank + 2 * (i // 2 % 2), 5), [2, 3] if i % 2 else [0, 1])
        runs += 2
    for name, rank, lost in (("changed:2", 1, 0), ("ready", 0, 2), ("derive", 2, 1)):
        crash.node("mirrors-3", point(name, rank, 5), [lost])
        crash.node("mirrors-muon", point(name, rank, 5), [2, 3] if lost else [0, 1])
        crash.node("mirrors-moved", point(name, rank, SWITCH + 2), [lost])
        crash.node("mirrors-tight", point(name, min(rank, 1), SWITCH + 2), [lost % 2])
        runs += 4
    crash.node("mirrors", point("changed", 0, 5), [0], point("mend", 1, 1))
    crash.node("mirrors-moved", point("barrier", 0, 3), [1], point("changed:2", 0, SWITCH + 1))
    return runs + 2


def randomly(crash, arguments):
    kills = 0
    rng = random.Random(arguments.seed)
    for i in range(arguments.count):
        kills += crash.random_kill(rng.choice(list(JOBS)), rng)
        if (i + 1) % 10 == 0:
            print(f"{i + 1} runs, {kills} kills", flush=True)
    check(kills >= arguments.count // 2, f"{kills} kills in {arguments.count} runs")
    return arguments.count


def told(crash, runs):
    waited = crash.waited or [0.0]
    return (f"{runs} runs recovered; from the resumption to the next step {len(crash.waited)} times: median "
            f"{statistics.median(waited):.2f} s, the slowest {max(waited):.2f} s")


if __name__ == "__main__":
    main(Crash, {"phases": phases, "nodes": nodes, "mirrors": mirrors, "random": randomly}, 30, told)
