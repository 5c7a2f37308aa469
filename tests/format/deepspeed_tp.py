"""One rank of a small DeepSpeed run with tensor parallelism on the CPU: trains and saves, or loads and compares.

    RANK=0 WORLD_SIZE=4 ... deepspeed_tp.py train|load DIR TRUTH --tp N --stage N [--dtype bf16] [--silent]

`train` writes for each tensor-parallel rank TRUTH.R, what its optimizer has of every parameter; a client's
universal_checkpoint_info says how they are cut, unless --silent. `load` asserts that what DeepSpeed has, under whatever
degree, are the slices of what the truth's files are together, to the bit. How slices are cut and put together is
written down here once more, in a plain way.
"""
import argparse
import glob
import sys

import torch

import deepspeed_gloo  # noqa: F401, before deepspeed
import deepspeed
import deepspeed.comm.torch

WIDTH, Q, KV, INNER, ROWS = 12, 24, 12, 24, 61

# Name: shape of the whole, how it is cut. "parts": sizes of fused parts along a dimension; "view": in another shape.
PARAMETERS = {
    "embed.weight": ((ROWS, WIDTH), {"rows": True}),
    "attn.qkv.weight": ((Q + 2 * KV, WIDTH), {"dim": 0, "parts": (Q, KV, KV)}),
    "attn.qkv.bias": ((Q + 2 * KV,), {"dim": 0, "parts": (Q, KV, KV)}),
    "attn.out.weight": ((WIDTH, Q), {"dim": 1}),
    "attn.out.bias": ((WIDTH,), {}),
    "mlp.gate_up.weight": ((2 * INNER, WIDTH), {"dim": 0, "parts": (INNER, INNER), "halves": True}),
    "mlp.down.weight": ((WIDTH, INNER), {"dim": 1}),
    "mlp.plain.weight": ((INNER, WIDTH), {"dim": 0}),
    "norm.weight": ((WIDTH,), {}),
    "router.weight": ((5, WIDTH), {"averaged": True}),
    "heads.weight": ((3 * WIDTH, WIDTH), {"dim": 1, "parts": (WIDTH,), "view": (3, WIDTH, WIDTH)}),
}
INFO = {
    "universal_checkpoint_version": 0.2,
    "original_vocab_size": ROWS,
    "vocabulary_parameter_patterns": [r"embed\.weight"],
    "tp_replicated_parameter_patterns": [r"attn\.out\.bias", r"norm\.weight"],
    "parameter_to_average_patterns": [r"router\.weight"],
    "parameter_with_2_sub_params_cat_dim_0": [r"mlp\.gate_up\.weight"],
    "parameter_with_row_parallelism_patterns": [r"attn\.out\.weight", r"mlp\.down\.weight"],
    "parameter_with_sub_params": [
        {"patterns": [r"attn\.qkv\.weight"], "shape": ((Q, KV, KV), WIDTH), "partition_dim": 0},
        {"patterns": [r"attn\.qkv\.bias"], "shape": ((Q, KV, KV),), "partition_dim": 0},
        {"patterns": [r"heads\.weight"], "shape": (3, (WIDTH,), WIDTH), "partition_dim": 1}],
}


def padded_rows(tp):
    return -(-ROWS // (8 * tp)) * 8 * tp


def cut(name, whole, tp, rank):
    """What rank `rank` of `tp` has of a whole tensor."""
    how = PARAMETERS[name][1]
    if how.get("rows"):
        whole = torch.nn.functional.pad(whole, (0, 0, 0, padded_rows(tp) - ROWS))
        return whole.chunk(tp)[rank]
    if "dim" not in how:
        return whole
    view = whole.view(how.get("view", whole.shape))
    parts = view.split(how.get("parts", view.shape[how["dim"]]), how["dim"])
    share = torch.cat([part.chunk(tp, how["dim"])[rank] for part in parts], how["dim"])
    return share.reshape(-1, *whole.shape[1:]) if "view" in how else share


def join(name, slices):
    """The whole of the slices of all ranks."""
    how, tp = PARAMETERS[name][1], len(slices)
    if how.get("rows"):
        return torch.cat(slices)[:ROWS]
    if how.get("averaged"):
        return sum(slices) / tp
    if "dim" not in how:
        assert all(torch.equal(s, slices[0]) for s in slices), name
        return slices[0]
    dim = how["dim"]
    if "view" in how:
        shape = list(how["view"])
        shape[dim] //= tp
        slices = [s.view(shape) for s in slices]
    sizes = how.get("parts", (slices[0].shape[dim] * tp,))
    shares = [s.split([size // tp for size in sizes], dim) for s in slices]
    return torch.cat([torch.cat([s[part] for s in shares], dim) for part in range(len(sizes))],
                     dim).reshape(PARAMETERS[name][0])


def noise(name, seed):
    shape = PARAMETERS[name][0]
    return torch.randn(shape, generator=torch.Generator().manual_seed(1000 * seed + sum(map(ord, name))))


class Model(torch.nn.Module):
    """Parameters and, as a loss, a polynomial of each: its gradients are the slices of the whole's."""

    def __init__(self, tp, rank):
        super().__init__()
        self.factors, self.apart = {}, rank
        for name in PARAMETERS:
            at = self
            *folders, last = name.split(".")
            for folder in folders:
                if not hasattr(at, folder):
                    at.add_module(folder, torch.nn.Module())
                at = getattr(at, folder)
            at.register_parameter(last, torch.nn.Parameter(cut(name, noise(name, 1), tp, rank).clone()))
            self.factors[name] = cut(name, noise(name, 2), tp, rank).clone()

    def forward(self, weight):
        total = 0
        for name, p in self.named_parameters():
            value = (p.float() * self.factors[name] + 0.3 * p.float() ** 2).sum() * weight
            total = total + value * (1 + self.apart if name == "router.weight" else 1)
        return total


class Mpu:
    """What DeepSpeed asks a model-parallel run: tensor-parallel ranks are neighbours."""

    def __init__(self, tp):
        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self.tp, self.dp = tp, world // tp
        self.tp_rank, self.dp_rank = rank % tp, rank // tp
        for d in range(self.dp):
            group = torch.distributed.new_group([d * tp + t for t in range(tp)])
            self.tp_group = group if d == self.dp_rank else getattr(self, "tp_group", None)
        for t in range(tp):
            group = torch.distributed.new_group([d * tp + t for d in range(self.dp)])
            self.dp_group = group if t == self.tp_rank else getattr(self, "dp_group", None)

    def get_model_parallel_group(self):
        return self.tp_group

    def get_model_parallel_rank(self):
        return self.tp_rank

    def get_model_parallel_world_size(self):
        return self.tp

    get_tensor_model_parallel_group = get_model_parallel_group
    get_tensor_model_parallel_rank = get_model_parallel_rank
    get_tensor_model_parallel_world_size = get_model_parallel_world_size

    def get_pipeline_model_parallel_rank(self):
        return 0

    def get_pipeline_model_parallel_world_size(self):
        return 1

    def get_data_parallel_group(self):
        return self.dp_group

    def get_data_parallel_rank(self):
        return self.dp_rank

    def get_data_parallel_world_size(self):
        return self.dp


def make_engine(args, mpu):
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1,
              "zero_optimization": {"stage": args.stage}, "zero_allow_untested_optimizer": True,
              "zero_force_ds_cpu_optimizer": False, "steps_per_print": 1000}
    if args.dtype == "bf16":
        config["bf16"] = {"enabled": True}
    if args.action == "load":
        config["checkpoint"] = {"load_universal": True}
    model = Model(args.tp, mpu.tp_rank)
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "lr": 3e-3, "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() < 2], "lr": 1e-3, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98))
    return deepspeed.initialize(model=model, optimizer=optimizer, mpu=mpu, config=config)[0]


def state_of(engine, mpu):
    """Master and moments of this rank's slices, whole over the data-parallel ranks, which cut the groups. Collective."""
    outer, tensors = engine.optimizer, {}
    names = {id(p): n for n, p in engine.module.named_parameters()}
    for group, params in enumerate(outer.bit16_groups):
        part = outer.single_partition_of_fp32_groups[group]
        state = outer.optimizer.state[part]
        for role, mine in (("master", part), ("exp_avg", state["exp_avg"]), ("exp_avg_sq", state["exp_avg_sq"])):
            parts = [torch.empty_like(mine.data) for _ in range(mpu.dp)]
            torch.distributed.all_gather(parts, mine.data.contiguous(), group=mpu.dp_group)
            flat, at = torch.cat(parts), 0
            for p in params:
                tensors[names[id(p)], role] = flat[at:at + p.numel()].view(p.shape).detach().clone()
                at += p.numel()
    return {"tensors": tensors, "steps": {float(s["step"]) for s in outer.optimizer.state.values() if "step" in s},
            "lr": [g["lr"] for g in outer.param_groups]}


def compare(found, truth, mpu):
    paths = sorted(glob.glob(truth + ".*"))
    slices = [torch.load(path) for path in paths]
    assert len(slices) > 0 and slices[0]["tensors"].keys() == found["tensors"].keys()
    assert len(found["tensors"]) == 3 * len(PARAMETERS)
    for name, role in found["tensors"]:
        whole = join(name, [s["tensors"][name, role] for s in slices])
        wanted, have = cut(name, whole, mpu.tp, mpu.tp_rank), found["tensors"][name, role]
        assert wanted.abs().max() > 0 and have.shape == wanted.shape, (name, role, have.shape, wanted.shape)
        differ = (have.view(torch.int32) != wanted.contiguous().view(torch.int32)).nonzero()
        assert len(differ) == 0, (name, role, len(differ), differ[0])
    assert found["steps"] == slices[0]["steps"] == {3.0} and found["lr"] == slices[0]["lr"], (found["steps"], found["lr"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["train", "load"])
    parser.add_argument("dir")
    parser.add_argument("truth")
    parser.add_argument("--tp", type=int, required=True)
    parser.add_argument("--stage", type=int, required=True)
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--silent", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # it would compile one
    deepspeed.init_distributed("gloo")
    mpu = Mpu(args.tp)
    engine = make_engine(args, mpu)
    if args.action == "train":
        for step in range(3):
            engine.backward(engine(torch.tensor(1.0 + step)))
            engine.step()
        state = {} if args.silent else {"universal_checkpoint_info": INFO}
        engine.save_checkpoint(args.dir, tag="global_step3", client_state=state)
        found = state_of(engine, mpu)
        if mpu.dp_rank == 0:
            torch.save(found, f"{args.truth}.{mpu.tp_rank}")
    else:
        path, _ = engine.load_checkpoint(args.dir)
        assert path is not None, "DeepSpeed found nothing to load"
        compare(state_of(engine, mpu), args.truth, mpu)
    torch.distributed.barrier()


main()
