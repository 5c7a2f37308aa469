#!/usr/bin/env python3
"""Conversion beside `cp`, by turns, on a disk and in memory. See convert.sh.

Each round copies what the conversion wrote (so as many bytes), then converts; both have the source in the page
cache. A conversion ends when all is on the disk, `cp` when it is in the page cache; `cp` and `sync` is told too. Then
DeepSpeed's ds_to_universal makes of the same checkpoint what `convert --to deepspeed-universal` makes of it.
"""
import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def run(command, **options):
    """Seconds of a command, and its peak memory in MiB: the most that all its processes had together when looked at,
    or that one had at any time."""
    begun = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, **options)
    peak = 0
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid != 0:
            break
        peak = max(peak, memory_of(process.pid))
        time.sleep(0.005)
    seconds = time.monotonic() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"failed: {command}")
    return seconds, max(peak, usage.ru_maxrss / 1024)


def memory_of(pid):
    """Resident MiB of a process and those that it started."""
    total = 0
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            total = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            children = file.read().split()
    except (OSError, ValueError):
        return total
    return total + sum(memory_of(int(child)) for child in children)


def bytes_below(folder):
    return sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names)


def read_all(folder):
    """Brings the files into the page cache."""
    for at, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(at, name), "rb", buffering=0) as file:
                while file.read(8 << 20):
                    pass


def compare(args, place, source, to):
    """Figures of one format in one place."""
    out, copy = os.path.join(place, "out"), os.path.join(place, "copy")
    ratios, durable, peaks, rates = [], [], [], []
    for turn in range(args.rounds + 1):
        seconds, peak = run([args.reshard, "convert", source, out, "--to", to])
        size = bytes_below(out)
        cp, _ = run(["cp", "-r", out, copy])
        begun = time.monotonic()
        subprocess.run(["sync", "-f", copy], check=True)
        sync = time.monotonic() - begun
        shutil.rmtree(out)
        shutil.rmtree(copy)
        if turn == 0:
            continue  # memory that was never used before is slow for whoever takes it first
        ratios.append(cp / seconds)
        durable.append((cp + sync) / seconds)
        peaks.append(peak)
        rates.append(size / seconds / 1e9)
        print(f"  {to}: {size / 1e9:.2f} GB in {seconds:.2f} s, cp {cp:.2f} s, with sync {cp + sync:.2f} s, "
              f"peak {peak:.0f} MiB", flush=True)
    return (statistics.median(ratios), statistics.median(durable), max(peaks), statistics.median(rates))


def beside_deepspeed(args, name, place, source):
    """DeepSpeed's own converter of the same files."""
    if args.deepspeed is None:
        print("no DeepSpeed here (RS_BENCH_DEEPSPEED): ds_to_universal skipped")
        return True
    ours, theirs = os.path.join(place, "ours"), os.path.join(place, "theirs", "universal")
    mine = []
    for _ in range(args.rounds):
        shutil.rmtree(ours, ignore_errors=True)  # theirs has nothing to replace, either
        mine.append(run([args.reshard, "convert", source, ours, "--to", "deepspeed-universal"]))
    seconds, peak = run([args.deepspeed, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder",
                         os.path.join(source, "global_step7"), "--output_folder", theirs, "--num_extract_workers", "2",
                         "--num_merge_workers", "2"], env=dict(os.environ, DS_ACCELERATOR="cpu"))
    subprocess.run([args.reshard, "verify", theirs, ours, "--roles", "master,exp_avg,exp_avg_sq"], check=True)
    fast, small = statistics.median(m[0] for m in mine), max(m[1] for m in mine)
    print(f"  ds_to_universal: {seconds:.1f} s, {peak:.0f} MiB; convert --to deepspeed-universal: {fast:.2f} s, "
          f"{small:.0f} MiB")
    print(f"figure: convert's speed by ds_to_universal's, {name} {seconds / fast:.1f} (wanted: >= 10)")
    print(f"figure: convert's memory by ds_to_universal's, {name} {small / peak:.3f} (wanted: <= 0.1)")
    return seconds / fast >= 10 and small / peak <= 0.1


def beside_cp(args, name, place, source):
    good = True
    for to in ("safetensors", "native"):
        by_cp, by_sync, peak, rate = compare(args, place, source, to)
        good = good and by_cp >= 0.7 and peak <= 300
        print(f"figure: convert --to {to} by cp, {name} {by_cp:.2f} (wanted: >= 0.70)")
        if name == "disk":
            print(f"figure: the same by cp and sync {by_sync:.2f} (wanted: >= 0.70)")
        print(f"figure: its peak memory {peak:.0f} MiB at {rate:.2f} GB/s (wanted: <= 300 MiB)")
    return good


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--reshard", required=True)
    parser.add_argument("--gib", type=float, default=4.2, help="of the checkpoint on disk; 0: none")
    parser.add_argument("--memory-gib", type=float, default=1.2, help="of the one in memory; 0: none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--disk", default=tempfile.gettempdir())
    parser.add_argument("--source", help="one on the disk that zero3.py made, instead of a new one")
    parser.add_argument("--deepspeed", help="a Python that has it")
    parser.add_argument("--beside", default="cp,deepspeed", help="some of cp and deepspeed, separated by commas")
    args = parser.parse_args()
    args.reshard = os.path.abspath(args.reshard)
    good = True
    for name, base, gib in (("disk", args.disk, args.gib), ("memory", "/dev/shm", args.memory_gib)):
        if gib <= 0:
            continue
        with tempfile.TemporaryDirectory(dir=base, prefix="reshard-bench-") as place:
            if shutil.disk_usage(place).free < 5 * gib * 2**30:
                print(f"no room for it in {base}: skipped")
                continue
            source = os.path.join(place, "zero3")
            if args.source and name == "disk":
                source = args.source
            else:
                subprocess.run([sys.executable, os.path.join(HERE, "zero3.py"), source, str(gib), "--dtype", "fp32"],
                               check=True, stdout=subprocess.DEVNULL)
            read_all(source)
            print(f"{name}: {bytes_below(source) / 1e9:.2f} GB of ZeRO-3 on 4 ranks")
            if "cp" in args.beside:
                good = beside_cp(args, name, place, source) and good
            if "deepspeed" in args.beside:
                good = beside_deepspeed(args, name, place, source) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
