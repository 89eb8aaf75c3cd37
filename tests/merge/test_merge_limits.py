"""A killed merge leaves nothing under its name; memory does not grow with the models."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from checkpoint_factory import save, tensors

from pipelines.merge.run import merge
from pipelines.merge.tensors import header_bytes
from schemas.errors import MergeError
from schemas.merge import MergeRecipe

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
from pathlib import Path
from pipelines.merge.run import merge
from schemas.merge import MergeRecipe
method, a, b, out = sys.argv[1:]
print("ready", flush=True)
parameters = {"t": 0.5} if method == "slerp" else {}
merge(MergeRecipe(method=method, models=[a, b], parameters=parameters), Path(out))
# Not ru_maxrss: a child inherits its parent's peak there.
status = Path("/proc/self/status").read_text().splitlines()
print(next(line.split()[1] for line in status if line.startswith("VmHWM")), flush=True)
assert "torch" not in sys.modules
"""


def start(method: str, a: Path, b: Path, out: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", SCRIPT, method, str(a), str(b), str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def checkpoint(folder: Path, megabytes: int) -> Path:
    """bf16 tensors of 4 MB each and one of half the size, written without holding them all."""
    folder.mkdir()
    tensors = [("big", megabytes // 2), *((f"t{i:03d}", 4) for i in range(megabytes // 8))]
    shapes = {name: ("BF16", (size * 2**9, 2**10)) for name, size in tensors}
    pattern = np.random.default_rng(megabytes).integers(0x3C00, 0x3F80, 2**19, dtype=np.uint16).tobytes()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(header_bytes(shapes))
        for _, size in tensors:
            for _ in range(size):
                file.write(pattern)
    return folder


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("big")
    return checkpoint(folder / "a", 96), checkpoint(folder / "b", 96)


def peak_mb(method: str, a: Path, b: Path, out: Path) -> float:
    with start(method, a, b, out) as process:
        stdout, _ = process.communicate()
    assert process.returncode == 0
    return int(stdout.split()[-1]) / 1024


@pytest.mark.parametrize("method", ["linear", "slerp"])
def test_memory_does_not_grow_with_the_model(tmp_path: Path, big: tuple[Path, Path], method: str) -> None:
    small = [checkpoint(tmp_path / name, 8) for name in "ab"]
    low = peak_mb(method, *small, tmp_path / "low")
    high = peak_mb(method, *big, tmp_path / "high")
    # The models differ by 88 MB each, the largest tensor by 44 MB.
    assert high - low < 6


def test_killed_at_any_moment_nothing_stands_under_the_name(tmp_path: Path, big: tuple[Path, Path]) -> None:
    recipe = MergeRecipe(method="linear", models=[str(folder) for folder in big])
    merge(recipe, tmp_path / "whole")
    whole = (tmp_path / "whole" / "model.safetensors").read_bytes()
    out, rng, kills = tmp_path / "out", random.Random(3), 0
    while kills < 4:
        moment = rng.randrange(90 * 2**20)
        with start("linear", *big, out) as process:
            # What the kill before left is cleared first, so the size goes down to nothing before it grows.
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            cleared = kills == 0
            while process.poll() is None:
                size = size_of(tmp_path / "out.tmp" / "files")
                cleared = cleared or size < moment
                if cleared and size >= moment:
                    break
                time.sleep(0.0005)
            process.send_signal(signal.SIGKILL)
        if process.returncode == -signal.SIGKILL and not out.exists():
            kills += 1
        else:  # a busy machine let it finish first: then it is whole
            assert (out / "model.safetensors").read_bytes() == whole
            shutil.rmtree(out)
    merge(recipe, out)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "whole"]
    assert (out / "model.safetensors").read_bytes() == whole


def size_of(folder: Path) -> int:
    """Of what is being written there."""
    try:
        return max((path.stat().st_size for path in folder.glob("*model.safetensors")), default=-1)
    except FileNotFoundError:
        return -1


def test_a_running_merge_keeps_others_out(tmp_path: Path) -> None:
    folders = [save(tmp_path / name, tensors(i)) for i, name in enumerate("ab")]
    recipe = MergeRecipe(method="linear", models=[str(f) for f in folders])
    holder = (
        "import fcntl, os, sys; h = os.open(sys.argv[1], os.O_RDONLY); fcntl.flock(h, fcntl.LOCK_EX);"
        "print('held', flush=True); sys.stdin.read()"
    )
    temporary = tmp_path / "out.tmp"
    temporary.mkdir()
    (temporary / "theirs").touch()
    command = [sys.executable, "-c", holder, str(temporary)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        with pytest.raises(MergeError, match="another merge"):
            merge(recipe, tmp_path / "out")
        assert (temporary / "theirs").exists()
        process.communicate("")
    merge(recipe, tmp_path / "out")
    assert not temporary.exists()
