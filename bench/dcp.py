#!/usr/bin/env python3
"""PyTorch's distributed checkpoints (DCP) beside reshard's own: 2 ranks save, 4 load. See dcp.sh.

Both have the same tensors, cut over the same ranks, on the same disk, by turns; seconds are from the moment that all
ranks have their state to the moment that the last is done, without any start-up. Both sync what they write. Our save is
as fast as the disk is written to; with half as much state the ratio follows the disk more (--disk /dev/shm leaves it
out).
"""
import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

SAVERS, LOADERS = 2, 4
ROWS = ("attn.o.weight", "mlp.down.weight")  # what tensor parallelism cuts along its columns


def fill(shape):
    """A tensor that has other values everywhere, and the same on all ranks."""
    import torch
    return (torch.arange(shape.numel()) % 65521).float().reshape(shape)


def make_state(shapes, mesh, cut, filled):
    """DTensors of all tensors. `cut`: "dim0" as FSDP2 does, or "tp"."""
    import torch
    from torch.distributed.tensor import DTensor, Replicate, Shard
    rank, world = mesh.get_rank(), mesh.size()
    state = {}
    for name, shape in shapes.items():
        dim = 0
        if cut == "tp":
            dim = None if len(shape) == 1 else 1 if name.rsplit(".", 1)[0].endswith(ROWS) else 0
        if dim is None:
            local = fill(shape) if filled else torch.empty(shape)
            place = Replicate()
        else:
            part = -(-shape[dim] // world)
            begin, end = min(rank * part, shape[dim]), min((rank + 1) * part, shape[dim])
            if filled:
                local = fill(shape).narrow(dim, begin, end - begin).contiguous()
            else:
                local = torch.empty(shape[:dim] + (end - begin,) + shape[dim + 1:])
            place = Shard(dim)
        state[name] = DTensor.from_local(local, mesh, [place], run_check=False, shape=torch.Size(shape),
                                         stride=torch.empty(shape, device="meta").stride())
    return state


def rank_main(action, folder, file, check):
    """One rank of a job of theirs, that saves or loads under one cut; rank 0 prints the seconds."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    with open(file, encoding="ascii") as lines:
        shapes = {name: torch.Size(int(n) for n in dims) for name, *dims in map(str.split, lines)}
    cut = "tp" if action == "tp" else "dim0"
    state = make_state(shapes, mesh, cut, action == "save")
    dist.barrier()
    begun = time.monotonic()
    if action == "save":
        dcp.save(state, checkpoint_id=folder)
    else:
        dcp.load(state, checkpoint_id=folder)
    dist.barrier()
    seconds = time.monotonic() - begun
    if action != "save" and check == "check":
        whole = make_state(shapes, mesh, cut, True)
        assert all(torch.equal(state[n].to_local(), whole[n].to_local()) for n in state)
    if dist.get_rank() == 0:
        print(seconds, flush=True)
    dist.destroy_process_group()


def theirs(folder, file, check):
    """Seconds to save, and to load under each cut."""
    out = {}
    for action, world in (("save", SAVERS), ("dim0", LOADERS), ("tp", LOADERS)):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = []
        for rank in range(world):
            environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1",
                               MASTER_PORT=str(port), OMP_NUM_THREADS="1")
            ranks.append(subprocess.Popen([sys.executable, __file__, "--rank", action, folder, file, check],
                                          env=environment, stdout=subprocess.PIPE, text=True))
        told = [rank.communicate()[0] for rank in ranks]
        if any(rank.returncode != 0 for rank in ranks):
            sys.exit(f"DCP failed: {action}")
        out[action] = float(told[0].split()[-1])  # Gloo may have printed before
    return out


def ours(program, folder, mib):
    """The same of bench/dcp.c."""
    done = subprocess.run(["mpirun.openmpi", "-n", str(LOADERS), program, "--mib", str(mib), folder], check=True,
                          stdout=subprocess.PIPE, text=True)
    return {key: float(seconds) for key, seconds in map(str.split, done.stdout.splitlines())}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", nargs=4)
    parser.add_argument("--program")
    parser.add_argument("--mib", type=int, default=2500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--disk", default=tempfile.gettempdir())
    args = parser.parse_args()
    if args.rank:
        return rank_main(*args.rank)
    ratios = {"dim0": [], "tp": []}
    with tempfile.TemporaryDirectory(dir=args.disk, prefix="reshard-bench-") as place:
        if shutil.disk_usage(place).free < 3 * args.mib * 2**20:
            print(f"no room in {args.disk}")
            sys.exit(77)
        file, folder = os.path.join(place, "shapes"), os.path.join(place, "checkpoint")
        with open(file, "w", encoding="ascii") as out:
            subprocess.run([args.program, "--mib", str(args.mib), "--shapes"], check=True, stdout=out)
        for turn in range(args.rounds + 1):
            mine = ours(args.program, folder, args.mib)
            shutil.rmtree(folder)
            other = theirs(folder, file, "" if turn else "check")
            shutil.rmtree(folder)
            if turn == 0:
                continue  # memory that was never used before is slow for whoever takes it first
            for cut, ratio in ratios.items():
                ratio.append((other["save"] + other[cut]) / (mine["save"] + mine[cut]))
            print(f"  save {mine['save']:.2f} s, load {mine['dim0']:.2f} s, under tp=4 {mine['tp']:.2f} s; "
                  f"DCP {other['save']:.2f} s, {other['dim0']:.2f} s, {other['tp']:.2f} s", flush=True)
    worst = 1e9
    for cut, what in (("dim0", "dp=2 to dp=4, both cut by FSDP2"), ("tp", "dp=2 to tp=4")):
        ratio = statistics.median(ratios[cut])
        worst = min(worst, ratio)
        print(f"figure: saving and loading by DCP's, {what} {ratio:.1f} (wanted: >= 3)")
    sys.exit(0 if worst >= 3 else 1)


if __name__ == "__main__":
    main()
