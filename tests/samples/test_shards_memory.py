"""Writing shards takes the memory of a shard, not of all samples."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
from episode_factory import episode, trajectory

from pipelines import store
from pipelines.samples import score
from schemas.ids import content_id, shard_of
from schemas.recipe import ScoreSettings
from schemas.tables import to_arrow

PARTS = 2
SCRIPT = """
import sys
from pathlib import Path
from byte_tokenizer import ByteTokenizer
from pipelines.shards import ShardFacts, write_shards
from schemas.recipe import ShardSettings
class Coarse(ByteTokenizer):
    def encode(self, text):  # one id for a text: this test is about bytes, not about tokens
        return [len(text) % 256]
facts = ShardFacts(seed=0, config_hash="", tokenizer="bytes")
files = write_shards(Path(sys.argv[1]), Coarse(), ShardSettings(max_mb=4), facts)
# Not ru_maxrss: a child inherits its parent's peak there.
status = Path("/proc/self/status").read_text().splitlines()
print(len(files), next(line.split()[1] for line in status if line.startswith("VmHWM")))
"""


def run_of(path: Path, count: int) -> Path:
    """A run with `count` kept samples of about 100 KB; one sample under many ids, as a table of Arrow."""
    (sample,) = score([episode(1, views=[trajectory("word " * 10_000)])], ScoreSettings(max_tokens=10**6))
    one = to_arrow("samples", [sample])
    ids: list[list[str]] = [[] for _ in range(PARTS)]
    for i in range(count):
        name = content_id("sample", i)
        ids[shard_of(name, PARTS)].append(name)
    with store.replacing(path, "samples") as folder:
        for index, part in enumerate(ids):
            rows = one.take(pa.array([0] * len(part)))
            rows = rows.set_column(0, rows.schema.field(0), pa.array(part))
            store.write_part(folder, "samples", index, PARTS, rows)
    return path


def peak_mb(run: Path) -> tuple[int, float]:
    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join([str(root), str(Path(__file__).parent)])
    command = [sys.executable, "-c", SCRIPT, str(run)]
    # The default pools keep what they were given for a while, more or less of it by chance; the system's gives it back.
    steady = {"PYTHONPATH": paths, "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(command, env=os.environ | steady, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    files, peak = done.stdout.split()
    return int(files), int(peak) / 1024


def test_memory_is_bounded_by_a_shard(tmp_path: Path) -> None:
    few, low = peak_mb(run_of(tmp_path / "small", 400))
    many, high = peak_mb(run_of(tmp_path / "large", 2400))
    assert many > 5 * few > 10
    # The samples differ by 200 MB, and as Python objects by several times that; allocators keep some tens by chance.
    assert high - low < 100, (low, high)
