"""What a rollout's sandbox pools counted: clock values, kept beside the stage's marker and out of tables and ids.

Every worker process writes a file of its own; the rollout stage adds them up, the summary shows the sum.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipelines.files import write_text
from pipelines.folder import RunFolder


def write(folder: Path, worker: str, counts: Mapping[str, Any] | None) -> None:
    """Replace what a worker has counted; None: it has no pool of its own."""
    if counts is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / f"{worker}.json", json.dumps(counts, sort_keys=True))


@contextmanager
def collecting(run: RunFolder) -> Iterator[None]:
    """Around a pipeline whose workers `write`: the sum of all replaces that of the last time, also after an error."""
    folder, total = run.pool_counts, run.stages / "rollout.pool.json"
    shutil.rmtree(folder, ignore_errors=True)
    total.unlink(missing_ok=True)
    try:
        yield
    finally:
        parts = [json.loads(path.read_bytes()) for path in folder.glob("*.json")]
        if parts:
            write_text(total, json.dumps(added(parts), indent=1, sort_keys=True) + "\n")
        shutil.rmtree(folder, ignore_errors=True)


def added(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Number by number; a name that a part lacks counts 0."""
    total: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            before = total.get(name)
            total[name] = added([before or {}, value]) if isinstance(value, dict) else round(value + (before or 0), 1)
    return total


def read(run: RunFolder) -> dict[str, Any] | None:
    """The sum that the last rollout left; None when it played nothing here."""
    path = run.stages / "rollout.pool.json"
    return json.loads(path.read_bytes()) if path.exists() else None


def line(counts: Mapping[str, Any]) -> str:
    """One line of words."""
    held = ", ".join(f"{seconds:g} s ({priority})" for priority, seconds in counts["held_s"].items() if seconds)
    parts = [f"{counts['created']} created", f"at most {counts['peak']} at once", f"held {held or '0 s'}"]
    for name in ("deaths", "refused"):
        some = ", ".join(f"{cause} {number}" for cause, number in counts[name].items())
        parts.append(f"{name}: {some or 'none'}")
    parts.append(f"reclaimed: {counts['reclaimed'] or 'none'}")
    return f"sandboxes since the rollout was last started: {'; '.join(parts)}"
