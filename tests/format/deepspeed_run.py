"""One rank of a small DeepSpeed run on the CPU: trains and saves, or loads, and writes down what its optimizer then has.

    RANK=0 WORLD_SIZE=2 ... deepspeed_run.py train|load DIR TRUTH --stage N [--dtype bf16] [--groups 2]

TRUTH becomes a file of torch.save, from rank 0: master, exp_avg and exp_avg_sq of every trainable parameter, whole,
and step and learning rate of every group, as the live engine has them.
"""
import argparse
import os
import sys

import torch

import deepspeed_gloo  # noqa: F401, before deepspeed
import deepspeed
import deepspeed.comm.torch
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state


class Model(torch.nn.Module):
    """Odd sizes; with `extras`, a frozen parameter and a buffer too."""

    def __init__(self, extras):
        super().__init__()
        torch.manual_seed(5)
        self.embed = torch.nn.Embedding(61, 12)
        self.up = torch.nn.Linear(12, 29)
        self.down = torch.nn.Linear(29, 12, bias=False)
        self.norm = torch.nn.LayerNorm(12)
        if extras:
            self.frozen = torch.nn.Parameter(torch.randn(7, 3), requires_grad=False)
            self.register_buffer("table", torch.arange(5.0))

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        x = self.norm(x + self.down(torch.nn.functional.gelu(self.up(x))))
        scores = torch.nn.functional.linear(x, self.embed.weight)
        return torch.nn.functional.cross_entropy(scores.float().view(-1, 61), targets.view(-1))


def groups_of(model, count):
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    if count == 1:
        return [{"params": [p for _, p in trained], "lr": 3e-3, "weight_decay": 0.1}]
    return [{"params": [p for _, p in trained if p.dim() > 1], "lr": 3e-3, "weight_decay": 0.1},
            {"params": [p for _, p in trained if p.dim() < 2], "lr": 1e-3, "weight_decay": 0.0}]


def make_engine(args, universal):
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
              "zero_optimization": {"stage": args.stage}, "zero_allow_untested_optimizer": True,
              "zero_force_ds_cpu_optimizer": False, "steps_per_print": 1000}
    if args.dtype == "bf16":
        config["bf16"] = {"enabled": True}
    if universal:
        config["checkpoint"] = {"load_universal": True}
    model = Model(args.stage < 3)
    optimizer = torch.optim.AdamW(groups_of(model, args.groups), betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** step)
    return deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=config)[0]


def train(engine):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for step in range(3):
        random = torch.Generator().manual_seed(100 * step + rank)
        tokens = torch.randint(0, 61, (2, 9), generator=random)
        engine.backward(engine(tokens[:, :-1], tokens[:, 1:].reshape(-1)))
        engine.step()
    return world


def flat_states(engine):
    """ZeRO 1 and 2: each rank has a part of each group's parameters one behind the other. Collective."""
    outer, tensors = engine.optimizer, {}
    world = int(os.environ["WORLD_SIZE"])
    names = {id(p): n for n, p in engine.module.named_parameters()}
    for group, params in enumerate(outer.bit16_groups):
        part = outer.single_partition_of_fp32_groups[group]
        state = outer.optimizer.state[part]
        for role, mine in (("master", part), ("exp_avg", state["exp_avg"]), ("exp_avg_sq", state["exp_avg_sq"])):
            parts = [torch.empty_like(mine.data) for _ in range(world)]
            torch.distributed.all_gather(parts, mine.data.contiguous())
            flat, at = torch.cat(parts), 0
            for p in params:
                tensors[names[id(p)], role] = flat[at:at + p.numel()]
                at += p.numel()
    return tensors


def cut_states(engine):
    """ZeRO 3: each rank has a part of each parameter. Collective."""
    tensors = {}
    for name, param in engine.module.named_parameters():
        tensors[name, "master"] = safe_get_full_fp32_param(param)
        for role in ("exp_avg", "exp_avg_sq"):
            tensors[name, role] = safe_get_full_optimizer_state(param, role)
    return tensors


def state_of(engine, stage):
    """What the engine has. Collective."""
    tensors = cut_states(engine) if stage == 3 else flat_states(engine)
    base = engine.optimizer.optimizer
    return {"tensors": {k: v.detach().clone().float().flatten() for k, v in tensors.items()},
            "steps": sorted({float(s["step"]) for s in base.state.values() if "step" in s}),
            "lr": [g["lr"] for g in engine.optimizer.param_groups],
            "weight_decay": [g["weight_decay"] for g in engine.optimizer.param_groups],
            "scheduled": engine.lr_scheduler.state_dict()["last_epoch"]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["train", "load"])
    parser.add_argument("dir")
    parser.add_argument("truth")
    parser.add_argument("--stage", type=int, required=True)
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--groups", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # it would compile one
    deepspeed.init_distributed("gloo")
    engine = make_engine(args, args.action == "load")
    if args.action == "train":
        train(engine)
        engine.save_checkpoint(args.dir, tag="global_step3")
    else:
        path, client = engine.load_checkpoint(args.dir)
        assert path is not None, "DeepSpeed found nothing to load"
        assert engine.global_steps == 3, engine.global_steps
    state = state_of(engine, args.stage)
    if int(os.environ["RANK"]) == 0:
        torch.save(state, args.truth)
    torch.distributed.barrier()


main()
