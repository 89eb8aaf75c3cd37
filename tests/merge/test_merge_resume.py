"""A killed merge goes on: only unfinished shards are written again, with the same bytes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from checkpoint_factory import save, tensors

from pipelines.merge import run
from pipelines.merge.run import merge
from schemas.errors import MergeError
from schemas.merge import MergeRecipe

ROOT = Path(__file__).resolve().parents[2]
SHARDS = 12
SCRIPT = """
import sys, time
from pathlib import Path
from pipelines.merge import run
from schemas.merge import MergeRecipe
a, b, out = sys.argv[1:]
whole = run.write_shard
def slowly(*arguments):
    time.sleep(0.02)
    return whole(*arguments)
run.write_shard = slowly
run.merge(MergeRecipe(method="linear", models=[a, b]), Path(out))
"""


@pytest.fixture
def parents(tmp_path: Path) -> tuple[Path, Path]:
    shapes = {f"t{i:02d}": (60, 1000) for i in range(SHARDS)}
    a, b = (save(tmp_path / n, tensors(i, shapes=shapes), shards=SHARDS) for i, n in enumerate("ab"))
    return a, b


def linear(*folders: Path, weight: float = 1.0) -> MergeRecipe:
    return MergeRecipe.model_validate(
        {"method": "linear", "models": [str(f) for f in folders], "parameters": {"weight": weight}}
    )


def done(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of change of each finished shard in a merge's folder."""
    notes = [p.name.removesuffix(".json") for p in (folder / "notes").glob("model-*.json")]
    return {n: (s.st_ino, s.st_mtime_ns) for n in notes for s in [(folder / "files" / n).stat()]}


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_killed_in_the_middle_only_unfinished_shards_are_rewritten(tmp_path: Path, parents: tuple[Path, Path]) -> None:
    recipe, out = MergeRecipe(method="linear", models=[str(f) for f in parents]), tmp_path / "out"
    whole = merge(recipe, tmp_path / "whole")
    command = [sys.executable, "-c", SCRIPT, *map(str, parents), str(out)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
        while len(list((tmp_path / "out.tmp").glob("notes/model-*.json"))) < 4:
            assert process.poll() is None
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    before = done(tmp_path / "out.tmp")
    assert 4 <= len(before) < SHARDS and not out.exists()
    merge(recipe, out)
    after = {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in out.glob("*.safetensors")}
    assert {name for name in after if before.get(name) == after[name]} == before.keys()
    assert contents(out) == contents(whole)


AT_THE_END = """
import os, shutil, signal, sys
from pathlib import Path
from pipelines.merge.run import merge
from schemas.merge import MergeRecipe
a, b, out, moment = sys.argv[1:]
whole = Path.rename
def rename(self, target):
    if Path(target) == Path(out):
        moment == "before" and os.kill(os.getpid(), signal.SIGKILL)
        whole(self, target)
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(self, target)
Path.rename = rename
merge(MergeRecipe(method="linear", models=[a, b]), Path(out))
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_beside_the_last_rename_nothing_is_written_twice(
    tmp_path: Path, parents: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    out = tmp_path / "out"
    recipe = MergeRecipe(method="linear", models=[str(f) for f in parents])
    whole = contents(merge(recipe, tmp_path / "whole"))
    command = [sys.executable, "-c", AT_THE_END, *map(str, parents), str(out), moment]
    killed = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert out.exists() == (moment == "after")
    if moment == "after":
        assert contents(out) == whole
        shutil.rmtree(out)
    else:
        monkeypatch.setattr(run, "write_shard", None)
        monkeypatch.setattr(run, "hash_parent", None)
    merge(recipe, out)
    assert contents(out) == whole
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "out", "whole"]


def test_what_a_merge_that_failed_and_was_killed_left_goes_with_the_next(
    tmp_path: Path, parents: tuple[Path, Path]
) -> None:
    for name in ("out.failed-12", "out.failed-to-merge", "out.failed-"):
        (tmp_path / name / "files").mkdir(parents=True)
    merge(linear(*parents), tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "out", "out.failed-", "out.failed-to-merge"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_keeps_what_is_finished_and_an_error_nothing(
    tmp_path: Path, parents: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, stop: type[BaseException]
) -> None:
    calls: list[str] = []

    def until(limit: int, error: BaseException) -> None:
        whole = run.write_shard

        def write(planned: run.Plan, file: str, folder: Path) -> object:
            calls.append(file)
            if len(calls) == limit:
                raise error
            return whole(planned, file, folder)

        monkeypatch.setattr(run, "write_shard", write)

    with monkeypatch.context():
        until(6, stop())
        with pytest.raises(stop):
            merge(linear(*parents), tmp_path / "out")
    assert 5 <= len(done(tmp_path / "out.tmp")) < SHARDS  # other threads may finish theirs
    until(len(calls) + 1, MergeError("broken"))
    with pytest.raises(MergeError, match="broken"):
        merge(linear(*parents), tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("change", ["recipe", "parent", "shard", "note"])
def test_what_another_merge_left_is_cleared(
    tmp_path: Path, parents: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    out, recipe = tmp_path / "out", linear(*parents)
    with monkeypatch.context() as patch:
        patch.setattr(run, "_write_index", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            merge(recipe, out)
    folder = tmp_path / "out.tmp"
    assert len(done(folder)) == SHARDS
    first = min(folder.glob("files/model-*.safetensors"))
    if change == "recipe":
        recipe = linear(*parents, weight=3.0)
    elif change == "parent":
        shutil.rmtree(parents[1])
        shapes = {f"t{i:02d}": (60, 1000) for i in range(SHARDS)}
        save(parents[1], tensors(9, torch.bfloat16, shapes), shards=SHARDS)
    elif change == "shard":
        first.write_bytes(first.read_bytes()[:-1])
    else:
        (folder / "notes" / (first.name + ".json")).unlink()
    written: list[str] = []
    whole = run.write_shard
    monkeypatch.setattr(run, "write_shard", lambda p, f, o: (written.append(f), whole(p, f, o))[1])
    merge(recipe, out)
    assert len(written) == (SHARDS if change in ("recipe", "parent") else 1)
    monkeypatch.setattr(run, "write_shard", whole)
    assert contents(out) == contents(merge(recipe, tmp_path / "fresh"))
    assert json.loads((out / "lineage.json").read_text())["seed"] == 0
