"""Training jobs whose processes are killed: starting them, finding their processes, comparing them with others.

What the tests of this folder share. A job is a folder; what was printed and what stands in its metrics.jsonl
is all that is known of it.
"""
import argparse
import glob
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

TRAIN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "train")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


class Failed(Exception):
    pass


def check(condition, message):
    if not condition:
        raise Failed(message)


def until(seconds, condition):
    """Waits for a condition; false if it did not come."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def point(name, rank, step):
    """A named instant as RESHARD_CRASH has it; `name` may end in the number of the visit."""
    name, _, visit = name.partition(":")
    return f"{name}:{rank}:{step}" + (f":{visit}" if visit else "")


class Jobs:
    def __init__(self, reshard):
        self.reshard = reshard
        self.folder = tempfile.mkdtemp(prefix="reshard-crash-")
        self.note = os.path.join(self.folder, "struck")  # the instants of the last crash that have come
        self.count = 0
        self.processes = []
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))

    def keep(self):
        """After a failure: what the jobs left, as it was found, into the folder that RESHARD_KEEP names."""
        if os.environ.get("RESHARD_KEEP"):
            kept = os.path.join(os.environ["RESHARD_KEEP"], os.path.basename(self.folder))
            shutil.copytree(self.folder, kept, ignore_dangling_symlinks=True, symlinks=True,
                            ignore=lambda folder, names: [n for n in names if stat.S_ISSOCK(
                                os.lstat(os.path.join(folder, n)).st_mode)])
            for path in glob.glob("/dev/shm/reshard-*"):
                if any(os.path.basename(job) in path for job in glob.glob(os.path.join(self.folder, "c*"))):
                    (shutil.copytree if os.path.isdir(path) else shutil.copy)(path, os.path.join(kept, path[9:]))
            print(f"kept in {kept}")

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for job in glob.glob(os.path.join(self.folder, "*/job.json")):
            for pid, _ in self.of_job(os.path.dirname(job)):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            subprocess.run([self.reshard, "clean", os.path.dirname(job)], capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_folder(self):
        self.count += 1
        return os.path.join(self.folder, f"c{os.getpid()}x{self.count}")

    def train(self, folder, steps, options):
        """The command line of a job of the small model."""
        return [self.reshard, "train", "--model", os.path.join(TRAIN, "models/llama-uneven"), "--data",
                os.path.join(TRAIN, "data.txt"), "--seq", "32", "--micro-batch", "2", "--lr", "3e-3", "--seed", "1",
                "--steps", str(steps), "--job", folder] + options

    def start(self, command, crash=None):
        environment = dict(os.environ)
        environment.pop("RESHARD_CRASH", None)
        if crash:
            environment["RESHARD_CRASH"] = crash
            environment["RESHARD_CRASH_NOTE"] = self.note
            if os.path.exists(self.note):
                os.unlink(self.note)
        # A file: nobody reads a pipe while a job goes on.
        output = tempfile.TemporaryFile(mode="w+", dir=self.folder)
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment,
                                   start_new_session=True)
        process.output = output
        self.processes.append(process)
        return process

    def check_struck(self, crash):
        """Every instant that was named has come."""
        struck = []
        if os.path.exists(self.note):
            with open(self.note, encoding="utf-8") as file:
                struck = file.read().split()
        missed = [text.split(":")[0] for text in crash.split(",") if text.split(":")[0] not in struck]
        check(not missed, f"nobody was struck at {missed}, but at {struck}")

    @staticmethod
    def said(process):
        process.output.seek(0)
        return process.output.read()

    def end(self, process, timeout=90):
        try:
            process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise Failed(f"no end within {timeout} s:\n{self.said(process)[-3000:]}") from None
        return process.returncode, self.said(process)

    @staticmethod
    def lines(folder):
        path = os.path.join(folder, "metrics.jsonl")
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]

    def losses(self, folder):
        return [(line["step"], line["loss"], line["grad_norm"], line["lr"], line["samples"])
                for line in self.lines(folder) if "event" not in line]

    @staticmethod
    def has_state(folder):
        """In memory, or saved."""
        return any(os.path.exists(os.path.join(folder, name)) for name in ("state.json", "checkpoints/latest"))

    @staticmethod
    def compare(wanted, found):
        for a, b in zip(wanted, found):
            check(a == b, f"step {a[0]}: {b}, undisturbed {a}")

    def verify(self, wanted, found):
        """The states of two checkpoints are equal to the bit."""
        done = subprocess.run([self.reshard, "verify", wanted, found], capture_output=True, text=True, check=False)
        check(done.returncode == 0, f"{found} differs: {done.stdout}{done.stderr}")

    @staticmethod
    def left(folder):
        name = os.path.basename(folder)
        return glob.glob(f"/dev/shm/reshard-*{name}*") + glob.glob(os.path.join(folder, "state.json*"))

    def check_gone(self, folder):
        """Nothing of the job is left but its folder."""
        until(10, lambda: not self.left(folder) and not self.of_job(folder))
        check(not self.left(folder), f"left over: {self.left(folder)}")
        check(not self.of_job(folder), f"processes left over: {self.of_job(folder)}")

    @staticmethod
    def of_job(folder):
        """Processes of the job: (pid, words of the command line)."""
        found = []
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                with open(path, "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            if os.fsencode(folder) in words and b"verify" not in words:
                found.append((int(path.split("/")[2]), words))
        return found

    def stopped(self, folder):
        """Processes of the job that stand still."""
        found = []
        for pid, _ in self.of_job(folder):
            try:
                with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                    state = file.read().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if state == "T":
                found.append(pid)
        return found

    @staticmethod
    def kind(words):
        """Of a process: (supervisor, rank or launcher; its world)."""
        world = int(words[words.index(b"--world") + 1]) if b"--world" in words else 0
        if os.path.basename(words[0]).startswith((b"mpirun", b"mpiexec")):
            return "launcher", world
        return ("rank" if len(words) > 1 and words[1] == b"worker" else "supervisor"), world

    def victims(self, folder, kind, world=None):
        """Processes of a kind (of a world, if it is named)."""
        return [pid for pid, words in self.of_job(folder)
                if self.kind(words)[0] == kind and world in (None, self.kind(words)[1])]


def main(jobs, parts, count, said, *options):
    """A test's command line and its end. `parts` are functions of the jobs and the arguments that return how many runs
    they made, `said` what is said of those; `options` are further ones, for add_argument."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--reshard", required=True)
    parser.add_argument("what", choices=list(parts))
    parser.add_argument("count", nargs="?", type=int, default=count)
    parser.add_argument("seed", nargs="?", type=int, default=int(time.time()))
    for name, settings in options:
        parser.add_argument(name, **settings)
    arguments = parser.parse_args()
    run = jobs(arguments.reshard)
    print(f"seed {arguments.seed}")
    try:
        runs = parts[arguments.what](run, arguments)
        check(runs > 0, "nothing was run")
        print(said(run, runs))
        code = 0
    except Failed as error:
        print(f"FAILED: {error}")
        run.keep()
        code = 1
    finally:
        run.close()
    sys.exit(code)
