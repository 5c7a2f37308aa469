#!/usr/bin/env python3
"""Writes a synthetic ZeRO-3 checkpoint with PyTorch, in the files and keys that DeepSpeed writes.

Usage: zero3.py FOLDER GIB [--ranks N] [--dtype bf16|fp32] [--no-moments]

Its state is GIB of float32 masters and two moments (12 bytes a parameter) of a Llama-like model, flat shards of N
ranks. Values are noise that repeats every 16 MiB. Prints the number of parameters.
"""
import argparse
import os

import torch

HIDDEN, FFN, VOCABULARY, KV = 2048, 5632, 32000, 512


def shapes(parameters):
    """Names and shapes: embedding, then layers until there are about as many parameters."""
    out = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    total = VOCABULARY * HIDDEN
    layer = 0
    while total < parameters:
        base = f"model.layers.{layer}."
        rows = {
            "input_layernorm.weight": (HIDDEN,), "self_attn.q_proj.weight": (HIDDEN, HIDDEN),
            "self_attn.k_proj.weight": (KV, HIDDEN), "self_attn.v_proj.weight": (KV, HIDDEN),
            "self_attn.o_proj.weight": (HIDDEN, HIDDEN), "post_attention_layernorm.weight": (HIDDEN,),
            "mlp.gate_proj.weight": (FFN, HIDDEN), "mlp.up_proj.weight": (FFN, HIDDEN),
            "mlp.down_proj.weight": (HIDDEN, FFN),
        }
        for name, shape in rows.items():
            out[base + name] = shape
            total += torch.Size(shape).numel()
        layer += 1
    out["model.norm.weight"] = (HIDDEN,)
    return {name: torch.Size(shape) for name, shape in out.items()}


def noise(count, generator):
    """`count` floats, none of them special."""
    block = torch.empty(min(count, 4 << 20)).normal_(generator=generator)
    out = torch.empty(count)
    for at in range(0, count, block.numel()):
        part = out[at:at + block.numel()]
        part.copy_(block[:part.numel()])
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("gib", type=float)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--no-moments", action="store_true")
    args = parser.parse_args()
    model = shapes(args.gib * 2**30 / (4 if args.no_moments else 12))
    dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float32
    prefix = "bf16_" if args.dtype == "bf16" else ""
    tag = os.path.join(args.folder, "global_step7")
    os.makedirs(tag)
    part = sum(-(-shape.numel() // args.ranks) for shape in model.values())
    for rank in range(args.ranks):
        torch.save({
            "module": {name: torch.empty(0, dtype=dtype) for name in model}, "buffer_names": [],
            "optimizer": None, "param_shapes": [model], "frozen_param_shapes": None,
            "frozen_param_fragments": None, "shared_params": {}, "dp_world_size": args.ranks,
            "mp_world_size": 1, "global_steps": 7, "ds_version": "0.14.5",
        }, os.path.join(tag, f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt"))
        make = torch.Generator().manual_seed(rank)
        state = {"step": torch.tensor(7.0)}
        if not args.no_moments:
            state.update(exp_avg=noise(part, make), exp_avg_sq=noise(part, make).abs_())
        torch.save({"optimizer_state_dict": {
            "zero_stage": 3, "loss_scaler": None, "dynamic_loss_scale": False, "overflow": False,
            "partition_count": args.ranks, "fp32_flat_groups": [noise(part, make)],
            "optimizer_state_dict": {
                "state": {0: state},
                "param_groups": [{"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1,
                                  "params": [0]}],
            },
        }}, os.path.join(tag, f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"))
    with open(os.path.join(args.folder, "latest"), "w", encoding="ascii") as file:
        file.write("global_step7")
    print(sum(shape.numel() for shape in model.values()))


if __name__ == "__main__":
    main()
