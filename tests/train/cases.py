#!/usr/bin/env python3
"""Training jobs that the trainer has to do right: `cases.py --driver PROGRAM --mpirun MPIRUN CASE`.

A case is a function marked @case; its first line says what must hold. Exit status 0: it does.
"""
import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time

import jobs
from jobs import check, compare, oracle

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def against_oracle(j, model, layouts, tolerance=1e-4, **changes):
    losses, content = oracle(model)
    results = []
    for layout, ranks in layouts:
        result = j.run(ranks, model=os.path.join(jobs.HERE, "models", model), layout=layout,
                       steps=content["steps"], global_batch=content["global_batch"], seq=content["seq"],
                       lr=content["lr"], seed=content["seed"], warmup=content["warmup"], **changes)
        worst = compare(result, losses, tolerance, f"{model} {layout}")
        norms = {line["step"]: line["grad_norm"] for line in result.steps}
        for step, wanted in enumerate(content["grad_norms"], 1):
            check(abs(norms[step] - wanted) <= 10 * tolerance * wanted,
                  f"{model} {layout}: step {step} has gradient norm {norms[step]}, wanted {wanted}")
        print(f"{model} {layout} on {ranks}: worst relative difference {worst:.2g}, {result.seconds:.1f} s")
        results.append(result)
    return results


@case
def oracle_one(j):
    """One rank has PyTorch's losses."""
    for model in ("llama-uneven", "qwen2-small", "qwen3-small"):
        against_oracle(j, model, [("dp=1", 1)])


@case
def oracle_parallel(j):
    """So has every layout: tensor, pipeline and data parallel, sharded optimizer, and together."""
    against_oracle(j, "qwen3-small", [("tp=2", 2), ("tp=4", 4), ("pp=2", 2), ("dp=2", 2), ("dp=2,zero=1", 2),
                                      ("tp=2,pp=2,dp=2,zero=1", 8)])


@case
def oracle_threads(j):
    """Two threads and a micro-batch that does not divide the batch change nothing."""
    against_oracle(j, "llama-uneven", [("dp=1", 1), ("tp=2", 2)], threads=2, micro_batch=3)


@case
def oracle_uneven(j):
    """So have heads, rows, layers and micro-batches that do not divide, and ranks with nothing."""
    against_oracle(j, "llama-uneven", [("tp=3", 3), ("tp=4,zero=1", 4), ("pp=2,tp=2", 4), ("pp=3", 3),
                                       ("dp=3,zero=1", 3), ("tp=7", 7), ("order=pp-dp-tp,pp=2,dp=2", 4)])
    against_oracle(j, "qwen2-small", [("tp=3", 3), ("tp=4", 4), ("pp=2,tp=3", 6)])


ZERO = [("dp=2,zero=2", 2), ("dp=3,zero=2", 3), ("dp=3,zero=3", 3), ("dp=4,zero=3,zero_cut=param", 4),
        ("dp=3,zero=2,zero_cut=dim0", 3), ("dp=5,zero=3,zero_cut=dim0", 5), ("dp=4,zero=3,shard=2", 4),
        ("dp=4,zero=1,zero_cut=param,shard=2", 4)]


@case
def oracle_stages(j):
    """So has every division of layers that a layout lists."""
    against_oracle(j, "qwen3-small", [("pp=2,stages=0/1-3", 2), ("pp=3,stages=0-1/2/3,dp=2,zero=3", 6)])


@case
def oracle_interleaved(j):
    """So has every rank that has several stages: any number of micro-batches, uneven stages, either end anywhere."""
    against_oracle(j, "llama-deep", [("vpp=7", 1), ("pp=2,vpp=3", 2), ("pp=3,vpp=2,dp=3", 9),
                                     ("pp=2,vpp=2,stages=0-3/4/5/6,tp=2", 4), ("order=pp-dp-tp,pp=2,vpp=2,dp=2,zero=3", 4),
                                     ("vpp=2,dp=3,zero=3,zero_cut=param", 3), ("pp=3,vpp=2,tp=2,dp=2,zero=2", 12)])
    against_oracle(j, "qwen3-small", [("pp=2,vpp=2,tp=2", 4)])
    against_oracle(j, "qwen2-small", [("vpp=2,dp=2,zero=1", 2)])
    for micro_batch in (1, 3, 5, 8):
        against_oracle(j, "llama-deep", [("pp=3,vpp=2", 3), ("pp=2,vpp=3,dp=2", 4)], micro_batch=micro_batch)


@case
def oracle_rows(j):
    """So has sequence parallelism, and context parallelism, whatever divides, and three axes together."""
    against_oracle(j, "llama-deep", [("tp=2,sp=on", 2), ("tp=5,sp=on", 5), ("cp=2", 2), ("cp=5", 5),
                                     ("tp=3,sp=on,zero=1,dp=2", 6), ("cp=3,tp=2", 6), ("cp=2,tp=2,sp=on", 4),
                                     ("cp=3,dp=2,zero=2,zero_cut=dim0", 6), ("cp=2,dp=2,zero=3,shard=2", 4),
                                     ("tp=2,sp=on,pp=2,vpp=2", 4), ("zero=3,cp=2,pp=2,vpp=2", 4),
                                     ("order=cp-dp-pp-tp,tp=2,sp=on,cp=2,dp=2,pp=2,zero=3,zero_cut=param", 16)])
    against_oracle(j, "llama-uneven", [("tp=4,sp=on", 4), ("cp=3,tp=2,sp=on", 6), ("pp=3,cp=2,zero=1", 6)])
    against_oracle(j, "qwen2-small", [("tp=3,sp=on", 3), ("cp=4", 4), ("cp=2,tp=3,pp=2", 12)])
    against_oracle(j, "qwen3-small", [("tp=2,sp=on", 2), ("cp=3,tp=2,sp=on", 6)])
    against_oracle(j, "llama-deep", [("tp=2,sp=on,cp=2", 4)], micro_batch=3, threads=2)


@case
def short_sequences(j):
    """Sequences that nothing divides, and ranks without a token: losses are those of one rank."""
    for seq in (1, 7):
        reference = unswitched(j, steps=6, seq=seq, global_batch=5, **DEEP)
        for layout, ranks in (("cp=2", 2), ("cp=5", 5), ("tp=4,sp=on", 4), ("cp=3,tp=2,sp=on,pp=2", 12),
                              ("cp=2,dp=3,zero=3", 6)):
            result = j.run(ranks, layout=layout, steps=6, seq=seq, global_batch=5, **DEEP)
            worst = compare(result, reference, 1e-5, f"{seq} tokens, {layout}")
            print(f"{seq} tokens, {layout} on {ranks}: worst relative difference {worst:.2g}")


@case
def oracle_zero(j):
    """So has sharding of gradients and of parameters, with every cut, in groups, beside tp and pp."""
    against_oracle(j, "llama-uneven", ZERO + [("tp=2,pp=2,dp=2,zero=3", 8), ("tp=3,dp=2,zero=2,zero_cut=param", 6),
                                              ("pp=3,dp=3,zero=3,zero_cut=dim0,shard=1", 9),
                                              ("order=pp-dp-tp,tp=2,pp=2,dp=2,zero=3,zero_cut=param", 8),
                                              ("pp=2,dp=3,zero=3", 6), ("pp=3,dp=2,zero=2,zero_cut=dim0", 6)])
    against_oracle(j, "qwen2-small", [("dp=2,zero=3", 2), ("tp=3,dp=2,zero=3,zero_cut=dim0", 6)])
    against_oracle(j, "qwen3-small", [("tp=2,pp=2,dp=2,zero=3", 8), ("tp=4,dp=2,zero=2", 8)])


def against_variant(j, number, layouts, **changes):
    with open(os.path.join(jobs.HERE, "oracle_optimizers.json"), encoding="ascii") as file:
        o = json.load(file)[number]
    name = f"{o['optimizer']}, dropout {o['dropout']}, frozen \"{o['freeze']}\", {o['model']}"
    losses = {step + 1: loss for step, loss in enumerate(o["losses"])}
    options = {key: o[key] for key in ("steps", "global_batch", "seq", "lr", "seed", "warmup", "optimizer", "freeze",
                                      "dropout")}
    options = {**options, "model": os.path.join(jobs.HERE, "models", o["model"]), **changes}
    for layout, ranks in layouts:
        result = j.run(ranks, layout=layout, **options)
        worst = compare(result, losses, 1e-4, f"{name}, {layout}")
        for line in result.steps:
            wanted = o["grad_norms"][line["step"] - 1]
            check(abs(line["grad_norm"] - wanted) <= 1e-3 * wanted,
                  f"{name}, {layout}: step {line['step']} has gradient norm {line['grad_norm']}, wanted {wanted}")
        print(f"{name}, {layout} on {ranks}: worst relative difference {worst:.2g}")
    return losses, options


@case
def oracle_sgd(j):
    """So has SGD with momentum, everywhere."""
    against_variant(j, 0, [("dp=1", 1), ("tp=2,pp=2,dp=2,zero=3", 8), ("dp=3,zero=2", 3), ("tp=3,dp=2", 6)])
    against_variant(j, 1, [("dp=1", 1), ("tp=2,dp=2,zero=3,zero_cut=param", 4), ("dp=3,zero=2", 3)])


@case
def oracle_dropout(j):
    """So has dropout: the same elements under every layout, kept or recomputed, through switches and from checkpoints."""
    layouts = [("dp=1", 1), ("tp=2,pp=2,dp=2,zero=3", 8), ("tp=2,sp=on,cp=2", 4), ("dp=3,zero=2", 3),
               ("pp=2,vpp=2,dp=2", 4), ("cp=3", 3)]
    losses, options = against_variant(j, 6, layouts, micro_batch=3)
    for recompute in ("selective", "full"):
        against_variant(j, 6, layouts[:3], recompute=recompute)
    result = j.run(4, layout="tp=2,dp=2", switches=["5:dp=4,zero=3", "10:pp=2,cp=2"], save_every=10, **options)
    compare(result, losses, 1e-4, "through switches")
    again = j.resume(result.folder, resume=10, layout="pp=4", switches=[], recompute="full")
    compare(again, losses, 1e-4, "from a checkpoint")
    against_variant(j, 7, [("dp=1", 1), ("dp=2,ep=2,tp=2,etp=1", 4)])
    refused(j, 1, ["dropout 1"], dropout=1.0)


@case
def recompute(j):
    """Recomputed activations are the same bits, in less memory."""
    for model, layout, ranks in (("llama-uneven", "tp=2,pp=2,dp=2,zero=3", 8), ("qwen3-small", "tp=3", 3),
                                 ("qwen3-small", "tp=2,sp=on,cp=2", 4), ("mixtral-small", "dp=2,ep=2", 2),
                                 ("llama-deep", "pp=2,vpp=2,dp=2", 4)):
        runs = [j.run(ranks, model=os.path.join(jobs.HERE, "models", model), layout=layout, steps=6, recompute=what).losses
                for what in ("none", "selective", "full")]
        check(runs[0] == runs[1] == runs[2], f"{model}, {layout}: {runs}")
    used = [max(memory_of(j, 1, model=os.path.join(jobs.HERE, "models/llama-deep"), layout="dp=1", seq=1024, global_batch=8,
                          micro_batch=8, recompute=what)[1]) for what in ("none", "selective", "full")]
    print(f"private memory: {[f'{u / 2**20:.1f} MiB' for u in used]}")
    check(used[0] > 1.05 * used[1] > 1.1 * used[2], f"private memory: {used}")


@case
def oracle_muon(j):
    """So has Muon for matrices with AdamW beside it, whatever divides the matrices."""
    layouts = [("dp=1", 1), ("dp=3", 3), ("tp=2,pp=2,dp=2", 8), ("tp=4,dp=2,zero=1,zero_cut=param", 8),
               ("dp=3,zero=2,zero_cut=dim0", 3), ("tp=2,dp=4,zero=3,shard=2,zero_cut=param", 8),
               ("pp=3,dp=2,zero=3,zero_cut=dim0", 6), ("tp=2,sp=on,cp=2", 4),
               ("cp=2,dp=2,vpp=2,zero=2,zero_cut=param", 4)]
    against_variant(j, 4, layouts)
    losses, options = against_variant(j, 5, [("dp=1", 1), ("tp=3,dp=2,zero=3,zero_cut=param", 6), ("pp=2,tp=3", 6)])
    result = j.run(4, layout="tp=2,dp=2", switches=["5:dp=4,zero=3,zero_cut=param", "10:pp=2,tp=2",
                                                    "15:dp=3,zero=2,zero_cut=dim0"], save_every=10, **options)
    compare(result, losses, 1e-4, "through switches")
    check_switches(result, 3)
    again = j.resume(result.folder, resume=10, layout="dp=4,zero=1,zero_cut=param", switches=[])
    compare(again, losses, 1e-4, "from a checkpoint")
    check(sorted(again.losses) == list(range(1, 21)), f"steps {sorted(again.losses)}")
    refused(j, 2, ["role", "fits is dp=2,zero=2,zero_cut=param"], layout="dp=2,zero=2", optimizer="muon")


@case
def muon_experts(j):
    """So it is of each expert's matrices, whatever divides experts, their rows and their state."""
    against_variant(j, 8, [("dp=1", 1), ("dp=4,ep=4", 4), ("tp=2,dp=2,etp=2,ep=2", 4), ("tp=3,etp=1", 3),
                           ("dp=4,ep=2,zero=1,zero_cut=param", 4), ("dp=8,ep=8", 8),
                           ("tp=2,dp=2,etp=1,ep=2,zero=3,zero_cut=dim0", 4), ("pp=3,dp=2,ep=2", 6),
                           ("dp=4,etp=4,zero=2,zero_cut=param,shard=2", 4)])
    losses, options = against_variant(j, 9, [("dp=1", 1), ("dp=8,ep=8,zero=1,zero_cut=param", 8),
                                             ("cp=2,tp=2,sp=on,ep=2,etp=2,zero=2,zero_cut=dim0", 4)])
    result = j.run(4, layout="dp=4,ep=4", switches=["5:tp=2,dp=2,ep=4,etp=1,zero=3,zero_cut=param", "10:tp=2,etp=2",
                                                    "15:dp=4,ep=2,zero=2,zero_cut=dim0"], save_every=10, **options)
    compare(result, losses, 1e-4, "through switches")
    check_switches(result, 3)
    again = j.resume(result.folder, resume=10, layout="pp=2,dp=2,ep=2,zero=1,zero_cut=param", switches=[])
    compare(again, losses, 1e-4, "from a checkpoint")


@case
def oracle_frozen(j):
    """So has training with frozen tensors, which keep no optimizer state, through switches and from checkpoints."""
    layouts = [("dp=1", 1), ("tp=2,pp=2,dp=2", 8), ("dp=3,zero=2", 3), ("tp=2,dp=2,zero=3,zero_cut=dim0", 4),
               ("pp=2,dp=2,zero=3,zero_cut=param", 4), ("tp=2,sp=on,cp=2", 4), ("cp=3,vpp=2,zero=2", 3)]
    for variant in (2, 3):
        losses, options = against_variant(j, variant, layouts)
        path = ["dp=4,zero=1", "tp=2,pp=2", "dp=4,zero=3,zero_cut=param", "dp=3,zero=2", "tp=4"]
        for changes in ({}, {"tight": True}):
            result = j.run(4, layout=path[0], switches=[f"{4 * i + 4}:{l}" for i, l in enumerate(path[1:])], save_every=10,
                           **options, **changes)
            compare(result, losses, 1e-4, "through switches")
            check_switches(result, 4)
        again = j.resume(result.folder, resume=10, layout="tp=2,dp=2,zero=3,zero_cut=dim0", switches=[])
        check(sorted(again.losses) == list(range(1, 21)), f"steps {sorted(again.losses)}")
        compare(again, losses, 1e-4, "from a checkpoint")
        j.run(2, layout="dp=2,zero=3,zero_cut=param", dtype="bfloat16", **options)
    refused(j, 2, ["role exp_avg is not of the same tensors", "fits is dp=2,zero=3,zero_cut=param"], layout="dp=2,zero=3",
            freeze="embed.weight")
    refused(j, 1, ["\"embd*\" fits none", "embed.weight, "], freeze="embd*")
    refused(j, 1, ["nothing is trained"], freeze="*")


UNEVEN = {"model": os.path.join(jobs.HERE, "models/llama-uneven")}


def check_switches(result, count, certificate="ok", **more):
    """So many switches were done, each moving no byte more than it had to."""
    check(len(result.events) == count, f"{len(result.events)} switches instead of {count}")
    for event in result.events:
        name = f"switch to {event['to']} after step {event['step']}"
        if event["certificate"] != certificate or (certificate == "ok" and "error" in event):
            result.fail(f"{name}: certificate {event['certificate']}, {event.get('error')}")
        check(event["bytes_moved"] == event["bytes_minimum"],
              f"{name}: moved {event['bytes_moved']}, minimum {event['bytes_minimum']}")
        peak = event["peak_" + event["mode"]]
        check(event["peak_bytes"] <= peak, f"{name}: peak {event['peak_bytes']}, predicted {peak}")
        for key, value in more.items():
            check(event[key] == value, f"{name}: {key} is {event[key]}, wanted {value}")


def switched_run(j, ranks, layouts, reference, what, tolerance=1e-5, spacing=4, **changes):
    """Trains through the layouts, a switch every few steps; losses must be those of the unswitched run."""
    switches = [f"{spacing * (i + 1)}:{layout}" for i, layout in enumerate(layouts[1:])]
    options = {**UNEVEN, **changes}
    result = j.run(ranks, layout=layouts[0], switches=switches, steps=max(reference), **options)
    worst = compare(result, reference, tolerance, what)
    print(f"{what} on {ranks}: worst relative difference {worst:.2g}, {result.seconds:.1f} s")
    return result


def unswitched(j, steps=30, **changes):
    return j.run(1, layout="dp=1", steps=steps, **{**UNEVEN, **changes}).losses


SIX = {
    1: ["dp=1", "zero=1", "dp=1", "zero=1", "dp=1", "zero=1", "dp=1"],
    2: ["tp=2", "dp=2", "pp=2", "dp=2,zero=1", "dp=1", "tp=2,zero=1", "pp=2"],
    3: ["tp=3", "dp=3,zero=1", "pp=3", "tp=2", "dp=2,zero=1", "dp=3", "tp=3"],
    4: ["tp=4", "pp=2,dp=2,zero=1", "dp=4,zero=1", "tp=2,pp=2", "dp=3,zero=1", "tp=2,dp=2,zero=1", "pp=3"],
    5: ["dp=5,zero=1", "tp=5", "tp=2,pp=2", "order=dp-tp-pp,tp=2,dp=2,zero=1", "dp=1", "pp=2,tp=2", "dp=5"],
    7: ["tp=7", "pp=3,tp=2", "dp=7,zero=1", "tp=2,dp=3,zero=1", "pp=2,dp=3", "tp=3,pp=2", "dp=2"],
    8: ["tp=2,pp=2,dp=2,zero=1", "tp=4,dp=2", "dp=8,zero=1", "pp=2,dp=4,zero=1", "tp=8",
        "order=pp-dp-tp,tp=2,pp=2,dp=2", "dp=3,tp=2,zero=1"],
}


@case
def odd_batches(j):
    """A batch that does not divide: replicas with more micro-batches, fewer, and none."""
    reference = unswitched(j, steps=12, global_batch=7)
    for layout, ranks in (("dp=3", 3), ("dp=3,zero=1", 3), ("dp=5,zero=1", 5), ("pp=2,dp=3", 6), ("pp=3,tp=2", 6),
                          ("dp=3,zero=3", 3), ("dp=5,zero=3,zero_cut=param", 5), ("pp=2,dp=3,zero=3", 6),
                          ("pp=2,dp=5,zero=2,zero_cut=dim0", 10), ("dp=3,cp=2,zero=3", 6),
                          ("dp=3,tp=2,sp=on,zero=1", 6), ("pp=2,dp=3,cp=2", 12)):
        result = j.run(ranks, layout=layout, steps=12, global_batch=7, **UNEVEN)
        worst = compare(result, reference, 1e-5, layout)
        check(result.steps[-1]["samples"] == 84, f"samples {result.steps[-1]['samples']}")
        print(f"batch 7, {layout} on {ranks}: worst relative difference {worst:.2g}")
    result = switched_run(j, 5, ["dp=3,zero=1", "dp=5", "pp=2,dp=2"], reference, "batch 7", global_batch=7)
    check_switches(result, 2)


@case
def switch_quick(j):
    """Losses through switches are those of the run without."""
    reference = unswitched(j, steps=12)
    result = switched_run(j, 4, ["tp=2", "pp=2,dp=2,zero=1", "tp=3"], reference, "three layouts")
    check_switches(result, 2)


@case
def switch_six(j):
    """So they are through six switches among unlike layouts on 1 to 8 ranks."""
    reference = unswitched(j)
    for ranks, layouts in SIX.items():
        check_switches(switched_run(j, ranks, layouts, reference, f"{ranks} ranks"), 6)


LEVELS = ["dp=4", "dp=4,zero=1", "dp=4,zero=2", "dp=4,zero=3", "dp=4,zero=1,zero_cut=param", "dp=4,zero=2,zero_cut=dim0",
          "dp=4,zero=3,zero_cut=param", "dp=3,zero=3,zero_cut=dim0", "dp=4,zero=3,shard=2", "tp=2,pp=2,zero=3",
          "tp=2,dp=2,zero=3,zero_cut=param", "dp=4,zero=2,shard=2", "pp=2,dp=2,zero=3,zero_cut=dim0"]


@case
def switch_zero(j):
    """So they are from any ZeRO level and cut to any other, alone and beside tp and pp."""
    reference = unswitched(j, steps=2 * len(LEVELS))
    result = switched_run(j, 4, LEVELS, reference, "up", spacing=2)
    check_switches(result, len(LEVELS) - 1)
    result = switched_run(j, 4, LEVELS[::-1], reference, "down", spacing=2)
    check_switches(result, len(LEVELS) - 1)
    result = switched_run(j, 4, LEVELS[::2] + LEVELS[1::2], reference, "tight", spacing=2, tight=True)
    check_switches(result, len(LEVELS) - 1, mode="tight")
    for model in ("qwen2-small", "qwen3-small"):
        changes = {"model": os.path.join(jobs.HERE, "models", model)}
        reference = unswitched(j, steps=14, **changes)
        check_switches(switched_run(j, 4, LEVELS[3:10], reference, model, spacing=2, **changes), 6)


DEEP = {"model": os.path.join(jobs.HERE, "models/llama-deep")}
AXES = ["pp=2,vpp=3", "vpp=7", "pp=4", "pp=2,vpp=2,stages=0/1-3/4/5-6,tp=2", "dp=4,zero=3", "pp=2,vpp=2,dp=2,zero=1",
        "tp=2,sp=on,cp=2", "pp=3,vpp=2", "cp=4,zero=3", "order=pp-dp-tp,pp=2,vpp=2,dp=2,zero=3,zero_cut=param",
        "cp=2,dp=2,zero=1", "tp=4", "tp=3,sp=on", "cp=2,pp=2,vpp=2,zero=2,zero_cut=dim0"]


@case
def switch_axes(j):
    """So they are among all axes, in safe mode and in tight mode."""
    reference = unswitched(j, steps=2 * len(AXES), **DEEP)
    for what, layouts, changes in (("there", AXES, {}), ("back", AXES[::-1], {}),
                                   ("tight", AXES[::2] + AXES[1::2], {"tight": True})):
        result = switched_run(j, 4, layouts, reference, what, spacing=2, **DEEP, **changes)
        check_switches(result, len(AXES) - 1)


@case
def back_axes(j):
    """A -> B -> A among all axes gives back every rank's memory bit for bit, and a run repeats its bits."""
    for there, back in zip(AXES, AXES[1:] + AXES[:1]):
        result = j.run(4, layout=there, steps=4, switches=[f"2:{back}", f"2:{there}"], fault_hashes=True, **DEEP)
        check_back(result, f"{there} -> {back} -> {there}")
        again = j.run(4, layout=there, steps=4, **DEEP)
        check(again.losses == result.losses, f"{there}: {again.losses} and {result.losses}")


def random_layout(draw, layers, ranks):
    """Any layout of a dense model with so many layers on so many ranks at most."""
    sizes = dict.fromkeys(("tp", "cp", "dp", "pp"), 1)
    for axis in draw.sample(list(sizes), 4):
        left = ranks // (sizes["tp"] * sizes["cp"] * sizes["dp"] * sizes["pp"])
        sizes[axis] = min(draw.choice((1, 1, 2, 2, 3, 5)), left)
    sizes["vpp"] = draw.randint(1, min(3, layers // sizes["pp"]))
    stages, group = sizes["pp"] * sizes["vpp"], sizes["dp"] * sizes["cp"]
    words = [f"{axis}={size}" for axis, size in sizes.items()]
    words.append(f"zero={draw.randint(0, 3)}")
    words.append("zero_cut=" + draw.choice(("concat", "param", "dim0")))
    words.append(f"shard={draw.choice([n for n in range(1, group + 1) if group % n == 0])}")
    words.append("sp=" + draw.choice(("on", "off")))
    words.append("order=" + "-".join(draw.sample(("tp", "cp", "ep", "dp", "pp"), 5)))
    if draw.random() < 0.5:
        cuts = [0] + sorted(draw.sample(range(1, layers), stages - 1)) + [layers]
        words.append("stages=" + "/".join(f"{a}-{b - 1}" if b - a > 1 else str(a) for a, b in zip(cuts, cuts[1:])))
    return ",".join(words)


@case
def random_axes(j):
    """Losses are those of one rank through any layouts, a switch after every other step, in odd batches too."""
    for seed in range(6):
        draw = random.Random(seed)
        ranks, steps = draw.choice((4, 6, 8, 12)), 24
        changes = {**DEEP, "global_batch": draw.choice((8, 7, 5)), "micro_batch": draw.choice((1, 2, 3)),
                   "seq": draw.choice((32, 13, 5)), "tight": seed % 2 == 1}
        layouts = [random_layout(draw, 7, ranks) for _ in range(steps // 2)]
        reference = unswitched(j, steps=steps, **changes)
        result = switched_run(j, ranks, layouts, reference, f"seed {seed}", spacing=2, **changes)
        check_switches(result, len(layouts) - 1)


@case
def resume_axes(j):
    """A checkpoint of any of them goes on under any other."""
    reference = unswitched(j, steps=8, **DEEP)
    for there, back in zip(AXES, AXES[1:] + AXES[:1]):
        whole = j.run(4, layout=there, steps=8, save_every=4, **DEEP)
        result = j.resume(whole.folder, resume=4, layout=back)
        if result.code != 0 or sorted(result.losses) != list(range(1, 9)):
            result.fail(f"{there}, on as {back}: exit status {result.code}, steps {sorted(result.losses)}")
        worst = compare(result, reference, 1e-5, f"{there}, on as {back}")
        print(f"{there}, saved, on as {back}: worst relative difference {worst:.2g}")
        same = j.resume(whole.folder, resume=4, layout=there)
        check(same.losses == whole.losses, f"{there}, on as it was: {same.losses}, {whole.losses}")
        j.check_clean(same)


@case
def resume_zero(j):
    """A checkpoint of any ZeRO level and cut goes on under any other."""
    reference = unswitched(j, steps=12)
    layouts = ["dp=4,zero=3", "dp=3,zero=2,zero_cut=dim0", "tp=2,dp=2,zero=3,zero_cut=param", "dp=4,zero=3,shard=2",
               "pp=2,dp=2,zero=1", "dp=4"]
    for dtype in ("float32", "bfloat16"):
        for there, back in zip(layouts, layouts[1:] + layouts[:1]):
            whole = j.run(4, layout=there, steps=12, save_every=6, dtype=dtype, **UNEVEN)
            result = j.resume(whole.folder, resume=6, layout=back)
            if result.code != 0 or sorted(result.losses) != list(range(1, 13)):
                result.fail(f"{there}, on as {back}: exit status {result.code}, steps {sorted(result.losses)}")
            if dtype == "float32":
                worst = compare(result, reference, 1e-5, f"{there}, on as {back}")
                print(f"{there}, saved, on as {back}: worst relative difference {worst:.2g}")
            same = j.resume(whole.folder, resume=6, layout=there)
            check(same.losses == whole.losses, f"{dtype} {there}, on as it was: {same.losses}, {whole.losses}")
            j.check_clean(same)


def memory_of(j, ranks, **options):
    """Bytes of each rank's arena, and of its private memory and its ledger, while the job trains."""
    def shared(rank, kind):
        return sum(os.stat(path).st_blocks * 512 for path in j.arenas() if path.endswith(f"-r{rank}.{kind}")
                   and os.path.basename(path).startswith(f"reshard-{os.path.basename(folder)}-"))

    folder, process = j.start(ranks, steps=100000, **options)
    jobs.wait_for(lambda: jobs.last_step(folder) >= 3, 60)
    arenas = [shared(rank, "extent") for rank in range(ranks)]
    other = []
    for rank in range(ranks):
        with open(f"/proc/{jobs.rank_pid(folder, rank)}/status", encoding="ascii") as file:
            other += [int(line.split()[1]) * 1024 + shared(rank, "ledger") for line in file if line.startswith("RssAnon")]
    check(ask(j, "stop", folder).returncode == 0, "not stopped")
    result = j.end(folder, process)
    check(result.code == 0, f"exit status {result.code}: {result.err}")
    return arenas, other


@case
def switch_transports(j):
    """So they are however the bytes travel: arenas, MPI, two nodes, small windows."""
    reference = unswitched(j)
    for what, changes in (("arena", {"transport": "arena"}), ("MPI", {"transport": "mpi"}),
                          ("two nodes", {"ranks_per_node": 2}),
                          ("small window", {"transport": "mpi", "window": 4096})):
        result = switched_run(j, 4, SIX[4], reference, what, **changes)
        check_switches(result, 6)


@case
def switch_tight(j):
    """So they are in tight mode, and the peak is what was predicted."""
    reference = unswitched(j)
    for what, changes in (("tight", {}), ("tight, MPI", {"transport": "mpi"}),
                          ("tight, two nodes", {"ranks_per_node": 2})):
        result = switched_run(j, 4, SIX[4], reference, what, tight=True, **changes)
        check_switches(result, 6, mode="tight")


@case
def switch_models(j):
    """So they are with biases, untied embeddings, and norms of heads."""
    for model in ("qwen2-small", "qwen3-small"):
        changes = {"model": os.path.join(jobs.HERE, "models", model)}
        reference = unswitched(j, steps=20, **changes)
        result = switched_run(j, 4, ["tp=4", "pp=2,dp=2,zero=1", "tp=3", "dp=4,zero=1", "tp=2,pp=2"], reference,
                              model, **changes)
        check_switches(result, 4)


def check_back(result, what):
    """Two switches, there and back: the same memory on every rank, and the same sums."""
    check_switches(result, 2)
    out, home = result.events
    check(out["old_hashes"] == home["new_hashes"], f"{what}: memory differs")
    check(out["new_hashes"] == home["old_hashes"], f"{what}: memory changed between")
    check(out["old_hashes"] != out["new_hashes"], "the hashes tell nothing")
    pick = lambda e: [word for i, word in enumerate(e["sums"]) if i % 6 < 2]
    check(pick(out) == pick(home), f"{what}: sums differ")
    print(f"{what}: the same bits")


@case
def there_and_back(j):
    """A -> B -> A with no step between gives back every rank's memory bit for bit, and the same sums."""
    for what, changes in (("fp32", {}), ("bf16", {"dtype": "bfloat16"}), ("tight", {"tight": True}),
                          ("MPI", {"transport": "mpi"})):
        for there, back in (("tp=2,dp=2,zero=1", "pp=3"), ("tp=4", "dp=4,zero=1"), ("pp=2,dp=2", "tp=3"),
                            ("dp=4,zero=3", "dp=3,zero=2,zero_cut=dim0"), ("dp=4,zero=3,zero_cut=param", "tp=2,pp=2"),
                            ("tp=2,dp=2,zero=3,zero_cut=dim0", "dp=4,zero=3,shard=2")):
            result = j.run(4, layout=there, steps=6, switches=[f"3:{back}", f"3:{there}"], fault_hashes=True,
                           **UNEVEN, **changes)
            check_back(result, f"{what}: {there} -> {back} -> {there}")


@case
def before_the_first_step(j):
    """A switch before the first step and one after the last are done, too."""
    reference = unswitched(j, steps=6)
    result = j.run(3, layout="tp=2", steps=6, switches=["0:dp=3,zero=1", "6:pp=2"], **UNEVEN)
    compare(result, reference, 1e-5, "at both ends")
    check_switches(result, 2)


@case
def certificate_fails(j):
    """A spoilt move is noticed and rolled back, and the job trains on with the loss it would have had."""
    reference = unswitched(j, steps=16)
    for changes in ({}, {"transport": "mpi"}):
        result = j.run(4, layout="tp=2,dp=2,zero=1", steps=16, switches=["4:pp=2", "8:tp=4", "12:dp=3"],
                       fault_certificate_switch=2, **UNEVEN, **changes)
        compare(result, reference, 1e-5, "rolled back")
        events = result.events
        check([event["certificate"] for event in events] == ["ok", "failed", "ok"], f"{events}")
        check("error" in events[1] and "error" not in events[2], f"{events}")
        layouts = [line["layout"] for line in result.steps]
        check(layouts[4:12] == ["pp=2"] * 8 and layouts[12] == "dp=3", f"layouts {layouts}")
        print(f"rolled back: {events[1]['error']}")


@case
def certificate_fails_tight(j):
    """In tight mode there is no way back: the job ends and says so."""
    result = j.run(4, good=False, layout="tp=2,dp=2,zero=1", switches=["4:pp=2"], fault_certificate_switch=1,
                   tight=True, **UNEVEN)
    if result.code == 0 or "could not be undone" not in result.err:
        result.fail(f"exit status {result.code}")
    check(max(result.losses) == 4, f"steps {sorted(result.losses)}")
    j.check_clean(result)


@case
def no_room(j):
    """A switch without room is given up before anything moves, and the job trains on."""
    reference = unswitched(j, steps=16)
    result = j.run(4, layout="tp=2,dp=2,zero=1", steps=16, switches=["4:pp=2", "8:tp=4"], fault_room_switch=1,
                   **UNEVEN)
    compare(result, reference, 1e-5, "no room")
    check([event["certificate"] for event in result.events] == ["none", "ok"], f"{result.events}")
    check("no room" in result.events[0]["error"], f"{result.events[0]}")


@case
def phases_fail(j):
    """A move that fails and a new layout that cannot be set up are rolled back, too."""
    reference = unswitched(j, steps=16)
    for fault, certificate, words in (("fault_move_switch", "none", "is not mapped"),
                                      ("fault_commit_switch", "ok", "rank 3: no working memory")):
        result = j.run(4, layout="tp=2,dp=2,zero=1", steps=16, switches=["4:pp=2", "8:tp=4,zero=1"], **UNEVEN,
                       **{fault: 1})
        compare(result, reference, 1e-5, fault)
        first, second = result.events
        check(first["certificate"] == certificate and words in first["error"], f"{fault}: {first}")
        check("error" not in second and result.steps[9]["layout"] == "tp=4,zero=1", f"{fault}: {second}")


@case
def small_memory(j):
    """Shared memory that is too small for a switch: refused beforehand if it is known, else given up in time."""
    folder = os.path.join(j.folder, "shm")
    os.mkdir(folder)
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        raise jobs.Skipped("only root can mount a file system")
    try:
        refused(j, 4, ["the switch to dp=4 needs", folder, "there are", "--tight"], layout="tp=2",
                switches=["5:dp=4"], arena_dir=folder, **UNEVEN)
        running, process = j.start(4, layout="tp=2", steps=100000, arena_dir=folder, **UNEVEN)
        jobs.wait_for(lambda: jobs.last_step(running) >= 2, 30)
        for layout, code, words in (("dp=4", 1, "bytes) are free"), ("pp=2", 0, '"state":"done"')):
            reply = ask(j, "switch", running, layout)
            check(reply.returncode == code and words in reply.stdout + reply.stderr, f"switch to {layout}: {reply}")
        check(ask(j, "stop", running).returncode == 0, "not stopped")
        result = j.end(running, process)
        check(result.code == 0, f"exit status {result.code}: {result.err}")
        check(not os.listdir(folder), f"left over: {os.listdir(folder)}")
    finally:
        subprocess.run(["umount", "-l", folder], check=False)


@case
def bfloat16(j):
    """With bf16 parameters every switch keeps the state bit for bit, and losses stay in the spread of layouts."""
    spread = [j.run(4, layout=layout, steps=24, dtype="bfloat16", **UNEVEN).losses
              for layout in ("dp=1", "tp=2", "pp=2,dp=2", "dp=4,zero=1")]
    result = j.run(4, layout="tp=4", steps=24, dtype="bfloat16",
                   switches=["4:pp=2,dp=2,zero=1", "8:tp=3", "12:dp=4,zero=1", "16:tp=2,pp=2", "20:dp=1"], **UNEVEN)
    check_switches(result, 5)
    for step, loss in result.losses.items():
        values = [run[step] for run in spread]
        width = max(values) - min(values) + 2e-3 * values[0]
        check(min(values) - width <= loss <= max(values) + width, f"step {step}: loss {loss}, spread {values}")


# Axes and levels that bfloat16 above has not: (model, layouts with their ranks).
BFLOAT16 = [("llama-deep", [("pp=2,vpp=2,dp=2", 4), ("tp=2,sp=on,dp=2,zero=1", 4), ("cp=2,dp=2", 4), ("dp=3,zero=2", 3),
                            ("dp=4,zero=3", 4), ("dp=3,zero=3,zero_cut=dim0", 3), ("dp=4,zero=2,zero_cut=param", 4),
                            ("tp=2,sp=on,cp=2,pp=2,vpp=2,zero=3", 8)]),
            ("qwen2-moe-small", [("dp=4,ep=4", 4), ("tp=2,dp=2,etp=1,ep=4,zero=2", 4), ("cp=2,dp=2,ep=4,zero=3", 4),
                                 ("vpp=3,dp=2,ep=2,zero=3,zero_cut=param", 2), ("pp=3,tp=2,etp=2,sp=on", 6)])]


@case
def bfloat16_axes(j):
    """So they do under every axis and ZeRO level: losses stay near those in float32, and a checkpoint goes on to the bit."""
    for model, layouts in BFLOAT16:
        changes = {"model": os.path.join(jobs.HERE, "models", model), "steps": 16}
        exact = unswitched(j, **changes)
        for layout, ranks in layouts:
            whole = j.run(ranks, layout=layout, dtype="bfloat16", save_every=8, **changes)
            worst = compare(whole, exact, 5e-3, f"bfloat16, {model}, {layout}")
            again = j.resume(whole.folder, resume=8)
            check(again.losses == whole.losses, f"{model}, {layout}: {again.losses} instead of {whole.losses}")
            print(f"bfloat16, {model}, {layout} on {ranks}: within {worst:.2g} of float32, and resumed to the bit")
            check(worst > 1e-6, f"{model}, {layout}: that is float32")
        path = [layout for layout, ranks in layouts if ranks <= 4]
        result = j.run(4, layout=path[0], dtype="bfloat16", switches=[f"{3 * i + 3}:{l}" for i, l in enumerate(path[1:5])],
                       **changes)
        check_switches(result, len(path[1:5]))
        compare(result, exact, 5e-3, f"bfloat16, {model}, through switches")


@case
def repeats(j):
    """A layout repeats its run bit for bit."""
    for layout, ranks in (("tp=3", 3), ("tp=2,dp=2,zero=1", 4)):
        runs = [j.run(ranks, layout=layout, steps=8, **UNEVEN).losses for _ in range(2)]
        check(runs[0] == runs[1], f"{layout}: {runs}")


@case
def requests(j):
    """A running job switches when asked to, and refuses what cannot be done."""
    folder, process = j.start(4, layout="tp=2", steps=1000000, lr=1e-4, **UNEVEN)
    jobs.wait_for(lambda: jobs.last_step(folder) >= 2, 30)
    for layout, status, words in (("tp=2", 1, "already"), ("tp=5", 1, "needs 5 ranks"), ("tp=0", 1, "tp"),
                                  ("pp=2,dp=2,zero=1", 0, '"state":"done"'), ("dp=3", 0, '"certificate":"ok"'),
                                  ("dp=3", 1, "already")):
        reply = ask(j, "switch", folder, layout)
        if reply.returncode != status or words not in reply.stdout + reply.stderr:
            raise jobs.Failed(f"switch to {layout}: {reply}")
    first, second = (j.spawn([j.driver, "switch", folder, layout]) for layout in ("tp=4", "pp=2"))
    codes = {first.wait(60), second.wait(60)}
    check(codes <= {0, 1} and 0 in codes, f"two at a time: {codes}")
    status = ask(j, "status", folder)
    check('"running": true' in status.stdout and '"state": "training"' in status.stdout, f"status: {status}")
    stop = ask(j, "stop", folder)
    check(stop.returncode == 0, f"stop: {stop}")
    result = j.end(folder, process)
    check(result.code == 0 and "end 1" in result.out, f"exit status {result.code}: {result.out[-500:]}")
    check(ask(j, "switch", folder, "dp=1").returncode == 1, "a job that is over answers")
    check([line["step"] for line in result.steps] == list(range(1, len(result.steps) + 1)), "steps are not in order")
    check(not os.listdir(os.path.join(folder, "requests")), "requests are left over")
    j.check_clean(result)


def ask(j, *words):
    """A client's request."""
    return subprocess.run([j.driver, *words], capture_output=True, text=True, timeout=60, check=False)


def refused(j, ranks, words, **changes):
    result = j.run(ranks, good=False, **changes)
    text = result.out + result.err
    if result.code == 0 or any(word not in text for word in words):
        result.fail(f"wanted a refusal with the words {words}, got exit status {result.code}")
    check(not result.steps, "steps were trained all the same")
    j.check_clean(result)


@case
def refusals(j):
    """What cannot work is refused before training, with the reason and the numbers."""
    refused(j, 1, ["data file", "/nowhere", "No such file"], data="/nowhere")
    refused(j, 1, ["data.txt", "30011 bytes", "needs 40001"], seq=40000)
    refused(j, 2, ["needs 4 ranks", "has 2"], layout="tp=4")
    refused(j, 2, ["layout", "already"], layout="tp=2", switches=["5:tp=2"])
    refused(j, 4, ["pp"], layout="pp=4")
    refused(j, 1, ["no_such_key"], no_such_key=1)
    refused(j, 1, ["iB in /dev/shm", "there are", "--arena-dir"], model="llama3-70b")
    refused(j, 2, ["its step must be"], switches=["21:tp=2"])


@case
def in_use(j):
    """One job directory, one job; and an earlier run is not overwritten."""
    folder, process = j.start(1, steps=100000)
    jobs.wait_for(lambda: os.path.exists(os.path.join(folder, "metrics.jsonl")), 20)
    second = subprocess.run(j.command(1, folder), capture_output=True, text=True, timeout=60, check=False)
    check(second.returncode != 0 and "in use by process" in second.stderr, f"not refused: {second.stderr}")
    os.kill(jobs.rank_pid(folder), signal.SIGTERM)
    first = j.end(folder, process)
    check(first.code == 0 and "end 2" in first.out, f"SIGTERM did not end the job: {first.out[-500:]} {first.err}")
    again = subprocess.run(j.command(1, folder), capture_output=True, text=True, timeout=60, check=False)
    check(again.returncode != 0 and "holds an earlier run" in again.stderr, f"not refused: {again.stderr}")
    j.check_clean(first)


@case
def rank_killed(j):
    """A killed rank ends the job within seconds; the arenas stay, and the record names them."""
    for ranks, rank, layout, holding in ((2, 1, "dp=2,zero=1", 2), (4, 0, "tp=2,pp=2", 4), (3, 2, "dp=1", 1)):
        folder, process = j.start(ranks, layout=layout, steps=100000)
        jobs.wait_for(lambda: jobs.last_step(folder) >= 2, 30)
        os.kill(jobs.rank_pid(folder, rank), signal.SIGKILL)
        begun = time.monotonic()
        result = j.end(folder, process, timeout=30)
        took = time.monotonic() - begun
        if result.code == 0 or took > 10:
            result.fail(f"{layout}: rank {rank} of {ranks} killed: exit status {result.code} after {took:.1f} s")
        left = sorted(os.path.basename(path).split("-")[-2:] for path in j.left(result))
        wanted = sorted(["g0", f"r{r}.{kind}"] for r in range(holding) for kind in ("extent", "ledger", "table"))
        check(left == wanted, f"{layout}: in shared memory: {left}, wanted {wanted}")
        with open(os.path.join(folder, "state.json"), encoding="utf-8") as file:
            record = json.load(file)
        check(record["generation"] == 0 and record["layout"] == layout, f"the record: {record}")
        for path in j.left(result):
            os.unlink(path)
        print(f"{layout}, rank {rank} of {ranks} killed: over after {took:.1f} s")


@case
def diverges(j):
    """A loss that is no number ends the job with advice."""
    result = j.run(3, good=False, layout="tp=2", lr=9e5, warmup=0, **UNEVEN)
    if result.code == 0 or "is not finite" not in result.err:
        result.fail(f"exit status {result.code}")
    jobs.wait_for(lambda: not j.left(result), 5)


@case
def rank_fails(j):
    """A rank that fails alone ends the job, naming itself and the cause."""
    result = j.run(3, good=False, layout="dp=3,zero=1", fault_error_step=4, fault_error_rank=2)
    if result.code == 0 or "failed on rank 2" not in result.err or "in step 4" not in result.err:
        result.fail(f"exit status {result.code}")
    check(max(result.losses) == 3, f"steps done: {sorted(result.losses)}")
    jobs.wait_for(lambda: not j.left(result), 5)
    j.check_clean(result)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--driver", required=True)
    parser.add_argument("--mpirun", required=True)
    parser.add_argument("cases", nargs="+", choices=sorted(CASES))
    a = parser.parse_args()
    for name in a.cases:
        j = jobs.Jobs(a.driver, a.mpirun)
        try:
            CASES[name](j)
        except jobs.Skipped as skipped:
            print(f"{name}: skipped: {skipped}")
            return 77
        except jobs.Failed as failed:
            print(f"{name}: {CASES[name].__doc__}\nFAILED: {failed}")
            return 1
        finally:
            j.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
