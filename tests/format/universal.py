"""How tensors of universal checkpoints are said to be cut, and the shapes that they are written in.

    universal.py RESHARD

A universal checkpoint and rules for it are made, and converted for several tensor-parallel degrees and versions; what
is written is read with Python's own pickle, in which every class is a stand-in.
"""
import collections
import io
import json
import math
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import types
import zipfile

RESHARD = os.path.abspath(sys.argv[1])
SHAPES = {"heads": [36, 12], "qkv": [48, 12], "one": [24, 12], "halves": [16, 5], "plain": [22, 12], "row": [12, 24],
          "embed": [61, 4], "norm": [12]}
INFO = {
    "original_vocab_size": 61,
    "vocabulary_parameter_patterns": ["embed"],
    "tp_replicated_parameter_patterns": ["norm"],
    "parameter_with_2_sub_params_cat_dim_0": ["halves"],
    "parameter_with_row_parallelism_patterns": ["row"],
    "parameter_with_sub_params": [
        {"patterns": ["heads"], "shape": [3, [12], -1], "partition_dim": 1},
        {"patterns": ["qkv"], "shape": [[24, 12, 12], 12], "partition_dim": 0},
        {"patterns": ["one"], "shape": [24, 12], "partition_dim": 0}],
    "sub_param_shard_widths": {"qkv": [[14, 10], [6, 6], [6, 6]]},
    "affine_map": {"version": 1, "params": {}},
}


class Thing:
    def __init__(self, *arguments):
        self.arguments = arguments

    def __setstate__(self, state):
        self.__dict__.update(state)


class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda storage, offset, shape, *rest: tuple(shape)
        if (module, name) == ("torch", "Size"):
            return tuple
        return type(name, (Thing,), {})

    def persistent_load(self, pid):
        return pid


def read(*path):
    with zipfile.ZipFile(os.path.join(*path)) as archive:
        name = next(n for n in archive.namelist() if n.endswith("data.pkl"))
        with archive.open(name) as file:
            return Unpickler(file).load()


def run(*arguments):
    return subprocess.run([RESHARD, *arguments], capture_output=True, text=True, timeout=60)


def convert(source, name, *options):
    done = run("convert", source, name, "--to", "deepspeed-universal", *options)
    assert done.returncode == 0, done.stderr
    tag = os.path.join(name, open(os.path.join(name, "latest_universal")).read())
    states = {tensor: read(tag, "zero", tensor, "fp32.pt") for tensor in SHAPES}
    model = read(tag, "mp_rank_00_model_states.pt")
    return states, model


def refuse(pattern, *arguments):
    done = run("convert", *arguments, "--to", "deepspeed-universal")
    assert done.returncode == 1 and pattern in done.stderr, (done.returncode, done.stderr)


def check_states(states):
    heads, qkv, one = states["heads"], states["qkv"], states["one"]
    # Cut in another shape: written in it.
    assert heads["param"] == (3, 12, 12) and "cat_dim" not in heads, heads
    assert heads["sub_param_shape"].shape == (3, (12,), 12) and heads["sub_param_shape"].partition_dim == 1
    assert qkv["param"] == (48, 12) and qkv["sub_param_shape"].shape == ((24, 12, 12), 12)
    # A bare number that is the size of the whole is one part, not so many.
    assert one == {"param": (24, 12), "cat_dim": 0}, one
    assert states["halves"] == {"param": (16, 5), "cat_dim": 0, "param_n_sub_params": 2}
    assert states["row"] == {"param": (12, 24), "cat_dim": 1}
    assert states["plain"] == {"param": (22, 12), "cat_dim": 0}
    assert states["embed"] == {"param": (61, 4), "cat_dim": 0, "vocab_tensor": True}
    assert states["norm"] == {"param": (12,)}


# What pickles of PyTorch name.
class FloatStorage:
    pass


def _rebuild_tensor_v2():
    pass


for thing, module in ((FloatStorage, "torch"), (_rebuild_tensor_v2, "torch._utils")):
    thing.__module__ = module
    thing.__qualname__ = thing.__name__
    setattr(sys.modules.setdefault(module, types.ModuleType(module)), thing.__name__, thing)


class Tensor:
    """A tensor of consecutive numbers."""

    def __init__(self, shape, first):
        self.shape, self.numbers = tuple(shape), range(first, first + math.prod(shape))

    def __reduce__(self):
        strides = tuple(math.prod(self.shape[d + 1:]) for d in range(len(self.shape)))
        return (_rebuild_tensor_v2, (Storage(self.numbers), 0, self.shape, strides, False, collections.OrderedDict()))


class Storage:
    def __init__(self, numbers):
        self.numbers = numbers


def write(value, *path):
    os.makedirs(os.path.join(*path[:-1]), exist_ok=True)
    storages, data = [], io.BytesIO()
    pickler = pickle.Pickler(data, 2)

    def persistent_id(thing):
        if not isinstance(thing, Storage):
            return None
        storages.append(thing.numbers)
        return ("storage", FloatStorage, str(len(storages) - 1), "cpu", len(thing.numbers))

    pickler.persistent_id = persistent_id
    pickler.dump(value)
    with zipfile.ZipFile(os.path.join(*path), "w") as archive:
        archive.writestr("archive/data.pkl", data.getvalue())
        for key, numbers in enumerate(storages):
            archive.writestr(f"archive/data/{key}", struct.pack(f"<{len(numbers)}f", *numbers))
        archive.writestr("archive/version", "3\n")


def write_source():
    """A universal checkpoint that does not say how it is to be cut."""
    for k, (name, shape) in enumerate(SHAPES.items()):
        for j, state in enumerate(("fp32", "exp_avg", "exp_avg_sq")):
            write({"param": Tensor(shape, 10000 * k + 1000 * j)}, "source", "tag", "zero", name, state + ".pt")
        write(3, "source", "tag", "zero", name, "step.pt")
    write({"param_groups": [{"lr": 0.1, "params": [0]}]}, "source", "tag", "zero", "optimizer_state.pt")
    for k, name in enumerate(("frozen", "table")):  # as DeepSpeed since 0.19 writes them
        write({"param": Tensor([7], 500 + 10 * k)}, "source", "tag", "zero", name, "fp32.pt")
    module = {name: Tensor(shape, 10000 * k) for k, (name, shape) in enumerate(SHAPES.items())}
    module.update(frozen=Tensor([7], 500), table=Tensor([7], 510))
    shapes = [{n: tuple(s) for n, s in SHAPES.items()}]
    write({"module": module, "buffer_names": ["table"], "frozen_param_shapes": {"frozen": (7,)}, "param_shapes": shapes},
          "source", "tag", "mp_rank_00_model_states.pt")
    with open("source/latest_universal", "w", encoding="ascii") as file:
        file.write("tag")
    with open("rules.json", "w", encoding="ascii") as file:
        json.dump(INFO, file)


def check_shared():
    """B03: of qkv, 4 ranks have the keys and values of their queries' group; then, of the same, plain rows."""
    ranks = {"match": "qkv", "split": 0, "parts": [24, 12, 12], "groups": 2, "shared": [1, 2]}
    for name, rule in (("shared", ranks), ("plain", {"match": "qkv", "split": 0, "parts": [48]})):
        with open(name + ".json", "w", encoding="ascii") as file:
            json.dump({"rules": [rule], "otherwise": {"replicated": True}}, file)
    states, _ = convert("source", "shared4", "--layout", "tp=4", "--target-rules", "shared.json")
    assert states["qkv"] == {"param": (72, 12), "cat_dim": 0}, states["qkv"]
    as_is = json.loads(run("inspect", "shared4", "--tensors", "qkv", "--json").stdout)["tensors"]
    assert [t["shape"] for t in as_is if t["role"] == "master"] == [[72, 12]], as_is
    states, _ = convert("shared4", "plain4", "--rules", "shared.json", "--target-rules", "plain.json")
    assert states["qkv"]["param"] == (48, 12) and states["qkv"]["sub_param_shape"].shape == ((48,), 12)
    for made, rules in (("shared4", "shared.json"), ("plain4", "plain.json")):
        equal = run("verify", made, "source", "--rules", rules, "--roles", "master,exp_avg,exp_avg_sq")
        assert equal.returncode == 0 and "equal: 24 tensors" in equal.stdout, equal.stdout + equal.stderr
    for target in ("native", "safetensors", "torch"):
        done = run("convert", "source", "no", "--to", target, "--target-rules", "plain.json")
        assert done.returncode == 2 and "--target-rules" in done.stderr, done.stderr


def check_experts():
    """A stack of experts is marked as DeepSpeed's AutoEP wants it, under ZeRO-3 too, and stays so when it is converted on."""
    with open("experts.json", "w", encoding="ascii") as file:
        json.dump({"rules": [{"match": "heads", "experts": True}]}, file)
    marked = {"is_expert_param": True, "ep_num_experts": 36, "cat_dim": 0, "param": (36, 12)}
    states, model = convert("source", "experts1", "--rules", "experts.json")
    assert states["heads"] == marked and states["row"] == {"param": (12, 24), "cat_dim": 0}, states
    assert model["universal_checkpoint_info"]["expert_parameter_patterns"] == ["^heads$"], model
    assert convert("experts1", "experts2", "--layout", "dp=3")[0]["heads"] == marked
    done = run("convert", "experts1", "experts3", "--to", "deepspeed-universal", "--layout", "dp=3,zero=3")
    assert done.returncode == 0, done.stderr
    zero = os.path.join("experts3", open("experts3/latest_universal").read(), "zero")
    assert read(zero, "heads", "exp_avg.pt") == marked and read(zero, "row", "fp32.pt") == (288,)
    for made in ("experts1", "experts2", "experts3"):
        equal = run("verify", made, "source", "--roles", "master,exp_avg,exp_avg_sq")
        assert equal.returncode == 0 and "equal: 24 tensors" in equal.stdout, equal.stdout + equal.stderr


def main():
    write_source()
    tensors = json.loads(run("inspect", "source", "--json").stdout)["tensors"]
    assert sorted((t["name"], t["role"]) for t in tensors if t["name"] in ("frozen", "table")) == [
        ("frozen", "param"), ("table", "buffer")], tensors
    rules = ("--rules", "rules.json")
    for tp in (1, 2):
        states, model = convert("source", f"made{tp}", "--layout", f"tp={tp}", *rules)
        check_states(states)
        assert model["param_shapes"][0]["heads"] == (36, 12), model["param_shapes"]
        equal = run("verify", f"made{tp}", "source", "--roles", "master,exp_avg")
        assert equal.returncode == 0 and "equal: 16 tensors" in equal.stdout, equal.stdout + equal.stderr
        info = model["universal_checkpoint_info"]
        assert info["parameter_with_sub_params"][0]["shape"] == (3, (12,), 12), info
        assert info["universal_checkpoint_version"] == 0.2 and "sub_param_shard_widths" not in info, info
    # Shares that are not even: not in 0.2, but for a vocabulary.
    refuse("along dimension 0 cannot be shared evenly by 5 tensor-parallel ranks, as version 0.2 wants", "source", "no",
           "--layout", "tp=5", *rules)
    refuse('"plain": 22 along dimension 0 cannot be shared evenly by 4', "source", "no", "--layout", "tp=4",
           *rules)
    states, model = convert("source", "made4", "--layout", "tp=4", "--universal-version", "0.4", *rules)
    check_states(states)
    assert model["universal_checkpoint_info"]["sub_param_shard_widths"] == {}
    states, model = convert("source", "long2", "--layout", "tp=2", "--universal-version", "0.4", *rules)
    assert model["universal_checkpoint_info"]["sub_param_shard_widths"] == {"^qkv$": [[14, 10], [6, 6], [6, 6]]}
    # Carried on from a checkpoint that has it: shapes stay tuples, and widths go with their number of ranks.
    states, model = convert("long2", "again2", "--layout", "tp=2", "--universal-version", "0.4")
    check_states(states)
    info = model["universal_checkpoint_info"]
    assert info["sub_param_shard_widths"] == {"^qkv$": [[14, 10], [6, 6], [6, 6]]}, info
    assert [f["shape"] for f in info["parameter_with_sub_params"]] == [(3, (12,), 12), ((24, 12, 12), 12)], info
    for version, tp in (("0.2", 2), ("0.4", 3)):
        states, model = convert("long2", "again" + version, "--layout", f"tp={tp}", "--universal-version", version)
        check_states(states)
        assert "sub_param_shard_widths" not in model["universal_checkpoint_info"]
        equal = run("verify", "again" + version, "long2", "--roles", "master")
        assert equal.returncode == 0 and "equal: 8 tensors" in equal.stdout, equal.stdout + equal.stderr
    check_shared()
    check_experts()
    # A rule for a dimension that a tensor does not have, and a shape of another number of elements.
    norm = {"rules": [{"match": "norm", "split": 1}, {"match": "embed", "replicated": True}], "otherwise": {"split": 0}}
    heads = {"patterns": ["heads"], "shape": [5, [12], 12], "partition_dim": 1}
    for wrong, what in ((norm, "cut its dimension 1"),
                        ({**INFO, "parameter_with_sub_params": [heads]}, "has not its 432 elements")):
        with open("wrong.json", "w", encoding="ascii") as file:
            json.dump(wrong, file)
        refuse(what, "source", "no", "--layout", "tp=2", "--rules", "wrong.json")
    assert not os.path.exists("no")


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    main()
    os.chdir("/")
