#!/usr/bin/env python3
"""Seeds for the fuzzers out of the fixtures. Usage: seeds.py FIXTURES OUT

OUT gets a folder for each fuzzer with one file a seed: whole files of torch.save (zip, torch), the pickles
in them (pickle), safetensors files, indexes and rules.
"""
import pathlib
import sys
import zipfile

MOST = 65536
RULES = [
    '{"rules":[{"match":".*o\\\\.weight","split":1},{"match":"a","split":0,"parts":[2,1]},'
    '{"match":"n","replicated":true},{"match":"e","split":0,"vocabulary":61},{"match":"h","tied":"e"}],'
    '"otherwise":{"split":0}}',
    '{"universal_checkpoint_info":{"original_vocab_size":61,"vocabulary_parameter_patterns":[".*embed"],'
    '"parameter_with_sub_params":[{"patterns":["qkv"],"shape":[[4,2,2],-1],"partition_dim":0}],'
    '"sub_param_shard_widths":{"qkv":[[2,2],[1,1],[1,1]]},"tp_replicated_parameter_patterns":["\\\\d+\\\\.n"]}}',
]


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
    for rules in RULES:
        seed("rules", rules.encode())
    print(", ".join(f"{n} {c}" for n, c in sorted(count.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
