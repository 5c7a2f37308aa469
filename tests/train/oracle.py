#!/usr/bin/env python3
"""The trainer's losses according to PyTorch.

A plain decoder and AdamW, written from docs/training.md, without any of reshard's code: the same initial
weights, samples, schedule and update, on one process. Prints a JSON object with the losses of the steps.

    oracle.py MODEL/config.json DATA [--steps 20] [--global-batch 8] [--seq 32] [--lr 3e-3] [--seed 1]
              [--warmup 10] [--dtype float64]

float64 keeps the initial weights' float32 values and makes the sums' order immaterial: what a float32 run
differs by is its own rounding. With --update, rewrites the oracle_*.json beside this script.
"""
import argparse
import fnmatch
import json
import math
import os

import numpy as np
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
# How else than with AdamW on everything: oracle_optimizers.json.
VARIANTS = [
    {"model": "llama-uneven", "optimizer": "sgd", "lr": 0.1},
    {"model": "qwen2-small", "optimizer": "sgd", "lr": 0.1, "freeze": "layers.*.bias,norm.weight"},
    {"model": "llama-uneven", "freeze": "embed.weight,layers.mlp_norm.weight"},
    {"model": "qwen3-small", "freeze": "layers.attn.k*,layers.attn.q_norm.weight,layers.mlp.up.weight"},
    {"model": "llama-uneven", "optimizer": "muon", "lr": 0.01},
    {"model": "qwen2-small", "optimizer": "muon", "lr": 0.01, "freeze": "layers.attn.v.*,head.weight"},
    {"model": "qwen3-small", "dropout": 0.1},
    {"model": "mixtral-small", "dropout": 0.25},
    {"model": "mixtral-small", "optimizer": "muon", "lr": 0.01},
    {"model": "qwen2-moe-small", "optimizer": "muon", "lr": 0.01},
]
DEFAULTS = {"steps": 20, "global_batch": 8, "seq": 32, "lr": 3e-3, "seed": 1, "warmup": 10}


# Initial weights: see src/train/init.h.

def mix(z):
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def hash_name(name):
    hashed = 0xCBF29CE484222325
    for byte in name.encode():
        hashed = (hashed ^ byte) * 0x100000001B3 % 2**64
    return hashed


def initial(seed, name, shape, end):
    """`end`: one more than the last layer of the model that has the tensor."""
    if name.endswith("norm.weight"):
        return np.ones(shape, np.float32)
    if name.endswith(".bias"):
        return np.zeros(shape, np.float32)
    with np.errstate(over="ignore"):
        key = mix(mix(np.uint64(seed)) + np.uint64(hash_name(name)))
        index = np.arange(1, math.prod(shape) + 1, dtype=np.uint64)
        bits = mix(key + index * np.uint64(0x9E3779B97F4A7C15))
    total = sum(((bits >> np.uint64(16 * k)) & np.uint64(0xFFFF)).astype(np.int64) for k in range(4))
    std = 0.02
    if name in ("layers.attn.o.weight", "layers.mlp.down.weight", "layers.experts.down.weight",
                "layers.shared.down.weight"):
        std = 0.02 / math.sqrt(2.0 * end)
    values = (total - 131070).astype(np.float64) * (std / math.sqrt(1431655765.0))
    return values.astype(np.float32).reshape(shape)


class Config:
    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            c = json.load(file)
        self.family = c["model_type"]
        self.layers, self.hidden = c["num_hidden_layers"], c["hidden_size"]
        self.heads = c["num_attention_heads"]
        self.kv_heads = c.get("num_key_value_heads", self.heads)
        self.dim = c.get("head_dim") or self.hidden // self.heads
        self.ffn, self.vocab = c["intermediate_size"], c["vocab_size"]
        self.tied = c.get("tie_word_embeddings", False)
        self.qkv_bias = self.family in ("qwen2", "qwen2_moe") or c.get("attention_bias", False)
        self.out_bias = self.family not in ("qwen2", "qwen2_moe") and c.get("attention_bias", False)
        self.mlp_bias = c.get("mlp_bias", False)
        self.qk_norm = self.family in ("qwen3", "qwen3_moe")
        self.experts = c.get("num_local_experts", c.get("num_experts", 0))
        self.chosen = c.get("num_experts_per_tok", 0)
        self.expert_ffn = c.get("moe_intermediate_size", self.ffn)
        self.shared = c.get("shared_expert_intermediate_size", 0)
        self.norm_topk = self.family == "mixtral" or c.get("norm_topk_prob", False)
        step, without = c.get("decoder_sparse_step", 1), c.get("mlp_only_layers", [])
        self.sparse = [l for l in range(self.layers) if self.experts and l not in without and (l + 1) % step == 0]
        self.dense = [l for l in range(self.layers) if l not in self.sparse]
        self.router_bias = self.experts > 0 and c.get("topk_method") == "noaux_tc"
        self.balance = c.get("router_aux_loss_coef", 0.001)
        self.eps, self.theta = c["rms_norm_eps"], c.get("rope_theta", 10000.0)

    def shapes(self):
        L, H, F, V = self.layers, self.hidden, self.ffn, self.vocab
        q, kv = self.heads * self.dim, self.kv_heads * self.dim
        shapes = {"embed.weight": (V, H), "layers.attn_norm.weight": (L, H), "layers.attn.q.weight": (L, q, H),
                  "layers.attn.k.weight": (L, kv, H), "layers.attn.v.weight": (L, kv, H),
                  "layers.attn.o.weight": (L, H, q), "layers.mlp_norm.weight": (L, H), "norm.weight": (H,)}
        if self.dense:
            D = len(self.dense)
            shapes.update({"layers.mlp.gate.weight": (D, F, H), "layers.mlp.up.weight": (D, F, H),
                           "layers.mlp.down.weight": (D, H, F)})
        if self.experts:
            D, E, G, S = len(self.sparse), self.experts, self.expert_ffn, self.shared
            shapes.update({"layers.router.weight": (D, E, H), "layers.experts.gate.weight": (D, E, G, H),
                           "layers.experts.up.weight": (D, E, G, H), "layers.experts.down.weight": (D, E, H, G)})
            if self.router_bias:
                shapes["layers.router.bias"] = (D, E)
            if S:
                shapes.update({"layers.shared.gate.weight": (D, S, H), "layers.shared.up.weight": (D, S, H),
                               "layers.shared.down.weight": (D, H, S), "layers.shared.switch.weight": (D, 1, H)})
        if self.qkv_bias:
            shapes.update({"layers.attn.q.bias": (L, q), "layers.attn.k.bias": (L, kv),
                           "layers.attn.v.bias": (L, kv)})
        if self.out_bias:
            shapes["layers.attn.o.bias"] = (L, H)
        if self.mlp_bias:
            shapes.update({"layers.mlp.gate.bias": (L, F), "layers.mlp.up.bias": (L, F),
                           "layers.mlp.down.bias": (L, H)})
        if self.qk_norm:
            shapes.update({"layers.attn.q_norm.weight": (L, self.dim), "layers.attn.k_norm.weight": (L, self.dim)})
        if not self.tied:
            shapes["head.weight"] = (V, H)
        return shapes

    def end(self, name):
        """The number of the last layer that has the tensor, from 1 on."""
        if name.startswith(("layers.router.", "layers.experts.", "layers.shared.")):
            return self.sparse[-1] + 1
        return self.dense[-1] + 1 if name.startswith("layers.mlp.") else self.layers


def rms_norm(x, weight, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rotate(x, theta):
    """x: [batch, heads, seq, dim]; element i turns with element i + dim/2."""
    dim = x.shape[-1]
    frequency = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * frequency
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    low, high = x[..., : dim // 2], x[..., dim // 2 :]
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine), -1)


def gated(h, gate, up, down):
    return (torch.nn.functional.silu(h @ gate.T) * (h @ up.T)) @ down.T


CLOSE = 1e-5


def experts(c, w, l, h, routing):
    """The feed-forward half of a layer with experts, and its balance loss, a mean over sequences. `routing`
    gets, token by token, the experts in ascending order, and whether the choice is close."""
    batch, seq, hidden = h.shape
    probabilities = (h @ w["layers.router.weight"][l].T).softmax(-1)
    bias = w["layers.router.bias"][l] if c.router_bias else 0
    order = torch.sort(probabilities + bias, dim=-1, descending=True, stable=True)
    chosen = order.indices[..., : c.chosen]
    weight = probabilities.gather(-1, chosen)
    margin = order.values[..., c.chosen - 1] - order.values[..., c.chosen] if c.chosen < c.experts else None
    if c.norm_topk:
        weight = weight / weight.sum(-1, keepdim=True)
    y = torch.zeros_like(h)
    for e in range(c.experts):
        count = (weight * (chosen == e)).sum(-1, keepdim=True)
        y = y + count * gated(h, *(w[f"layers.experts.{part}.weight"][l][e] for part in ("gate", "up", "down")))
    if c.shared:
        opening = torch.sigmoid(h @ w["layers.shared.switch.weight"][l].T)
        y = y + opening * gated(h, *(w[f"layers.shared.{part}.weight"][l] for part in ("gate", "up", "down")))
    used = torch.nn.functional.one_hot(chosen, c.experts).sum(2).to(h.dtype).mean(1)  # [batch, expert]
    c.loads[l] = used.sum(0) * seq
    balance = c.experts * (used * probabilities.mean(1)).sum(-1).mean()
    ascending = chosen.sort(-1).values
    routing.append(("".join(f"{e:x}" for e in ascending.reshape(-1).tolist()),
                    [] if margin is None else (margin < CLOSE).reshape(-1).nonzero().reshape(-1).tolist()))
    return y, balance


def layer(c, w, l, x, routing):
    def linear(y, name, at=l):
        """`at`: the layer's place among those that have the tensor."""
        bias = w.get(f"layers.{name}.bias")
        return torch.nn.functional.linear(y, w[f"layers.{name}.weight"][at], None if bias is None else bias[at])

    batch, seq, _ = x.shape
    h = rms_norm(x, w["layers.attn_norm.weight"][l], c.eps)
    q = linear(h, "attn.q").view(batch, seq, c.heads, c.dim)
    k = linear(h, "attn.k").view(batch, seq, c.kv_heads, c.dim)
    v = linear(h, "attn.v").view(batch, seq, c.kv_heads, c.dim)
    if c.qk_norm:
        q = rms_norm(q, w["layers.attn.q_norm.weight"][l], c.eps)
        k = rms_norm(k, w["layers.attn.k_norm.weight"][l], c.eps)
    q, k, v = (rotate(q.transpose(1, 2), c.theta), rotate(k.transpose(1, 2), c.theta), v.transpose(1, 2))
    head = torch.arange(c.heads) // (c.heads // c.kv_heads)
    scores = q @ k[:, head].transpose(2, 3) / math.sqrt(c.dim)
    scores = scores.masked_fill(torch.ones(seq, seq, dtype=torch.bool).triu(1), -math.inf)
    context = (scores.softmax(-1) @ v[:, head]).transpose(1, 2).reshape(batch, seq, c.heads * c.dim)
    x = x + c.drop("layers.attn.dropout", l, linear(context, "attn.o"))
    h = rms_norm(x, w["layers.mlp_norm.weight"][l], c.eps)
    if l in c.sparse:
        y, balance = experts(c, w, c.sparse.index(l), h, routing)
        return x + c.drop("layers.mlp.dropout", l, y), balance
    l_mlp = c.dense.index(l)
    y = linear(torch.nn.functional.silu(linear(h, "mlp.gate", l_mlp)) * linear(h, "mlp.up", l_mlp), "mlp.down", l_mlp)
    return x + c.drop("layers.mlp.dropout", l, y), None


def loss_of(c, w, tokens, targets, routing):
    """The mean cross-entropy; the balance loss, its coefficient included, which counts beside it."""
    x = w["embed.weight"][tokens]
    balance = torch.zeros((), dtype=x.dtype)
    for l in range(c.layers):
        x, part = layer(c, w, l, x, routing)
        if part is not None:
            balance = balance + c.balance * part / len(c.sparse)
    x = rms_norm(x, w["norm.weight"], c.eps)
    logits = x @ w["embed.weight" if c.tied else "head.weight"].T
    return torch.nn.functional.cross_entropy(logits.reshape(-1, c.vocab), targets.reshape(-1)), balance


def samples(data, step, batch, seq):
    rows = []
    for i in range((step - 1) * batch, step * batch):
        start = i * seq % (len(data) - seq)
        rows.append(data[start : start + seq + 1])
    rows = torch.from_numpy(np.stack(rows).astype(np.int64))
    return rows[:, :-1], rows[:, 1:]


def rate(step, o):
    if step <= o["warmup"]:
        return o["lr"] * step / o["warmup"]
    progress = (step - o["warmup"]) / (o["steps"] - o["warmup"])
    return o["lr"] * (0.1 + 0.9 * 0.5 * (1.0 + math.cos(math.pi * progress)))


def dropout(c, o, step, name, l, x):
    """See src/train/dropout.h."""
    rate = np.float32(o.get("dropout", 0))
    if rate == 0:
        return x
    batch, seq, hidden = x.shape
    row = (np.arange(batch, dtype=np.uint64)[:, None] * np.uint64(c.layers) + np.uint64(l)) * np.uint64(seq)
    row = row + np.arange(seq, dtype=np.uint64)
    with np.errstate(over="ignore"):
        key = mix(mix(mix(np.uint64(o["seed"])) + np.uint64(hash_name(name))) + np.uint64(step))
        index = row[:, :, None] * np.uint64(hidden) + np.arange(1, hidden + 1, dtype=np.uint64)
        uniform = (mix(key + index * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)).astype(np.float32) / 2**24
    kept = (uniform >= rate) * (np.float32(1) / (np.float32(1) - rate)).astype(np.float64)
    return x * torch.from_numpy(kept).to(x.dtype)


def adamw(w, g, state, step, lr, decay):
    m, v = state.setdefault("m", torch.zeros_like(w)), state.setdefault("v", torch.zeros_like(w))
    m.mul_(0.9).add_(g, alpha=0.1)
    v.mul_(0.95).add_(g * g, alpha=0.05)
    update = (m / (1 - 0.9**step)) / ((v / (1 - 0.95**step)).sqrt() + 1e-8)
    w.sub_(lr * (update + decay * w))


def sgd(w, g, state, _step, lr, decay):
    """PyTorch's own."""
    if not state:
        state["w"] = torch.nn.Parameter(w.detach())
        state["sgd"] = torch.optim.SGD([state["w"]], lr, momentum=0.9, weight_decay=decay)
    state["sgd"].param_groups[0]["lr"] = lr
    state["w"].grad = g
    state["sgd"].step()


def orthogonal(x):
    """Five Newton-Schulz iterations on the last two dimensions."""
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.transpose(-1, -2)
    x = x / (x.flatten(-2).norm(dim=-1)[..., None, None] + 1e-7)
    for _ in range(5):
        a = x @ x.transpose(-1, -2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x if wide else x.transpose(-1, -2)


def muon(w, g, state, step, lr, decay):
    """Matrices of layers, each on its own; AdamW for what else there is."""
    if w.ndim < 3:
        adamw(w, g, state, step, lr, decay)
        return
    m = state.setdefault("m", torch.zeros_like(w))
    m.mul_(0.95).add_(g)
    size = 0.2 * math.sqrt(max(w.shape[-2:]))
    w.sub_(lr * (size * orthogonal(g + 0.95 * m) + decay * w))


OPTIMIZERS = {"adamw": adamw, "sgd": sgd, "muon": muon}


def run(config, data_path, o, dtype):
    c = Config(config)
    data = np.fromfile(data_path, np.uint8)
    w = {name: torch.from_numpy(initial(o["seed"], name, shape, c.end(name))).to(dtype).requires_grad_()
         for name, shape in c.shapes().items()}
    frozen = [p for p in o.get("freeze", "").split(",") if p]
    trained = [name for name in w if not any(fnmatch.fnmatchcase(name, p) for p in frozen)]
    states = {name: {} for name in trained}
    losses, norms, balances, routings = [], [], [], []
    for step in range(1, o["steps"] + 1):
        routing, c.loads = [], {}
        c.drop = lambda name, l, x: dropout(c, o, step, name, l, x)
        loss, balance = loss_of(c, w, *samples(data, step, o["global_batch"], o["seq"]), routing)
        moved = [name for name in trained if name != "layers.router.bias"]
        gradients = dict(zip(moved, torch.autograd.grad(loss + balance, [w[name] for name in moved])))
        norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in gradients.values()))
        clip = 1.0 / norm if norm > 1.0 else 1.0
        lr = rate(step, o)
        with torch.no_grad():
            if "layers.router.bias" in trained:
                load = torch.stack([c.loads[l] for l in range(len(c.sparse))])
                w["layers.router.bias"].sub_(0.001 * torch.sign(load - load.sum(-1, keepdim=True) / c.experts))
            for name in moved:
                decay = 0.0 if name.endswith(("norm.weight", ".bias")) else 0.1
                OPTIMIZERS[o.get("optimizer", "adamw")](w[name], gradients[name] * clip, states[name], step, lr, decay)
        losses.append(float(f"{loss.item():.9g}"))
        norms.append(float(f"{norm:.9g}"))
        balances.append(float(f"{balance.item():.9g}"))
        routings.append(routing)
    result = {"losses": losses, "grad_norms": norms}
    if c.experts:
        # Of each step and layer with experts: the experts of its tokens, and which choices are close.
        result.update({"aux_losses": balances, "chosen": c.chosen,
                       "routing": [[text for text, _ in step] for step in routings],
                       "close": [[close for _, close in step] for step in routings]})
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("config", nargs="?")
    parser.add_argument("data", nargs="?")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    parser.add_argument("--update", action="store_true")
    for key, value in DEFAULTS.items():
        parser.add_argument("--" + key.replace("_", "-"), type=type(value), default=value)
    a = parser.parse_args()
    options = {key: getattr(a, key) for key in DEFAULTS}
    torch.set_num_threads(1)
    if not a.update:
        print(json.dumps({**options, **run(a.config, a.data, options, getattr(torch, a.dtype))}, indent=1))
        return
    variants = []
    for v in VARIANTS:
        o = {"optimizer": "adamw", "freeze": "", "dropout": 0.0, **options, **v}
        variants.append({**o, **run(os.path.join(HERE, "models", v["model"], "config.json"),
                                    os.path.join(HERE, "data.txt"), o, getattr(torch, a.dtype))})
    with open(os.path.join(HERE, "oracle_optimizers.json"), "w", encoding="ascii") as file:
        json.dump(variants, file, indent=1)
        file.write("\n")
    for model in sorted(os.listdir(os.path.join(HERE, "models"))):
        result = run(os.path.join(HERE, "models", model, "config.json"), os.path.join(HERE, "data.txt"),
                     options, getattr(torch, a.dtype))
        with open(os.path.join(HERE, f"oracle_{model}.json"), "w", encoding="ascii") as file:
            json.dump({"model": model, "data": "data.txt", **options, **result}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
