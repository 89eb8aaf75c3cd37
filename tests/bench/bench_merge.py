"""Linear merge of two bf16 checkpoints of 270 MB against the floor: reading and writing the same bytes.

Each figure is the median of three child processes, start-up and imports subtracted. `peer` says what it is held
against; `hashed floor` also computes the SHA-256 of every byte, as the lineage needs it.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from pipelines.merge.tensors import header_bytes  # noqa: E402

LAYERS, WIDTH = 30, 576
ROUNDS = 3

OURS = """
from pipelines.merge.run import merge
from schemas.recipe import MergeRecipe
from pathlib import Path
def work():
    merge(MergeRecipe(method="linear", models=[a, b]), Path(out))
"""
FLOOR = """
import os, hashlib
from pipelines.merge.run import merge
def work(hashed):
    buffer = bytearray(1 << 20)
    digest = hashlib.sha256()
    with open(out, "xb", buffering=0) as target:
        for path, copy in ((a, True), (b, False)):
            with open(path + "/model.safetensors", "rb", buffering=0) as source:
                while count := source.readinto(buffer):
                    view = memoryview(buffer)[:count]
                    if copy:
                        target.write(view)
                    for _ in range(hashed * (1 + copy)):
                        digest.update(view)
        os.fsync(target.fileno())
"""
CHILD = """
import json, sys, time
a, b, out = sys.argv[1:]
def memory(field):
    # Not ru_maxrss: a child inherits its parent's peak there.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))
{body}
begin, cpu = time.perf_counter(), time.process_time()
base = memory("VmRSS")
work({arguments})
print(json.dumps(dict(wall=time.perf_counter() - begin, cpu=time.process_time() - cpu,
    memory=memory("VmHWM") - base)))
"""


def checkpoint(folder: Path, seed: int) -> Path:
    """The shapes of SmolLM2-135M, random bf16 values."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (49152, WIDTH), "model.norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        for name, shape in (
            ("self_attn.q_proj", (WIDTH, WIDTH)), ("self_attn.k_proj", (192, WIDTH)),
            ("self_attn.v_proj", (192, WIDTH)), ("self_attn.o_proj", (WIDTH, WIDTH)),
            ("mlp.gate_proj", (1536, WIDTH)), ("mlp.up_proj", (1536, WIDTH)), ("mlp.down_proj", (WIDTH, 1536)),
            ("input_layernorm", (WIDTH,)), ("post_attention_layernorm", (WIDTH,)),
        ):  # fmt: skip
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    folder.mkdir()
    generator = np.random.default_rng(seed)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(header_bytes({name: ("BF16", shape) for name, shape in shapes.items()}))
        for shape in shapes.values():
            values = generator.standard_normal(int(np.prod(shape)), dtype=np.float32)
            file.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())
    return folder


def measure(body: str, arguments: str, a: Path, b: Path, out: Path) -> dict[str, float]:
    """One child's wall and CPU seconds and memory in MB."""
    script = CHILD.format(body=body, arguments=arguments)
    command = [sys.executable, "-c", script, str(a), str(b), str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    subprocess.run(["rm", "-rf", str(out)], check=True)
    return result


def line(figure: str, ours: float, against: float, peer: str, unit: str, bar: float | None) -> None:
    """One JSON line; `ratio` is ours / against, `bar` its upper limit."""
    ratio = ours / against
    holds = None if bar is None else ratio <= bar
    print(
        json.dumps(
            {"figure": figure, "ours": round(ours, 3), "against": round(against, 3), "peer": peer}
            | {"ratio": round(ratio, 3), "unit": unit, "bar": bar, "holds": holds}
        )
    )


def main() -> None:
    """Make the checkpoints, measure in turn, print."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        a, b, out = checkpoint(folder / "a", 1), checkpoint(folder / "b", 2), folder / "out"
        size = (a / "model.safetensors").stat().st_size / 2**20
        results: dict[str, list[dict[str, float]]] = {"ours": [], "floor": [], "hashed": []}
        for _ in range(ROUNDS):
            results["floor"].append(measure(FLOOR, "0", a, b, out))
            results["hashed"].append(measure(FLOOR, "1", a, b, out))
            results["ours"].append(measure(OURS, "", a, b, out))
    median = {k: {f: statistics.median(r[f] for r in v) for f in v[0]} for k, v in results.items()}
    ours = median["ours"]
    line("merge_linear_cpu", ours["cpu"], median["floor"]["cpu"], "read + write of the same bytes", "s", None)
    line("merge_linear_cpu_hashed", ours["cpu"], median["hashed"]["cpu"], "read + write + SHA-256", "s", 1.5)
    line("merge_linear_wall", ours["wall"], median["floor"]["wall"], "read + write of the same bytes", "s", None)
    line("merge_linear_memory", ours["memory"], size, "size of one checkpoint", "MB", 0.1)
    print(f"# {size:.0f} MB each, bench took {time.perf_counter() - begin:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
