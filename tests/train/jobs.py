"""Runs training jobs for the tests: writes job.json, starts the ranks of `driver`, reads what they leave."""
import glob
import json
import os
import signal
import shutil
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))


os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the command does: there are more threads than cores


class Failed(Exception):
    pass


class Skipped(Exception):
    """The case cannot be tried here."""


def check(condition, message):
    if not condition:
        raise Failed(message)


class Result:
    def __init__(self, folder, code, out, err, seconds):
        self.folder, self.code, self.out, self.err, self.seconds = folder, code, out, err, seconds
        self.lines = []
        path = os.path.join(folder, "metrics.jsonl")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                self.lines = [json.loads(line) for line in file]
        self.steps = [line for line in self.lines if "event" not in line]
        self.events = [line for line in self.lines if line.get("event") == "switch"]
        self.losses = {line["step"]: line["loss"] for line in self.steps}

    def fail(self, message):
        raise Failed(f"{message}\n--- standard output\n{self.out[-3000:]}\n--- standard error\n{self.err[-3000:]}")


class Jobs:
    """All jobs of one test program; removes their folders at the end."""

    def __init__(self, driver, mpirun):
        self.driver, self.mpirun = driver, mpirun
        self.reshard = os.path.join(os.path.dirname(driver), "..", "reshard")  # the command
        self.folder = tempfile.mkdtemp(prefix="reshard-train-")
        self.count = 0
        self.before = set(self.arenas())
        self.processes = []

    @staticmethod
    def arenas():
        return glob.glob("/dev/shm/reshard-*")

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def options(self, ranks, **changes):
        self.count += 1
        folder = os.path.join(self.folder, f"t{os.getpid()}j{self.count}")
        os.mkdir(folder)
        options = {"model": os.path.join(HERE, "models/llama-uneven"), "data": os.path.join(HERE, "data.txt"),
                   "ranks": ranks, "steps": 20, "global_batch": 8, "micro_batch": 2, "seq": 32, "lr": 0.003,
                   "seed": 1, "warmup": 10, "dtype": "float32", "layout": "dp=1"}
        options.update(changes)
        with open(os.path.join(folder, "job.json"), "w", encoding="utf-8") as file:
            json.dump(options, file)
        return folder, options

    def command(self, ranks, folder):
        return [self.mpirun, "-n", str(ranks), self.driver, folder]

    def start(self, ranks, **changes):
        """A job that goes on while the test does other things: (folder, process)."""
        folder, options = self.options(ranks, **changes)
        return folder, self.spawn(self.command(options["ranks"], folder))

    def spawn(self, command):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    def end(self, folder, process, timeout=120, begun=None):
        begun = begun or time.monotonic()
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            time.sleep(3)
            process.kill()
            out, err = process.communicate()
            raise Failed(f"no end within {timeout} s\n--- standard output\n{out[-3000:]}\n--- standard error\n"
                         f"{err[-3000:]}") from None
        return Result(folder, process.returncode, out, err, time.monotonic() - begun)

    def run(self, ranks, good=True, **changes):
        """A whole job; `good`: it must end well, with every step once and nothing left in shared memory."""
        folder, options = self.options(ranks, **changes)
        begun = time.monotonic()
        process = self.spawn(self.command(options["ranks"], folder))
        result = self.end(folder, process, begun=begun)
        if good:
            if result.code != 0:
                result.fail(f"exit status {result.code}")
            steps = [line["step"] for line in result.steps]
            if steps != list(range(1, options["steps"] + 1)):
                result.fail(f"steps in metrics.jsonl: {steps}")
            self.check_clean(result)
        return result

    def resume(self, folder, **changes):
        """A job that is over goes on, with other options."""
        path = os.path.join(folder, "job.json")
        with open(path, encoding="utf-8") as file:
            options = {**json.load(file), **changes}
        with open(path, "w", encoding="utf-8") as file:
            json.dump(options, file)
        return self.end(folder, self.spawn(self.command(options["ranks"], folder)))

    def left(self, result):
        """Arenas of the job: their names begin with that of its folder."""
        name = f"reshard-{os.path.basename(result.folder)}-"
        return [path for path in self.arenas() if path not in self.before and os.path.basename(path).startswith(name)]

    def check_clean(self, result):
        left = self.left(result)
        if left:
            result.fail(f"left in shared memory: {left}")


def wait_for(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        check(time.monotonic() < deadline, f"waited {seconds} s in vain")
        time.sleep(0.02)


def rank_pid(folder, rank=0):
    """The process of a rank of the job in `folder`."""
    for path in glob.glob("/proc/[0-9]*"):
        try:
            with open(os.path.join(path, "cmdline"), "rb") as file:
                words = file.read().split(b"\0")
            with open(os.path.join(path, "environ"), "rb") as file:
                environ = file.read().split(b"\0")
        except OSError:
            continue
        names = (b"OMPI_COMM_WORLD_RANK", b"PMI_RANK")
        if os.fsencode(folder) in words and any(name + b"=%d" % rank in environ for name in names):
            return int(os.path.basename(path))
    raise Failed(f"no process is rank {rank} of {folder}")


def last_step(folder):
    try:
        with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
            return max((json.loads(line).get("step", 0) for line in file if line.endswith("\n")), default=0)
    except FileNotFoundError:
        return 0


def compare(result, losses, tolerance, what):
    """Each step's loss within a relative tolerance of `losses` (step -> loss); returns the largest difference."""
    worst = 0.0
    for step, wanted in losses.items():
        got = result.losses.get(step)
        if got is None:
            result.fail(f"{what}: step {step} is missing")
        worst = max(worst, abs(got - wanted) / abs(wanted))
        if abs(got - wanted) > tolerance * abs(wanted):
            result.fail(f"{what}: step {step} has loss {got}, wanted {wanted} (relative {tolerance})")
    return worst


def oracle(model):
    with open(os.path.join(HERE, f"oracle_{model}.json"), encoding="utf-8") as file:
        content = json.load(file)
    return {step + 1: loss for step, loss in enumerate(content["losses"])}, content
