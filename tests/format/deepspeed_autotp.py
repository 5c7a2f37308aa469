"""One rank of a run with DeepSpeed's automatic tensor parallelism (0.19.6 or later) on the CPU: shares are not even.

    RANK=0 WORLD_SIZE=3 ... deepspeed_autotp.py train|load DIR --tp N --stage N

`train` saves to DIR; `load` takes the universal checkpoint in DIR and saves what it then has to DIR.again.
"""
import argparse

import torch

import deepspeed


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(12, 20 + 12 + 12)
        self.gate_up = torch.nn.Linear(12, 2 * 24, bias=False)
        self.plain = torch.nn.Linear(12, 22)
        self.down = torch.nn.Linear(22, 12)
        self.norm = torch.nn.LayerNorm(12)

    def forward(self, x):
        x = self.norm(x + self.down(self.plain(x)))
        return (self.qkv(x) ** 2).mean() + (self.gate_up(x) ** 2).mean()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layers = torch.nn.ModuleList([Block(), Block()])

    def forward(self, x):
        return sum(layer(x) for layer in self.layers)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["train", "load"])
    parser.add_argument("dir")
    parser.add_argument("--tp", type=int, required=True)
    parser.add_argument("--stage", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    specs = [{"patterns": [r".*qkv\.(weight|bias)$"], "partition_type": "column", "shape": [[20, 12, 12], -1],
              "partition_dim": 0},
             {"patterns": [r".*gate_up\.weight$"], "partition_type": "column", "shape": [2, -1], "partition_dim": 0},
             {"patterns": [r".*plain\.weight$"], "partition_type": "column"},
             {"patterns": [r".*down\.weight$"], "partition_type": "row"}]
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": args.stage},
              "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, "steps_per_print": 1000,
              "checkpoint": {"load_universal": args.action == "load"},
              "tensor_parallel": {"autotp_size": args.tp,
                                  "partition_config": {"use_default_specs": False, "layer_specs": specs}}}
    deepspeed.init_distributed("gloo")
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
    if args.action == "load":
        path, _ = engine.load_checkpoint(args.dir)
        assert path is not None, "DeepSpeed found nothing to load"
        engine.save_checkpoint(args.dir + ".again", tag="global_step3")
    else:
        for step in range(3):
            engine.backward(engine(torch.randn(2, 12, generator=torch.Generator().manual_seed(step))))
            engine.step()
        engine.save_checkpoint(args.dir, tag="global_step3")
    torch.distributed.barrier()


main()
