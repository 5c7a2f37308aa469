#!/usr/bin/env python3
"""Kills processes while a job changes worlds: worlds.py --reshard PROGRAM phases | random COUNT [SEED].

A job trains, a new world is asked for, and a rank of the old or of the new one, either launcher or the supervisor
is killed (or a rank stopped): at every named instant of the change, or at a random one. The job goes on by itself;
where the supervisor was killed, with --resume. Then: it trains in the old layout or in the new one, and every step
stands in metrics.jsonl once. An undisturbed run that changes its layout in place after the same step has the same
losses, digit for digit, and the same state, to the bit, in every checkpoint that both have. Nothing is left.
(L02, L04, L08, L12)
"""
import glob
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time

from jobs import Failed, Jobs, check, main, point, until

SAVES = 5      # steps between checkpoints
COMPARED = 12  # checkpoints, the last ones
CHANGES = [("tp=2", "tp=2,dp=2,zero=1"), ("dp=3,zero=1", "dp=1"), ("tp=2,dp=2", "pp=2"), ("dp=2,zero=1", "tp=2"),
           ("dp=1", "tp=2,dp=2")]
OPTIONS = ["--global-batch", "64", "--save-every", str(SAVES), "--world-timeout", "60"]


def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (FileNotFoundError, ValueError):
        return {}


class Changes(Jobs):
    def ask(self, folder, layout):
        """Asks for a new world, whichever ranks there are."""
        subprocess.run([self.reshard, "switch", folder, layout, "--new-world", "--no-wait"], capture_output=True,
                       check=False, timeout=90)

    def step(self, folder):
        losses = self.losses(folder)
        return losses[-1][0] if losses else 0

    def settle(self, folder, process):
        """Until no change is under way, nobody is to be revived, and steps are made again."""
        idle = [0, 0]

        def is_settled():
            if process.poll() is not None:
                return True
            worlds = read_json(os.path.join(folder, "worlds.json"))
            alone = [w["stage"] for w in worlds.get("worlds", [])] == ["trains"]
            if worlds.get("change") != "idle" or not alone:
                idle[:] = [0, 0]
            elif idle[0] == 0:
                idle[:] = [1, self.step(folder)]
            return idle[0] == 1 and self.step(folder) >= idle[1] + SAVES

        check(until(120, is_settled), f"it does not go on: {read_json(os.path.join(folder, 'worlds.json'))}, step "
              f"{self.step(folder)}, processes {self.of_job(folder)}")

    def resume(self, folder, process, out):
        """The supervisor has died, perhaps before there was anything to go on with."""
        process.wait()
        out.append(self.said(process))
        check(self.has_state(folder), f"nothing to go on with:\n{''.join(out)[-2000:]}")
        return self.start([self.reshard, "train", "--resume", folder] + OPTIONS[2:] + ["--heartbeat-timeout", "3"])

    def stop(self, folder, process, out):
        subprocess.run([self.reshard, "stop", folder], capture_output=True, check=False, timeout=90)
        code, more = self.end(process)
        out.append(more)
        check(code == 0, f"it ended with {code}")

    def layouts(self, folder):
        """The layout of each step."""
        return [(line["step"], line["layout"]) for line in self.lines(folder) if "event" not in line]

    def reference(self, folder):
        """Runs a job that nothing happens to, and that changes its layout in place after the same steps."""
        layouts = self.layouts(folder)
        options = ["--layout", layouts[0][1], "--max-restarts", "0"]
        for (step, before), (_, after) in zip(layouts, layouts[1:]):
            if before != after:
                options += ["--switch", f"{step}:{after}"]
        other = self.new_folder()
        process = self.start(self.train(other, 100000, OPTIONS + options))
        check(until(150, lambda: process.poll() is not None or self.step(other) >= layouts[-1][0]),
              f"the undisturbed run does not get on: step {self.step(other)}")
        out = []
        self.stop(other, process, out)
        return other

    def check_end(self, folder):
        found = self.losses(folder)
        steps = [line[0] for line in found]
        check(steps == list(range(1, len(steps) + 1)), f"steps in metrics.jsonl: {steps}")
        self.check_gone(folder)
        other = self.reference(folder)
        self.compare(self.losses(other), found)
        saved = [set(os.listdir(os.path.join(f, "checkpoints"))) - {"latest"} for f in (folder, other)]
        both = sorted(saved[0] & saved[1])
        check(both and int(both[-1].split("-")[1]) > len(steps) - 2 * SAVES, f"nothing to compare: {saved}")
        for name in both[-COMPARED:]:
            self.verify(os.path.join(other, "checkpoints", name), os.path.join(folder, "checkpoints", name))
        shutil.rmtree(folder)
        shutil.rmtree(other)

    def begin(self, before, crash=None, patience=3):
        folder = self.new_folder()
        options = OPTIONS + ["--layout", before, "--heartbeat-timeout", str(patience)]
        process = self.start(self.train(folder, 100000, options), crash)
        check(until(90, lambda: process.poll() is not None or self.step(folder) > SAVES), "it does not begin")
        return folder, process

    def finish(self, folder, process, out):
        """Lets the job go on, ends it, compares; its layout at the end."""
        for _ in range(4):
            self.settle(folder, process)
            if process.poll() is None:
                break
            process = self.resume(folder, process, out)
        layout = self.layouts(folder)[-1][1]
        self.stop(folder, process, out)
        self.check_end(folder)
        return layout

    def phase(self, change, crash, expected):
        """Killed at a named instant. `expected`: the layout that it ends in, or None for either."""
        out = []
        try:
            folder, process = self.begin(change[0], crash)
            self.ask(folder, change[1])
            layout = self.finish(folder, process, out)
            self.check_struck(crash)
            check(expected in (None, layout), f"it trains in {layout}, wanted {expected}")
            return "".join(out)
        except Failed as error:
            raise Failed(f"{change}, killed at {crash}: {error}\n{''.join(out)[-3000:]}") from None

    def cancel(self, change, name, rank, accepted):
        """Cancelled while somebody stands still at an instant: the old world trains on, or the new one takes over."""
        out = []
        try:
            folder, process = self.begin(change[0], point(name, rank, -1) + f":1:{signal.SIGSTOP}", patience=60)
            self.ask(folder, change[1])
            check(until(90, lambda: self.stopped(folder)), f"nobody stands still: {self.of_job(folder)}")
            asked = subprocess.run([self.reshard, "cancel", folder], capture_output=True, text=True, check=False,
                                   timeout=90)
            check((asked.returncode == 0) == accepted, f"cancel: {asked.returncode} {asked.stdout}{asked.stderr}")
            for pid in self.stopped(folder):
                os.kill(pid, signal.SIGCONT)
            layout = self.finish(folder, process, out)
            check(layout == change[not accepted], f"it trains in {layout}")
        except Failed as error:
            raise Failed(f"{change}, cancelled at {name}:{rank}: {error}\n{''.join(out)[-3000:]}") from None

    def abandon(self, folder):
        """Kills the supervisor of a job whose ranks stand still before they begin; the ranks."""
        points = ",".join(point("begins", rank, -1) + f":1:{signal.SIGSTOP}" for rank in (0, 1))
        process = self.start(self.train(folder, 100000, OPTIONS + ["--layout", "tp=2"]), points)
        check(until(60, lambda: len(self.stopped(folder)) == 2), f"ranks do not stand still: {self.of_job(folder)}")
        ranks = self.stopped(folder)
        process.kill()
        process.wait()
        return ranks

    @staticmethod
    def launchers_files(folder):
        return glob.glob(os.path.join(tempfile.gettempdir(), f"reshard-{os.path.basename(folder)}-*"))

    def late(self):
        """A job is started in the folder of one whose ranks have yet to begin: they find it in use, but not by theirs."""
        folder = self.new_folder()
        ranks = self.abandon(folder)
        shutil.rmtree(folder)
        process = self.start(self.train(folder, 100000, OPTIONS + ["--layout", "dp=2"]))
        check(until(90, lambda: process.poll() is not None or self.step(folder) > SAVES), "it does not begin")
        for pid in ranks:
            os.kill(pid, signal.SIGCONT)
        check(until(60, lambda: not set(ranks) & set(self.victims(folder, "rank"))), "ranks without a supervisor go on")
        self.finish(folder, process, [])
        check(until(10, lambda: not self.launchers_files(folder)), f"left over: {self.launchers_files(folder)}")

    def cleaned(self):
        """What cleans up after such a job ends its launcher and its ranks, whatever they do."""
        folder = self.new_folder()
        self.abandon(folder)
        done = subprocess.run([self.reshard, "clean", folder], capture_output=True, text=True, check=False, timeout=60)
        check(done.returncode == 0, f"clean: {done.returncode} {done.stdout}{done.stderr}")
        left = self.of_job(folder) + self.left(folder) + self.launchers_files(folder)
        check(not left, f"left over after clean: {left}")

    def strike(self, folder, rng):
        """Kills or stops somebody; whom, or None."""
        kind, world = rng.choice([("rank", 1), ("rank", 2), ("rank", 2), ("launcher", 1), ("launcher", 2),
                                  ("supervisor", None)])
        victims = self.victims(folder, kind, world)
        if not victims:
            return None
        pid = rng.choice(victims)
        number = signal.SIGSTOP if kind == "rank" and rng.random() < 0.2 else signal.SIGKILL
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return None
        return f"{kind} {pid} of world {world} by {signal.Signals(number).name}"

    def random_change(self, rng):
        change = rng.choice(CHANGES)
        out, struck = [], []
        try:
            folder, process = self.begin(change[0])
            self.ask(folder, change[1])
            begun = time.monotonic()
            for _ in range(rng.choice([1, 1, 2])):
                time.sleep(rng.uniform(0, 1.5))
                whom = self.strike(folder, rng)
                if whom is not None:
                    struck.append(f"{whom} after {time.monotonic() - begun:.3f} s")
                if process.poll() is not None:
                    break
            self.finish(folder, process, out)
        except Failed as error:
            raise Failed(f"{change}, {struck}: {error}\n{''.join(out)[-3000:]}") from None
        return len(struck)


# Instants at which a change is cancelled, and whether it can be.
CANCEL_POINTS = [("takeover.made", 1, True), ("takeover.ready", 0, True), ("leave.marked", 0, True),
                 ("takeover.pull", 1, True), ("takeover.verified", 0, True), ("leave.end", 1, False)]
# Instants, and whether the new world takes over although somebody died then: 0 no, 1 yes, None: either.
NEW_POINTS = [("takeover.made", 0), ("takeover.ready", 0), ("takeover.pull", 0), ("takeover.moved", 0),
              ("takeover.verified", 0), ("takeover.certified", None), ("takeover.train", 1), ("takeover.told", 1)]
OLD_POINTS = [("leave.begin", 0), ("leave.marked", None), ("leave.told", None), ("leave.end", 1)]
SUPERVISOR_POINTS = [("change.started", 0), ("change.pulls", 0), ("change.record", 0), ("change.committed", 1),
                     ("change.leaves", 1), ("change.drop", 1)]


def phases(changes, arguments):
    runs = 0
    for points, ranks in ((NEW_POINTS, (0, 1)), (OLD_POINTS, (0, 1)), (SUPERVISOR_POINTS, (-1, ))):
        for name, taken in points:
            change = CHANGES[runs % 3 if ranks[0] >= 0 else runs % len(CHANGES)]
            rank = ranks[runs % len(ranks)]
            if arguments.only not in name:
                runs += 1
                continue
            if change[1] == "dp=1" and name.startswith("takeover"):
                rank = 0
            changes.phase(change, point(name, rank, -1), None if taken is None else change[taken])
            runs += 1
            print(f"{name}: gone on", flush=True)
    # The supervisor while it revives a job whose old rank died in the change, and while it gives one up.
    for name in ("revive.recovered", "revive.started"):
        changes.phase(CHANGES[0], "leave.begin:1:-1," + point(name, -1, -1), CHANGES[0][0])
        runs += 1
    changes.phase(CHANGES[0], "takeover.moved:1:-1," + point("change.drop", -1, -1), CHANGES[0][0])
    for name, rank, accepted in CANCEL_POINTS:
        if arguments.only in "cancel":
            changes.cancel(CHANGES[0], name, rank, accepted)
            runs += 1
            print(f"{name}: cancelled", flush=True)
    # One of the old world never ends by itself.
    if arguments.only in "leave.end stopped":
        changes.phase(CHANGES[0], f"leave.end:1:-1:1:{signal.SIGSTOP}", CHANGES[0][1])
    # Before there is a rank: what the ranks leave that find nobody.
    folder = changes.new_folder()
    changes.end(changes.start(changes.train(folder, 10, OPTIONS + ["--layout", "tp=2"]), "started:-1:-1"))
    subprocess.run([changes.reshard, "clean", folder], capture_output=True, check=False)
    check(until(60, lambda: not changes.of_job(folder)), "ranks without a supervisor go on")
    changes.check_gone(folder)
    changes.late()
    changes.cleaned()
    return runs + 5


def randomly(changes, arguments):
    struck = 0
    rng = random.Random(arguments.seed)
    for i in range(arguments.count):
        struck += changes.random_change(rng)
        if (i + 1) % 5 == 0:
            print(f"{i + 1} runs, {struck} killed or stopped", flush=True)
    check(struck >= arguments.count // 2, f"{struck} killed or stopped in {arguments.count} runs")
    return arguments.count


if __name__ == "__main__":
    main(Changes, {"phases": phases, "random": randomly}, 10, lambda _, runs: f"{runs} changes gone on from",
         ("--only", {"default": "", "help": "instants whose names contain this"}))
