#!/usr/bin/env python3
"""How much memory training jobs take: `memory_cases.py --driver PROGRAM --mpirun MPIRUN CASE`. As cases.py."""
import json
import math
import os
import re
import subprocess

from cases import case, main, memory_of
from jobs import check


def planned_memory(j, model, layout, rank):
    """What `reshard layout` says of a rank: bytes of its state, and, from its shards, of the gradients it keeps."""
    said = subprocess.run([j.reshard, "layout", layout, "--model", model, "--rank", str(rank), "--json"],
                          capture_output=True, text=True, check=True)
    planned = json.loads(said.stdout)
    sizes = {axis: int(size) for axis, size in re.findall(r"\b([a-z]+)(\d+)", planned["describe"])}
    zero = int(dict(pair.split("=") for pair in layout.split(",")).get("zero", 0))
    elements = 0
    for shard in planned["ranks"][0]["shards"]:
        if shard["role"] == "param":
            members = sizes["edp"] if ".experts." in shard["tensor"] else sizes["dp"] * sizes["cp"]
            piece = 1 if zero == 3 else 1 / members  # of what the shard covers; whole gradients too up to zero=1
            elements += math.prod(end - begin for begin, end in shard["box"]) * (piece + (zero < 2))
    return planned["ranks"][0]["total_bytes"], 4 * elements


def check_memory(j, config, layouts, slack=0):
    """Arenas are as large as planned within 5%, and so are they with the gradients kept beside, for every rank, but for
    `slack`, by which processes differ otherwise."""
    model = os.path.join(j.folder, "config.json")
    with open(model, "w", encoding="utf-8") as file:
        json.dump(config, file)
    base = None
    for layout in layouts:
        arenas, other = memory_of(j, 2, layout=layout, model=model, seq=8, global_batch=2, micro_batch=1)
        for rank in range(2):
            state, gradients = planned_memory(j, model, layout, rank)
            check(abs(arenas[rank] - state) <= 0.05 * state, f"{layout}: rank {rank}: arena {arenas[rank]}, planned {state}")
            found, wanted = arenas[rank] + other[rank], state + gradients
            base = found - wanted if base is None else base  # of the process: code's data, MPI, activations
            check(abs(found - base - wanted) <= 0.05 * wanted + slack,
                  f"{layout}: rank {rank}: {found - base} bytes, wanted {wanted}")
            print(f"{layout}: rank {rank}: arena {arenas[rank] / state:.4f} of what is planned, with gradients "
                  f"{(found - base) / wanted:.4f}; {found / 2**20:.0f} MiB in all, {base / 2**20:.0f} the process")


# Layers are many and small, so that what is gathered and reduced at a time hardly counts.
THIN = {"model_type": "llama", "num_hidden_layers": 192, "hidden_size": 96, "intermediate_size": 256, "vocab_size": 256,
        "num_attention_heads": 4, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
THIN_EXPERTS = {**THIN, "model_type": "mixtral", "num_hidden_layers": 96, "num_key_value_heads": 4, "intermediate_size": 96,
                "num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": False}


@case
def memory(j):
    """Memory per rank is what `reshard plan` says, within 5%; gradients are kept as documented."""
    check_memory(j, THIN, ("dp=2", "dp=2,zero=1", "dp=2,zero=2", "dp=2,zero=3", "dp=2,zero=2,zero_cut=dim0",
                           "dp=2,zero=3,zero_cut=param"))


@case
def memory_axes(j):
    """So it is under every other axis."""
    check_memory(j, THIN, ("dp=2", "tp=2", "tp=2,sp=on", "cp=2", "cp=2,zero=1", "cp=2,zero=3", "pp=2", "pp=2,vpp=4",
                           "pp=2,stages=0-63/64-191", "dp=2,zero=3,shard=1"), slack=8 << 20)  # buffers of MPI
    check_memory(j, THIN_EXPERTS, ("dp=2", "dp=2,ep=2", "dp=2,ep=2,zero=1", "dp=2,ep=2,zero=3", "tp=2", "tp=2,ep=2,etp=1",
                                   "cp=2,ep=2,zero=2"), slack=8 << 20)


if __name__ == "__main__":
    import sys
    sys.exit(main())
