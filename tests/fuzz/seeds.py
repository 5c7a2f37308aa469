#!/usr/bin/env python3
"""Seeds for the fuzzers out of the fixtures. Usage: seeds.py FIXTURES OUT

OUT gets a folder for each fuzzer with one file a seed: whole files of torch.save (zip, torch), the pickles
in them (pickle), safetensors files, indexes, rules, manifests of native checkpoints, and dialects.
"""
import json
import pathlib
import sys
import zipfile

MOST = 65536
RULES = [
    '{"rules":[{"match":".*o\\\\.weight","split":1},{"match":"a","split":0,"parts":[2,1]},'
    '{"match":"n","replicated":true},{"match":"e","split":0,"vocabulary":61},{"match":"h","tied":"e"}],'
    '"otherwise":{"split":0}}',
    '{"rules":[{"match":"layers","split":0,"parts":[16,4,4],"groups":2,"shared":[1,2]},'
    '{"match":"e","replicated":true,"equal":true}]}',
    '{"universal_checkpoint_info":{"original_vocab_size":61,"vocabulary_parameter_patterns":[".*embed"],'
    '"parameter_with_sub_params":[{"patterns":["qkv"],"shape":[[4,2,2],-1],"partition_dim":0}],'
    '"sub_param_shard_widths":{"qkv":[[2,2],[1,1],[1,1]]},"tp_replicated_parameter_patterns":["\\\\d+\\\\.n"]}}',
]


DIALECT = {
    "dialect": "fuzz", "prefixes": ["module"], "wrappers": ["_orig_mod"], "ignored": ["h.{}.mask"],
    "tensors": [
        {"name": "[m.]h.{0+2}.e.{1}.w", "of": ["layers.experts.gate.weight", "layers.experts.up.weight"],
         "transposed": True, "along": 1},
        {"name": "h.{0}.qa.{layers+1}", "of": "layers.attn.q_a.weight", "order": [1, 0]},
        {"name": "h.{0}.g", "of": ["layers.mlp.gate.weight", "layers.mlp.up.weight"], "groups": "heads",
         "when": {"family": ["deepseek_v3", "x"]}},
        {"name": "tok.{}", "of": "embed.weight", "alias": True},
        {"name": "*", "of": "*"}]}


def manifest(count):
    """A native manifest of `count` ranks without its digest and last brace."""
    files = []
    for r in range(count):
        shards = [{"tensor": "w", "role": role, "offset": [r * 4, 0], "extent": [4, 8], "at": 1024 * (1 + i),
                   "xxh3": "0" * 16, "sum": "0" * 32} for i, role in enumerate(("param", "exp_avg"))]
        files.append({"name": f"rank-{r:05d}.safetensors", "rank": r, "bytes": 4096, "shards": shards})
    roles = {role: {"dtype": "float32", "sum": "0" * 32} for role in ("param", "exp_avg")}
    root = {"format": "reshard", "version": 1, "step": 3, "job": "j", "layout": f"tp={count}", "world": count,
            "extras": {}, "facts": {"family": "llama"},
            "roles": [{"name": n, "dtype": "float32", "class": "model"} for n in roles],
            "tensors": [{"name": "w", "shape": [4 * count, 8], "roles": roles, "first_layer": 1}], "files": files}
    return json.dumps(root, separators=(",", ":"))[:-1]


def pickles(data):
    """The pickles in a file of torch.save: data.pkl of a zip, or the start of an older stream."""
    if data[:4] != b"PK\x03\x04":
        return [data]
    try:
        with zipfile.ZipFile(__import__("io").BytesIO(data)) as archive:
            return [archive.read(n) for n in archive.namelist() if n.endswith("data.pkl")]
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError):
        return []


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    fixtures, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    if not fixtures.is_dir():
        print(f"{fixtures} is not there: no seeds")
        return 0
    count = {}

    def seed(name, data):
        if len(data) <= MOST:
            count[name] = count.get(name, 0) + 1
            folder = out / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{count[name]:05d}").write_bytes(data)

    for path in sorted(fixtures.rglob("*.pt")):
        data = path.read_bytes()
        seed("zip", data)
        seed("torch", data)
        for pickle in pickles(data):
            seed("pickle", pickle)
    for path in sorted(fixtures.rglob("*.safetensors")):
        seed("safetensors", path.read_bytes())
    for ranks in (1, 2):
        seed("manifest", manifest(ranks).encode())
    seed("dialect", json.dumps(DIALECT).encode())
    for path in sorted(pathlib.Path(__file__).parents[2].joinpath("src/dialect").glob("*.json")):
        seed("dialect", path.read_bytes())
    for rules in RULES:
        seed("rules", rules.encode())
    print(", ".join(f"{n} {c}" for n, c in sorted(count.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
