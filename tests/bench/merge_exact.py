"""What merges have to be exactly: mergekit's results within stated distances, and the same bytes after a kill.

Called by bench_merge. Recipes, checkpoints and distances of the parity are those of its tests, `tests/merge/parity.py`.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from lines import say, skip
from merge_measure import CHILD, ORACLE, OURS, ROOT, SMALL, checkpoint, write_recipe

sys.path.insert(0, str(ROOT / "tests" / "merge"))

_SHARDS = 24


def parity_with_mergekit(folder: Path) -> None:
    """Distances of all methods from mergekit 0.1.5, which computes in float32 and writes bfloat16 as we do."""
    if not ORACLE.exists():
        skip("merge_parity", f"no mergekit at {ORACLE}; make oracle")
        return
    import parity  # it needs torch and transformers

    parity.prepare(folder, ORACLE)
    for name in parity.RECIPES:
        apart = parity.distances(parity.ours(folder, name), parity.theirs(folder, name))
        figure, peer = f"merge_parity_{name}", f"mergekit 0.1.5, {apart.size} weights"
        if name.startswith("linear"):
            say(f"{figure}_largest", float(apart.max()), peer, 0, "ulp", 1)
            say(f"{figure}_differ", 100 * float((apart > 0).mean()), peer, 0, "% of weights", 0.2)
        else:
            say(f"{figure}_beyond_1_ulp", 100 * float((apart > 1).mean()), peer, 0, "% of weights", 0.1)
    apart = parity.distances(parity.ours(folder, "ties"), parity.ties_by_sorting(folder))
    say("merge_ties_bits_differ", float((apart > 0).sum()), "a stable sort of whole tensors, float32", 0, "weights", 0)
    for name in parity.RANDOM:
        mine, peers = (parity.changes(folder, made(folder, name)) for made in (parity.ours, parity.theirs))
        peer = f"mergekit 0.1.5 in distribution: {mine[0]:.4f} and {peers[0]:.4f} kept"
        say(f"merge_{name}_kept_apart", abs(mine[0] - peers[0]), peer, 0, "share of weights", 0.01)
        peer = f"mergekit 0.1.5 in distribution: {mine[1]:.6f} and {peers[1]:.6f} mean size of a change"
        say(f"merge_{name}_size_apart", abs(mine[1] / peers[1] - 1), peer, 0, "relative", 0.03)
        # Of a mean size of 0.008, drawn with opposite signs.
        peer = f"mergekit 0.1.5 in distribution: {mine[2]:.6f} and {peers[2]:.6f} mean change, times 1000"
        say(f"merge_{name}_mean_apart", 1000 * abs(mine[2] - peers[2]), peer, 0, "of a weight, times 1000", 0.2)


def killed(folder: Path) -> None:
    """SIGKILL with some shards finished, and the same merge again: what it writes anew, and whether bytes are equal."""
    models = [checkpoint(folder / f"s{i}", SMALL, i, shards=_SHARDS) for i in range(3)]
    recipe, out = write_recipe(folder, "linear", models, None), folder / "out"
    _merge(recipe, folder / "whole").wait()
    process = _merge(recipe, out)
    while len(list((folder / "out.tmp").glob("notes/model-*"))) < _SHARDS // 3 and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if out.exists():
        skip("merge_killed", "it was finished before the kill")
        return
    finished = _finished(folder / "out.tmp")
    _merge(recipe, out).wait()
    anew = sum(_identity(out / name) != identity for name, identity in finished.items())
    say("merge_killed_rewritten", anew / len(finished), f"{len(finished)} of {_SHARDS} shards finished", 0, "share", 0)
    names = {p.name for p in (folder / "whole").iterdir()} | {p.name for p in out.iterdir()}
    differ = sum(_bytes(folder / "whole" / name) != _bytes(out / name) for name in names)
    say("merge_killed_differ", differ, f"{len(names)} files of a merge in one go", 0, "files", 0)


def _merge(recipe: Path, out: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", CHILD.format(body=OURS), str(recipe), str(out)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def _finished(work: Path) -> dict[str, tuple[int, int]]:
    """Shards that a merge has noted as finished."""
    names = [note.name.removesuffix(".json") for note in work.glob("notes/model-*.json")]
    return {name: _identity(work / "files" / name) for name in names}


def _identity(path: Path) -> tuple[int, int]:
    """Of a file that was not written again."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
