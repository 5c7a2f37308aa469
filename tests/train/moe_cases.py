#!/usr/bin/env python3
"""Training jobs of models with experts: `moe_cases.py --driver PROGRAM --mpirun MPIRUN CASE`. As cases.py."""
import glob
import os

import jobs
from cases import against_oracle, case, check_back, check_switches, main
from jobs import check, compare, oracle

MODELS = ("mixtral-small", "qwen2-moe-small", "qwen3-moe-small")
BIASED = "qwen3-moe-bias"  # its router has a bias


def path(model):
    return os.path.join(jobs.HERE, "models", model)


def routing_of(result):
    """(step, layer) -> the experts of the step's tokens, as in the oracle."""
    parts = {}
    for name in glob.glob(os.path.join(result.folder, "routing-*.txt")):
        with open(name, encoding="ascii") as file:
            for line in file:
                step, layer, sequence, position, *experts = line.split()
                parts.setdefault((int(step), int(layer)), {})[int(sequence), int(position)] = \
                    "".join(f"{int(e):x}" for e in experts)
    return {key: "".join(text for _, text in sorted(value.items())) for key, value in parts.items()}


def check_routing(result, content, what):
    """Every token of every step and layer passes through PyTorch's experts, but where its choice is close."""
    got = routing_of(result)
    k, first = content["chosen"], None
    layers = sorted({layer for _, layer in got})
    tokens = close = 0
    for step, wanted in enumerate(content["routing"], 1):
        check(len(wanted) == len(layers), f"{what}: layers {layers} have routers, wanted {len(wanted)}")
        for i, layer in enumerate(layers):
            text = got.get((step, layer), "")
            if len(text) != len(wanted[i]):
                result.fail(f"{what}: step {step}, layer {layer}: {len(text) // k} tokens, wanted {len(wanted[i]) // k}")
            allowed = set(content["close"][step - 1][i])
            for token in range(len(text) // k):
                a, b = (t[token * k:token * k + k] for t in (text, wanted[i]))
                tokens += 1
                if a != b and token not in allowed:
                    result.fail(f"{what}: step {step}, layer {layer}, token {token}: experts {a}, PyTorch has {b}")
            close += len(allowed)
    counted = sum(line["close_choices"] for line in result.steps)
    check(abs(counted - close) <= 0.1 * close + 4, f"{what}: {counted} close choices counted, PyTorch has {close}")
    return tokens


def experts_against_oracle(j, model, layouts, **changes):
    _, content = oracle(model)
    for layout, ranks in layouts:
        (result,) = against_oracle(j, model, [(layout, ranks)], fault_routing=True, **changes)
        tokens = check_routing(result, content, f"{model} {layout}")
        for line, wanted in zip(result.steps, content["aux_losses"]):
            check(abs(line["aux_loss"] - wanted) <= 1e-4 * wanted,
                  f"{model} {layout}: step {line['step']} has balance loss {line['aux_loss']}, wanted {wanted}")
        print(f"{model} {layout} on {ranks}: {tokens} choices of experts as PyTorch's")


@case
def experts_quick(j):
    """Losses, balance and every choice of experts are PyTorch's: one rank, and experts dealt unevenly."""
    experts_against_oracle(j, "mixtral-small", [("dp=1", 1), ("dp=4,ep=4", 4)])


@case
def experts_oracle(j):
    """So they are on every mesh of experts, and together with the other axes."""
    layouts = [("dp=1", 1), ("dp=2,ep=2", 2), ("dp=4,ep=4", 4), ("tp=2,ep=2,etp=1", 2), ("tp=2,etp=2", 2),
               ("tp=2,etp=1", 2), ("pp=2,dp=2,ep=2", 4), ("dp=2,ep=2,zero=1", 2), ("dp=4,ep=2,zero=1", 4)]
    for model in MODELS:
        experts_against_oracle(j, model, layouts)


@case
def experts_odd(j):
    """So they are with experts that several ranks hold, ranks without rows, other orders, and all of ZeRO."""
    layouts = [("dp=8,ep=8", 8), ("tp=2,dp=4,ep=8,etp=1,zero=1", 8), ("dp=4,etp=4", 4), ("tp=3,etp=1,zero=1", 3),
               ("tp=2,dp=2,etp=2,ep=2", 4), ("order=pp-dp-tp-cp-ep,pp=3,dp=2,ep=2", 6),
               ("dp=3,ep=3,zero=3", 3), ("dp=4,ep=2,zero=2", 4), ("tp=2,dp=2,etp=1,ep=2,zero=3,zero_cut=dim0", 4),
               ("dp=4,ep=2,zero=3,zero_cut=param,shard=2", 4), ("tp=2,pp=2,dp=2,ep=2,etp=1,zero=1", 8)]
    for model in MODELS[:2]:
        experts_against_oracle(j, model, layouts)
    experts_against_oracle(j, "qwen3-moe-small", [("dp=2,ep=2", 2)], threads=2, micro_batch=3)
    experts_against_oracle(j, "qwen3-moe-small", [("pp=2,vpp=2,dp=2,ep=2", 4),
                                                  ("tp=2,pp=2,vpp=2,dp=2,ep=4,etp=1,zero=3", 8)])


@case
def experts_axes(j):
    """So they are with sequence and context parallelism, and under every axis at once."""
    layouts = [("tp=2,sp=on", 2), ("cp=2", 2), ("cp=2,ep=2", 2), ("cp=3,ep=3", 3), ("tp=2,cp=2,ep=4,etp=1,sp=on", 4),
               ("cp=2,dp=2,ep=4,zero=1", 4), ("pp=3,cp=2,tp=2,sp=on,ep=2,etp=2,zero=3", 12)]
    for model in MODELS:
        experts_against_oracle(j, model, layouts)
    experts_against_oracle(j, "qwen3-moe-small", [("tp=2,sp=on,cp=2,pp=2,vpp=2,dp=2,ep=4,etp=1,zero=3", 16),
                                                  ("order=dp-cp-ep-tp-pp,tp=2,cp=2,dp=2,ep=2,etp=2,zero=2", 8)])
    experts_against_oracle(j, "mixtral-small", [("cp=2,dp=3,ep=6", 6)], micro_batch=3)


def unswitched(j, model, steps=20, **changes):
    return j.run(1, layout="dp=1", steps=steps, model=path(model), fault_routing=True, **changes)


def first_turn(result, reference, k):
    """The first step in which a token passes through other experts than in the reference, and how many do."""
    got, wanted = routing_of(result), routing_of(reference)
    for key in sorted(wanted):
        if got.get(key) != wanted[key]:
            step = key[0]
            keys = [other for other in wanted if other[0] == step]
            turned = sum(got[other][t:t + k] != wanted[other][t:t + k]
                         for other in keys for t in range(0, len(wanted[other]), k))
            return step, turned
    return None, 0


def compare_choices(result, reference, what, k):
    """Losses within 1e-5 of the reference's until rounding turns a close choice of experts, if it does; from then
    on the two train on unlike sums. Not more tokens turn at first than are reported to be close."""
    step, turned = first_turn(result, reference, k)
    before = {s: loss for s, loss in reference.losses.items() if step is None or s < step}
    worst = compare(result, before, 1e-5, what)
    if step is not None:
        close = result.steps[step - 1]["close_choices"]
        check(turned <= close, f"{what}: step {step}: {turned} tokens have other experts, {close} choices are close")
        check(step > 4, f"{what}: other experts from step {step} on")
        compare(result, reference.losses, 2e-2, what)
    print(f"{what}: worst relative difference {worst:.2g}, " +
          ("the same experts" if step is None else f"{turned} of {close} close choices turned in step {step}"))


@case
def experts_batches(j):
    """A batch of seven on three replicas: those with fewer micro-batches, or none, take part in every exchange."""
    for model in MODELS:
        reference = unswitched(j, model, steps=10, global_batch=7)
        k = oracle(model)[1]["chosen"]
        for layout, ranks in (("dp=3,ep=3", 3), ("dp=3,ep=3,zero=1", 3), ("dp=3,ep=3,zero=3", 3), ("dp=5,ep=5", 5),
                              ("dp=3,ep=1", 3), ("pp=2,dp=3,ep=3", 6), ("tp=2,dp=3,ep=6,etp=1", 6)):
            result = j.run(ranks, layout=layout, steps=10, global_batch=7, model=path(model), fault_routing=True)
            compare_choices(result, reference, f"{model}, batch 7, {layout} on {ranks}", k)


def switched(j, model, what, steps, layouts, **changes):
    reference = unswitched(j, model, steps=steps)
    switches = [f"{4 * (i + 1)}:{layout}" for i, layout in enumerate(layouts[1:])]
    result = j.run(4, layout=layouts[0], switches=switches, steps=steps, model=path(model), fault_routing=True,
                   **changes)
    compare_choices(result, reference, what, oracle(model)[1]["chosen"])
    check_switches(result, len(layouts) - 1)


@case
def experts_switch(j):
    """Losses through switches among meshes of experts are those of the run without."""
    for model in MODELS:
        switched(j, model, model, 32, ["dp=2,ep=2", "tp=2,dp=2,ep=4,etp=1,zero=1", "pp=2,dp=2,ep=2", "tp=2,etp=2",
                                       "dp=4,ep=4,zero=1", "dp=1", "tp=3,etp=1", "dp=4,ep=2,zero=3"])
    for what, changes in (("tight", {"tight": True}), ("MPI", {"transport": "mpi"})):
        switched(j, MODELS[1], what, 16,
                 ["dp=4,ep=4,zero=1", "tp=2,dp=2,etp=2,ep=2", "pp=3", "dp=4,ep=2,zero=1"], **changes)


# No choice of these 4,096, of which rounding could turn one, has a smaller margin in PyTorch than 2e-6.
WIDE = {"model": path("qwen3-moe-small"), "steps": 16, "global_batch": 4, "seq": 16, "seed": 31, "fault_routing": True}


@case
def experts_equal(j):
    """Where no choice is close every token has its experts under every layout and through every switch, and losses keep
    their 1e-5."""
    reference = j.run(1, layout="dp=1", **WIDE)
    wanted = routing_of(reference)
    layouts = ["dp=2,ep=2", "tp=2,dp=2,ep=4,etp=1,zero=1", "pp=2,dp=2,ep=2", "tp=2,etp=2", "dp=4,ep=4,zero=1", "tp=3,etp=1",
               "dp=4,ep=2,zero=3", "cp=2,ep=2,zero=1"]
    runs = [(layout, {"layout": layout}) for layout in layouts]
    runs.append(("through switches", {"layout": layouts[0],
                                      "switches": [f"{2 * i + 2}:{layout}" for i, layout in enumerate(layouts[1:])]}))
    for what, changes in runs:
        result = j.run(4, **{**WIDE, **changes})
        worst = compare(result, reference.losses, 1e-5, what)
        check(routing_of(result) == wanted, f"{what}: tokens have other experts")
        print(f"{what}: worst relative difference {worst:.2g}, {sum(map(len, wanted.values())) // 3} choices the same")


@case
def experts_bias(j):
    """So they are where routers have a bias, which is moved by how many tokens chose each expert: state like any other."""
    layouts = [("dp=1", 1), ("dp=4,ep=4", 4), ("tp=2,dp=2,etp=1,ep=4,zero=1", 4), ("pp=3,dp=2,ep=2", 6),
               ("cp=2,tp=2,sp=on,ep=2,etp=2,zero=2", 4), ("dp=3,ep=3,zero=3", 3), ("dp=4,ep=2,zero=3,zero_cut=param", 4),
               ("tp=2,dp=2,ep=2,zero=2,zero_cut=dim0", 4)]
    experts_against_oracle(j, BIASED, layouts)
    meshes = [layout for layout, _ in layouts if layout not in ("dp=1", "pp=3,dp=2,ep=2")]
    switched(j, BIASED, "bias", 24, meshes)
    for there, back in zip(meshes, meshes[1:] + meshes[:1]):
        result = j.run(4, layout=there, steps=4, switches=[f"2:{back}", f"2:{there}"], fault_hashes=True, model=path(BIASED))
        check_back(result, f"{there} -> {back} -> {there}")
    whole = j.run(4, layout=meshes[0], steps=8, save_every=4, model=path(BIASED), dtype="bfloat16")
    again = j.resume(whole.folder, resume=4)
    check(again.losses == whole.losses, f"bfloat16: {again.losses} instead of {whole.losses}")
    for changes in ({"optimizer": "sgd", "lr": 0.03}, {"optimizer": "muon", "lr": 0.01}, {"freeze": "layers.router.bias"}):
        reference = unswitched(j, BIASED, steps=8, **changes)
        result = j.run(4, layout="dp=4,ep=4", steps=8, model=path(BIASED), fault_routing=True, **changes)
        compare_choices(result, reference, f"bias, {changes}", oracle(BIASED)[1]["chosen"])


@case
def experts_there_and_back(j):
    """A -> B -> A with no step between gives back every rank's memory bit for bit, and the same sums."""
    for what, changes in (("fp32", {}), ("bf16", {"dtype": "bfloat16"})):
        for there, back in (("dp=4,ep=4,zero=1", "tp=2,dp=2,etp=1,ep=2"), ("tp=2,etp=2,dp=2", "pp=2,dp=2,ep=2,zero=1"),
                            ("dp=4,ep=2", "dp=1")):
            result = j.run(4, layout=there, steps=6, switches=[f"3:{back}", f"3:{there}"], fault_hashes=True,
                           model=path("qwen2-moe-small"), **changes)
            check_switches(result, 2)
            out, home = result.events
            check(out["old_hashes"] == home["new_hashes"], f"{what}, {there}, {back}: memory differs")
            check(out["new_hashes"] == home["old_hashes"], f"{what}, {there}, {back}: memory changed between")
            check(out["old_hashes"] != out["new_hashes"], "the hashes tell nothing")
            print(f"{what}: {there} -> {back} -> {there}: the same bits")


TOGETHER = ["cp=2,ep=2,zero=1", "tp=2,sp=on,etp=1", "cp=4,ep=4,zero=3", "pp=2,vpp=1,cp=2,ep=2,etp=1",
            "tp=2,cp=2,sp=on,etp=2,ep=2,zero=2", "dp=2,cp=2,ep=4", "vpp=3,dp=3,ep=3,zero=3,zero_cut=param"]


@case
def experts_together(j):
    """Experts beside sequence and context parallelism and interleaved stages: switches, in safe and in tight mode,
    and back; checkpoints go on under any other layout."""
    switched(j, MODELS[1], "together", 32, TOGETHER)
    switched(j, MODELS[0], "together, tight", 32, TOGETHER[::-1], tight=True)
    for there, back in zip(TOGETHER, TOGETHER[1:] + TOGETHER[:1]):
        result = j.run(4, layout=there, steps=4, switches=[f"2:{back}", f"2:{there}"], fault_hashes=True,
                       model=path("qwen2-moe-small"))
        check_back(result, f"{there} -> {back} -> {there}")
        saved = j.run(4, layout=there, steps=6, save_every=3, model=path("qwen2-moe-small"), fault_routing=True)
        result = j.resume(saved.folder, resume=3, layout=back)
        if result.code != 0 or sorted(result.losses) != list(range(1, 7)):
            result.fail(f"{there}, on as {back}: exit status {result.code}, steps {sorted(result.losses)}")
        worst = compare(result, saved.losses, 1e-5, f"{there}, on as {back}")
        print(f"{there}, saved, on as {back}: worst relative difference {worst:.2g}")
        same = j.resume(saved.folder, resume=3, layout=there)
        check(same.losses == saved.losses, f"{there}, on as it was: {same.losses}, {saved.losses}")


@case
def experts_resume(j):
    """A checkpoint written under a mesh of experts goes on under any other, to the bit under its own."""
    layouts = ["dp=4,ep=4,zero=1", "tp=2,dp=2,etp=1,ep=4", "pp=2,dp=2,ep=2,zero=3,zero_cut=param", "tp=2,dp=2,etp=2,ep=2",
               "dp=8,ep=8"]
    for model, dtype in ((MODELS[1], "float32"), (MODELS[1], "bfloat16"), (MODELS[0], "float32")):
        reference = unswitched(j, model, steps=10)
        for there, back in zip(layouts, layouts[1:] + layouts[:1]):
            whole = j.run(8, layout=there, steps=10, save_every=5, dtype=dtype, model=path(model))
            result = j.resume(whole.folder, resume=5, layout=back)
            if result.code != 0 or sorted(result.losses) != list(range(1, 11)):
                result.fail(f"{there}, on as {back}: exit status {result.code}, steps {sorted(result.losses)}")
            if dtype == "float32":
                worst = compare(result, reference.losses, 1e-5, f"{there}, on as {back}")
                print(f"{model}, {there}, saved, on as {back}: worst relative difference {worst:.2g}")
            same = j.resume(whole.folder, resume=5, layout=there)
            check(same.losses == whole.losses, f"{dtype} {there}, on as it was: {same.losses}, {whole.losses}")
            j.check_clean(same)


@case
def experts_optimizers(j):
    """So they are with another optimizer, and with experts, routers or all but these frozen."""
    for changes in ({"optimizer": "sgd", "lr": 0.03}, {"freeze": "layers.experts.*"}, {"freeze": "layers.router.*"},
                    {"freeze": "layers.attn*,embed.*,head.*,norm.*,layers.mlp*,layers.shared.*"}):
        reference = unswitched(j, MODELS[1], steps=10, **changes)
        for layout in ("dp=4,ep=4", "tp=2,dp=2,etp=1,ep=2,zero=1,zero_cut=param", "pp=2,dp=2,ep=2,zero=3,zero_cut=dim0"):
            result = j.run(4, layout=layout, steps=10, model=path(MODELS[1]), fault_routing=True, **changes)
            compare_choices(result, reference, f"{changes}, {layout}", oracle(MODELS[1])[1]["chosen"])


MIXED = "qwen2-moe-mixed"  # eight layers, of which numbers 1, 5 and 7 have experts


@case
def experts_mixed(j):
    """So they are where layers with and without experts follow each other in any order: trained, switched, saved."""
    layouts = [("dp=1", 1), ("dp=2,ep=2", 2), ("pp=3,tp=2,etp=1", 6), ("tp=2,dp=2,etp=1,ep=4,zero=1", 4),
               ("pp=2,vpp=2,dp=2,ep=2,zero=3", 4), ("cp=2,ep=2,zero=3,zero_cut=param", 2),
               ("pp=8,stages=0/1/2/3/4/5/6/7", 8)]
    experts_against_oracle(j, MIXED, layouts)
    path_of = ["dp=2,ep=2,zero=3", "pp=4", "tp=2,dp=2,etp=2,ep=2,zero=1", "pp=2,vpp=4,dp=2,zero=2", "cp=2,dp=2,ep=4", "dp=1"]
    switched(j, MIXED, "mixed", 24, path_of)
    switched(j, MIXED, "mixed, tight", 24, path_of[::-1], tight=True)
    for there, back in zip(path_of, path_of[1:] + path_of[:1]):
        saved = j.run(4, layout=there, steps=6, save_every=3, model=path(MIXED))
        result = j.resume(saved.folder, resume=3, layout=back)
        compare(result, saved.losses, 1e-5, f"{there}, on as {back}")


@case
def experts_repeat(j):
    """A layout repeats its run bit for bit, whichever replica a token's expert is with."""
    for layout, ranks in (("dp=4,ep=4", 4), ("tp=2,dp=2,ep=4,etp=1,zero=1", 4), ("dp=8,ep=8", 8)):
        runs = [j.run(ranks, layout=layout, steps=8, model=path("mixtral-small")) for _ in range(2)]
        pairs = [[(line["loss"], line["grad_norm"], line["aux_loss"]) for line in run.steps] for run in runs]
        check(pairs[0] == pairs[1], f"{layout}: {pairs}")


@case
def experts_refusals(j):
    """What cannot be trained is refused by name, before anything starts, with the nearest layout that can."""
    for layout, words in (("dp=2,ep=2", "the model has no experts"), ("tp=2,etp=1", "the model has no experts")):
        result = j.run(2, good=False, layout=layout)
        if result.code == 0 or words not in result.err or "nearest" not in result.err:
            result.fail(f"{layout}: exit status {result.code}")
    result = j.run(1, good=False, model="deepseek-tiny")
    if result.code == 0 or "latent attention" not in result.err:
        result.fail(f"deepseek-tiny: exit status {result.code}")


if __name__ == "__main__":
    import sys
    sys.exit(main())
