#!/usr/bin/env python3
"""The training step of bench/stage.c in PyTorch: same model, same batch, forward, backward, clipping,
AdamW. Usage: trainer_torch.py [--steps N] [--batch B] [--threads T]. Prints the median step's tokens
per second, by the clock and by the processor time used."""
import argparse
import time

import torch
import torch.nn.functional as F

SEQ, HIDDEN, LAYERS, HEADS, KV_HEADS, FFN, VOCAB = 256, 256, 4, 8, 4, 688, 256
DIM = HIDDEN // HEADS
WARM = 2


class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def rotate(x, cosine, sine):
    low, high = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-high, low), dim=-1) * sine


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attn_norm = Norm()
        self.qkv = torch.nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * DIM, bias=False)
        self.o = torch.nn.Linear(HEADS * DIM, HIDDEN, bias=False)
        self.mlp_norm = Norm()
        self.gate_up = torch.nn.Linear(HIDDEN, 2 * FFN, bias=False)
        self.down = torch.nn.Linear(FFN, HIDDEN, bias=False)
        for weight in (self.qkv, self.o, self.gate_up, self.down):
            scaled = weight is self.o or weight is self.down
            torch.nn.init.normal_(weight.weight, std=0.02 / ((2 * LAYERS) ** 0.5 if scaled else 1))

    def forward(self, x, cosine, sine, mask):
        batch = x.shape[0]
        q, k, v = self.qkv(self.attn_norm(x)).split(
            (HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM), dim=-1)
        q = rotate(q.view(batch, SEQ, HEADS, DIM).transpose(1, 2), cosine, sine)
        k = rotate(k.view(batch, SEQ, KV_HEADS, DIM).transpose(1, 2), cosine, sine)
        v = v.view(batch, SEQ, KV_HEADS, DIM).transpose(1, 2)
        k = k.repeat_interleave(HEADS // KV_HEADS, dim=1)
        v = v.repeat_interleave(HEADS // KV_HEADS, dim=1)
        scores = torch.matmul(q, k.transpose(2, 3)) * DIM**-0.5 + mask
        context = torch.matmul(torch.softmax(scores, dim=-1), v)
        x = x + self.o(context.transpose(1, 2).reshape(batch, SEQ, HEADS * DIM))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCAB, HIDDEN)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm()
        torch.nn.init.normal_(self.embed.weight, std=0.02)
        angle = torch.arange(SEQ)[:, None] * 10000.0 ** (-torch.arange(0, DIM, 2) / DIM)
        angle = torch.cat((angle, angle), dim=-1)
        self.cosine, self.sine = angle.cos(), angle.sin()
        self.mask = torch.full((SEQ, SEQ), float("-inf")).triu(1)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.cosine, self.sine, self.mask)
        return F.linear(self.norm(x), self.embed.weight)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    model = Decoder()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    data = torch.tensor([i * i % 251 for i in range(options.batch * SEQ + 1)])
    tokens, targets = data[:-1].view(-1, SEQ), data[1:]
    seconds, busy = [], []
    for _ in range(options.steps + WARM):
        start, busy_start = time.perf_counter(), time.process_time()
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(tokens).view(-1, VOCAB), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        busy.append(time.process_time() - busy_start)
    wall, used = (options.batch * SEQ / sorted(times[WARM:])[options.steps // 2] for times in (seconds, busy))
    print(f"{wall:.1f} tokens/s, {used:.1f} by processor time ({torch.__version__}, batch {options.batch}, "
          f"{options.threads} threads, loss {loss.item():.6f})")


if __name__ == "__main__":
    main()
