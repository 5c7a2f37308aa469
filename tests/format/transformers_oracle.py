#!/usr/bin/env python3
"""Weights through reshard and back, loaded by transformers. Usage: transformers_oracle.py RESHARD

For each family: a random model, saved by transformers; to canonical names and back; loaded again with no missing
and no unexpected tensor, and equal logits. Then a model that reshard trained: transformers computes the loss of
the next step on the trainer's own samples.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

SIZES = {"hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 31, "max_position_embeddings": 32}
MODELS = {
    "llama": ("Llama", {"attention_bias": True}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "mistral": ("Mistral", {}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 8}),
    "mixtral": ("Mixtral", {"num_local_experts": 4}),
    "qwen2-moe": ("Qwen2Moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
                               "shared_expert_intermediate_size": 20}),
    "gpt2": ("GPT2", None),
}
GPT2 = {"n_embd": 24, "n_head": 3, "n_layer": 3, "vocab_size": 29, "n_positions": 32}
TINY = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 4, "vocab_size": 256, "tie_word_embeddings": True, "rms_norm_eps": 1e-5}


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=240, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def load(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        str(folder), output_loading_info=True, local_files_only=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[key], (folder, key, info[key])
    return model.eval()


def family(reshard, root, name, dtype):
    kind, options = MODELS[name]
    config_class = getattr(transformers, f"{kind}Config", None)
    if config_class is None:
        print(f"  {name}: transformers {transformers.__version__} has none; left out")
        return 0
    config = config_class(**(GPT2 if options is None else {**SIZES, **options}))
    maker = transformers.GPT2LMHeadModel if options is None else getattr(transformers, f"{kind}ForCausalLM")
    a, own, b = root / name, root / f"{name}-own", root / f"{name}-back"
    maker(config).to(dtype).save_pretrained(str(a), safe_serialization=True)
    run(reshard, "convert", a, own, "--to", "native", "--weights-only", "--dialect", "reshard")
    run(reshard, "convert", own, b, "--to", "safetensors", "--hf-from", a, "--max-shard-size", 30000)
    assert "equal" in run(reshard, "verify", a, b, "--roles", "param")
    assert "equal" in run(reshard, "verify", own, b, "--roles", "param")
    tokens = torch.arange(24).reshape(2, 12) % 29
    with torch.no_grad():
        x, y = load(a)(tokens).logits, load(b)(tokens).logits
    assert torch.equal(x, y), name
    print(f"  {name} in {dtype}: equal logits")
    return 1


def trained(reshard, root):
    seq, batch = 16, 4
    data = root / "data"
    data.write_bytes(bytes(range(33, 120)) * 40)
    job = root / "job"
    base = [reshard, "train", "--model", "llama-tiny", "--data", data, "--seq", seq, "--global-batch", batch,
            "--job", job, "--steps", 6, "--layout", "tp=2", "--save-every", 5]
    run(*base)
    metrics = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
    loss = next(m["loss"] for m in metrics if m.get("step") == 6 and "loss" in m)
    config = root / "tiny"
    transformers.LlamaConfig(**TINY).save_pretrained(str(config))
    run(reshard, "convert", job / "checkpoints" / "step-00000005", root / "hf", "--to", "safetensors",
        "--hf-from", config)
    text = data.read_bytes()
    rows = []
    for i in range(5 * batch, 6 * batch):
        at = i * seq % (len(text) - seq)
        rows.append(list(text[at:at + seq + 1]))
    tokens = torch.tensor(rows)
    with torch.no_grad():
        logits = load(root / "hf")(tokens[:, :-1]).logits
    found = torch.nn.functional.cross_entropy(logits.reshape(-1, 256), tokens[:, 1:].reshape(-1)).item()
    assert abs(found - loss) < 1e-4 * loss, (found, loss)
    print(f"  trained: loss of step 6 is {loss:.6f}, of transformers {found:.6f}")


def main():
    torch.manual_seed(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    reshard = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        done = sum(family(reshard, root, name, torch.float32) for name in MODELS)
        root2 = root / "bf16"
        root2.mkdir()
        done += sum(family(reshard, root2, name, torch.bfloat16) for name in ("llama", "gpt2"))
        assert done >= 8, done
        trained(reshard, root)


main()
