#!/usr/bin/env python3
"""Writes a checkpoint as DeepSpeed ZeRO-3 does on four ranks in bfloat16, to try reshard on.

Usage: deepspeed_zero3.py CHECKPOINT MODEL

CHECKPOINT gets the folder that engine.save_checkpoint would leave, of a small Llama with random weights under the
names of Hugging Face; MODEL gets its config.json. Needs PyTorch, not DeepSpeed.

ZeRO-3 gives every rank an equal piece of each parameter, padded at the end where it does not divide; a rank's
pieces stand behind each other in one flat tensor, the masters in float32 and the moments beside them. The 16-bit
weights are in no file: they are the masters rounded.
"""
import collections
import json
import pathlib
import sys

import torch

RANKS, STEP = 4, 100
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 688,
          "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 256,
          "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16"}


def shapes():
    hidden, ffn, vocab = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]
    kv = hidden * CONFIG["num_key_value_heads"] // CONFIG["num_attention_heads"]
    yield "model.embed_tokens.weight", (vocab, hidden)
    for i in range(CONFIG["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        yield layer + "self_attn.q_proj.weight", (hidden, hidden)
        yield layer + "self_attn.k_proj.weight", (kv, hidden)
        yield layer + "self_attn.v_proj.weight", (kv, hidden)
        yield layer + "self_attn.o_proj.weight", (hidden, hidden)
        yield layer + "mlp.gate_proj.weight", (ffn, hidden)
        yield layer + "mlp.up_proj.weight", (ffn, hidden)
        yield layer + "mlp.down_proj.weight", (hidden, ffn)
        yield layer + "input_layernorm.weight", (hidden,)
        yield layer + "post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)


def flat(tensors, rank):
    """A rank's pieces of the tensors, one behind the other."""
    pieces = []
    for tensor in tensors.values():
        size = -(-tensor.numel() // RANKS)
        padded = torch.zeros(size * RANKS)
        padded[:tensor.numel()] = tensor.reshape(-1)
        pieces.append(padded[rank * size:(rank + 1) * size])
    return torch.cat(pieces)


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    root, model = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    folder = root / f"global_step{STEP}"
    folder.mkdir(parents=True)
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    torch.manual_seed(1)
    wanted = collections.OrderedDict((name, torch.Size(shape)) for name, shape in shapes())
    state = {role: {name: (1 + 0 * torch.randn(shape)) if role == "master" and len(shape) == 1
                    else scale * torch.randn(shape) for name, shape in wanted.items()}
             for role, scale in (("master", 0.02), ("exp_avg", 1e-3), ("exp_avg_sq", 1e-6))}
    for rank in range(RANKS):
        common = {"ds_version": "0.14.5", "ds_config": {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}}
        torch.save({**common, "buffer_names": [], "optimizer": None, "param_shapes": [wanted],
                    "module": collections.OrderedDict((n, torch.empty(0, dtype=torch.bfloat16)) for n in wanted),
                    "frozen_param_shapes": {}, "frozen_param_fragments": {},
                    "shared_params": {"lm_head.weight": "model.embed_tokens.weight"}, "lr_scheduler": None,
                    "skipped_steps": 0, "global_steps": STEP, "global_samples": 8 * STEP,
                    "dp_world_size": RANKS, "mp_world_size": 1},
                   folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        inner = {"state": {0: {"step": STEP, "exp_avg": flat(state["exp_avg"], rank),
                               "exp_avg_sq": flat(state["exp_avg_sq"], rank)}},
                 "param_groups": [{"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "params": [0]}]}
        torch.save({**common, "optimizer_state_dict": {
            "zero_stage": 3, "partition_count": RANKS, "dynamic_loss_scale": False, "overflow": False,
            "optimizer_state_dict": inner, "fp32_flat_groups": [flat(state["master"], rank)]}},
                   folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    (root / "latest").write_text(f"global_step{STEP}")
    print(f"wrote {root}: {len(wanted)} parameters, {RANKS} ranks; {model}/config.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
