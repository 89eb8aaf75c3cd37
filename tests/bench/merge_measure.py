"""What the merge's figures are taken with: checkpoints of real shapes, and children that merge them.

Every run is a child of its own, in turn; start-up and imports are subtracted and given as figures of their own. Memory
is the peak above what the imports take. Models are random finite bfloat16, made on the spot.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from pipelines.merge.tensors import header_bytes  # noqa: E402

ORACLE = Path(os.environ.get("TRAJMILL_ORACLE", ROOT / ".oracle")) / "bin" / "python"
DRIVER = ROOT / "tests" / "merge" / "oracle_run.py"
SMALL = {"hidden": 576, "inner": 1536, "layers": 30, "kv": 192, "vocabulary": 49152, "heads": 9}
BIG = {"hidden": 2048, "inner": 5632, "layers": 22, "kv": 256, "vocabulary": 32000, "heads": 32}
Figures = dict[str, float]

CHILD = """
import json, resource, sys, time
from pathlib import Path
def memory(field):
    # Not ru_maxrss: a child inherits its parent's peak there.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))
def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
start = time.perf_counter()
from pipelines.merge.recipe_file import load_recipe
from pipelines.merge.run import merge
{body}
started = dict(start_wall=time.perf_counter() - start, start_cpu=cpu(), start_memory=memory("VmRSS"))
begin, before = time.perf_counter(), cpu()
work(*sys.argv[1:])
print(json.dumps(started | dict(wall=time.perf_counter() - begin, cpu=cpu() - before, memory=memory("VmHWM"))))
"""
OURS = """
def work(recipe, out):
    merge(load_recipe(Path(recipe)), Path(out))
"""
FLOOR = """
import hashlib, os
def work(hashed, out, *folders):
    buffer, count = bytearray(1 << 20), 0
    os.makedirs(out)
    for number, folder in enumerate(folders):
        for path in sorted(Path(folder).glob("*.safetensors")):
            # What a merge reads, and what it writes; the lineage needs the SHA-256 of both.
            digest, written = hashlib.sha256(), hashlib.sha256()
            with path.open("rb", buffering=0) as source, open(out + "/" + path.name, "ab", buffering=0) as target:
                while count := source.readinto(buffer):
                    view = memoryview(buffer)[:count]
                    if int(hashed):
                        digest.update(view)
                    if number == 0:
                        target.write(view)
                        if int(hashed):
                            written.update(view)
                os.fsync(target.fileno())
"""


def checkpoint(folder: Path, shape: dict[str, int], seed: int, shards: int = 1) -> Path:
    """A Llama checkpoint of a shape, tied, bfloat16."""
    hidden, inner, kv = shape["hidden"], shape["inner"], shape["kv"]
    sizes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape["vocabulary"], hidden)}
    for layer in range(shape["layers"]):
        for name, size in (
            ("self_attn.q_proj", (hidden, hidden)), ("self_attn.k_proj", (kv, hidden)),
            ("self_attn.v_proj", (kv, hidden)), ("self_attn.o_proj", (hidden, hidden)),
            ("mlp.gate_proj", (inner, hidden)), ("mlp.up_proj", (inner, hidden)), ("mlp.down_proj", (hidden, inner)),
            ("input_layernorm", (hidden,)), ("post_attention_layernorm", (hidden,)),
        ):  # fmt: skip
            sizes[f"model.layers.{layer}.{name}.weight"] = size
    sizes["model.norm.weight"] = (hidden,)
    if shape is BIG:
        sizes["lm_head.weight"] = (shape["vocabulary"], hidden)
    folder.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden}
    config |= {"intermediate_size": inner, "num_hidden_layers": shape["layers"], "vocab_size": shape["vocabulary"]}
    config |= {"num_attention_heads": shape["heads"], "num_key_value_heads": kv // (hidden // shape["heads"])}
    config |= {"tie_word_embeddings": shape is not BIG, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    # Halves of normal numbers, drawn once and turned: fast, and no two models are alike.
    pool = np.random.default_rng(seed).standard_normal(1 << 22, dtype=np.float32)
    bits = (pool.view(np.uint32) >> 16).astype(np.uint16)
    names = list(sizes)
    weight_map = {}
    for shard in range(shards):
        own = names[shard * len(names) // shards : (shard + 1) * len(names) // shards]
        file = "model.safetensors" if shards == 1 else f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        weight_map |= dict.fromkeys(own, file)
        with (folder / file).open("wb") as target:
            target.write(header_bytes({name: ("BF16", sizes[name]) for name in own}))
            for index, name in enumerate(own):
                turned = np.roll(bits, index * 7919 + shard)
                target.write(np.resize(turned, int(np.prod(sizes[name]))).tobytes())
    if shards > 1:
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def child(command: list[str], out: Path) -> Figures:
    """The figures of one child, less its start-up; its output is removed."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=out.parent)
    found: Figures = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            found |= {k: v for k, v in json.loads(line).items() if k != "out"}
    shutil.rmtree(out)
    return found | {"memory": found["memory"] - found["start_memory"]}


def ours(recipe: Path, out: Path) -> Figures:
    """Our merge."""
    return child([sys.executable, "-c", CHILD.format(body=OURS), str(recipe), str(out)], out)


def floor(hashed: bool, out: Path, folders: list[Path]) -> Figures:
    """Reading all, writing one model's bytes, with or without SHA-256."""
    body = [sys.executable, "-c", CHILD.format(body=FLOOR), str(int(hashed)), str(out), *map(str, folders)]
    return child(body, out)


def theirs(recipe: Path, out: Path) -> Figures:
    """mergekit's merge."""
    return child([str(ORACLE), str(DRIVER), str(recipe), str(out)], out)


def best(runs: list[Figures]) -> Figures:
    """The smallest of each figure: what disturbs only adds."""
    return {key: min(run[key] for run in runs) for key in runs[0]}


def write_recipe(folder: Path, method: str, models: list[Path], base: Path | None) -> Path:
    """The recipe in mergekit's YAML."""
    lines = [f"merge_method: {method}", "dtype: bfloat16", "models:"]
    density = ", density: 0.3" if method == "ties" else ""
    lines += [f"  - {{model: {model}, parameters: {{weight: {i + 1}{density}}}}}" for i, model in enumerate(models)]
    if base:
        lines.append(f"base_model: {base}")
    path = folder / f"{method}.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path
