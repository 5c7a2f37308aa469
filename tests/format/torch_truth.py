"""What PyTorch reads from what was written, against a fixture's truth.json: every tensor's dtype, shape and SHA-256.

    torch_truth.py TRUTH WHOLE.pt WEIGHTS.pt UNIVERSAL [UNIVERSAL_OF_ZERO_3]
"""
import glob
import hashlib
import json
import os
import sys
import types

import torch

# DeepSpeed's own classes, as far as pickles name them; it need not be there.
for name in ("deepspeed.runtime.fp16.loss_scaler", "deepspeed.checkpoint.universal_checkpoint"):
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(parts[i - 1]))
    for kind in ("LossScaler", "DynamicLossScaler", "SubparamShape"):
        made = type(kind, (), {})
        made.__module__ = name
        setattr(sys.modules[name], kind, made)


def load(path, weights_only):
    return torch.load(path, weights_only=weights_only)


def digest(tensor):
    data = tensor.detach().contiguous().reshape(-1)
    return hashlib.sha256(bytes(data.view(torch.uint8).numpy()) if data.numel() else b"").hexdigest()


def same(tensor, row, flat=False):
    shape = list(tensor.shape)
    assert str(tensor.dtype) == "torch." + row["dtype"], (row, tensor.dtype)
    if row.get("tp_rule") == "vocab" and tensor.numel() < row["numel"]:
        assert tensor.reshape(-1)[:4].tolist() == row["first"], row  # the truth has padding rows
        return
    assert shape == row["shape"] or flat or (row["shape"] == [] and shape == [1]), (row, shape)
    assert digest(tensor) == row["sha256"], row
    assert tensor.storage().size() == tensor.numel(), (row, "a storage with more than the tensor")


truth = json.load(open(sys.argv[1]))
rows = {}
for row in truth["tensors"]:
    rows[row["kind"], row["name"]] = row
weights = [r for (kind, _), r in rows.items() if kind in ("param", "buffer", "param-alias")]
states = {"fp32": "master", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq", "momentum_buffer": "momentum_buffer"}

whole, alone = load(sys.argv[2], True), load(sys.argv[3], True)
assert set(whole) <= {"reshard", "extras", "model", "optimizer", "others"}, set(whole)
checked = 0
for row in weights:
    for model in (whole["model"], alone):
        if row["name"] not in model:
            assert row["kind"] == "param-alias" or row.get("frozen") or "pipe_stages" in row, row
            continue
        same(model[row["name"]], rows["param", row["alias_of"]] if row["kind"] == "param-alias" else row)
        checked += 1
    if row["kind"] == "param-alias" and row["name"] in alone:
        a, b = alone[row["name"]], alone[row["alias_of"]]
        assert a.data_ptr() == b.data_ptr() or ("moe" in truth["case"] and torch.equal(a, b)), row
for (kind, name), row in rows.items():
    if kind in states and name in whole["optimizer"]["state"]:
        same(whole["optimizer"]["state"][name][states[kind]], row)
        checked += 1
json.loads(whole["extras"])
assert json.dumps(whole["reshard"]) and alone._reshard["version"] == 1

for root in sys.argv[4:]:
    if not os.path.exists(root):
        continue
    folder = os.path.join(root, open(os.path.join(root, "latest_universal")).read())
    bare = 0
    for (kind, name), row in rows.items():
        path = os.path.join(folder, "zero", name, kind + ".pt")
        if kind not in states or not os.path.exists(path):
            assert kind not in states or "pipe_stages" in row, path
            continue
        value = load(path, True) if "sub_param_shape" not in open(path, "rb").read().decode("latin1") else \
            load(path, False)
        bare += isinstance(value, torch.Tensor)
        same(value if isinstance(value, torch.Tensor) else value["param"], row, isinstance(value, torch.Tensor))
        checked += 1
    common = load(os.path.join(folder, "zero", "optimizer_state.pt"), False)
    assert isinstance(common["ds_version"], str) and isinstance(common["param_groups"], list)
    models = glob.glob(os.path.join(folder, "*mp_rank_*_model_states.pt"))
    assert models and (bare > 0) == ("zero_pp_rank_0" in models[0]) or len(models) > 1, models
    for path in models:
        model = load(path, False)
        for key in ("module", "optimizer", "param_shapes", "lr_scheduler", "global_steps", "skipped_steps",
                    "dp_world_size", "mp_world_size", "universal_checkpoint_info"):
            assert key in model, (path, key)
assert checked > 10, checked
print(checked, "tensors")
