"""The run folder: where each table lies, what the run was asked to do, and which stages are done.

The command line opens it, every stage gets it. A stage is done when its marker `stages/<stage>.done.json` holds the
hash of exactly the inputs that it would get now: its part of the configuration, the schema versions, and the contents
of the tables it reads. So the same command again continues, and a change reruns what it touches and nothing else.
"""

import importlib.metadata
import json
import os
import platform
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pydantic import ValidationError

from pipelines import store
from pipelines.files import fsync_folder, write_text
from schemas.errors import ConfigError, StageError
from schemas.ids import canonical_json
from schemas.recipe import RunConfig
from schemas.tables import TABLES

STAGES = ("ingest", "patterns", "tasks", "rollout", "score", "shards")
OUTPUT = {
    "ingest": "sessions",
    "patterns": "patterns",
    "tasks": "tasks",
    "rollout": "episodes",
    "score": "samples",
    "shards": "shards",
}
READS = {
    "ingest": (),
    "patterns": ("ingest",),
    "tasks": ("patterns",),
    "rollout": ("tasks",),
    "score": ("tasks", "rollout"),
    "shards": ("score",),
}
_CONFIG = {
    "ingest": {"partner_field", "parts"},
    "patterns": {"patterns", "parts"},
    "tasks": {"seed", "tasks", "sandbox", "parts"},
    "rollout": {"seed", "engine", "sandbox", "rollout", "parts"},
    "score": {"score", "parts"},
    "shards": set(RunConfig.model_fields),  # the manifest holds the hash of all of it
}
_SPEED_ONLY: Any = {
    "workers": True,
    "rollout": {"concurrency": True, "plays": {"__all__": {"priority"}}},
    "sandbox": {
        "max_live": True,
        "spares": True,
        "nodes": True,
        "nodes_token_env": True,
        "accept_process_memory_limit": True,
    },
    "engine": {"threads": True, "max_batch": True, "api_key_env": True},
}


@dataclass(frozen=True)
class RunFolder:
    """A run folder that exists."""

    path: Path

    def table(self, name: str) -> Path:
        """Folder of a table. `sessions` is the private session store."""
        return self.path / name

    @property
    def shards(self) -> Path:
        """Folder of the shards and their manifest."""
        return self.path / "shards"

    @property
    def journal(self) -> Path:
        """Folder of the rollouts in flight."""
        return self.path / "journal"

    @property
    def stages(self) -> Path:
        """Folder of the stages' markers and progress counters."""
        return self.path / "stages"

    def counter(self, stage: str) -> Path:
        """Progress counter of a stage, for `pipelines.progress.tick`."""
        return self.stages / f"{stage}.count"

    @property
    def pool_counts(self) -> Path:
        """Where a running rollout's workers write what their sandbox pools count."""
        return self.stages / "rollout.pool"

    def reject_part(self, stage: str) -> Path:
        """The one part of the rejects table that a stage owns."""
        return self.table("rejects") / f"part-{stage}.parquet"

    def facts(self) -> dict[str, Any]:
        """What run.json says. Raises ConfigError when it is absent or damaged."""
        return _read_json(self.path / "run.json")

    def config(self) -> RunConfig:
        """The configuration of the last `run`."""
        try:
            return RunConfig.model_validate(self.facts()["config"])
        except (KeyError, ValidationError) as e:
            raise ConfigError(f"{self.path / 'run.json'}: no configuration of this version: {e}") from e

    def input_hash(self, stage: str) -> str:
        """Hash of all that decides what `stage` writes. Raises StageError when a stage before it is not done."""
        upstream = {}
        for name in READS[stage]:
            marker = self.marker(name)
            if marker is None:
                raise StageError(f"{stage}: stage `{name}` is not done in {self.path}; run it first")
            upstream[name] = marker["output"]
        config = self.config().model_dump(mode="json", include=_CONFIG[stage], exclude=_SPEED_ONLY)
        inputs = self.facts()["inputs"] if stage == "ingest" else None
        code = {key: versions()[key] for key in ("trajmill", "tables")}
        return blake2b(canonical_json([stage, config, upstream, inputs, code]), digest_size=16).hexdigest()

    def marker(self, stage: str) -> dict[str, Any] | None:
        """What a finished stage left (`input`, `output`, `rows`, `wall_s`), whether it still fits or not."""
        path = self.stages / f"{stage}.done.json"
        return _read_json(path) if path.exists() else None

    def is_done(self, stage: str) -> bool:
        """Whether the stage, and all before it, finished on what it would get now."""
        marker = self.marker(stage)
        return (
            marker is not None
            and all(self.is_done(name) for name in READS[stage])
            and marker["input"] == self.input_hash(stage)
        )

    def has_output(self, stage: str) -> bool:
        """Whether the stage's table is there."""
        if stage == "shards":
            return (self.shards / "manifest.json").exists()
        return any(self.table(OUTPUT[stage]).glob("*.parquet"))

    def mark(self, stage: str, wall_s: float) -> None:
        """Record that a stage is finished."""
        marker = {
            "input": self.input_hash(stage),
            "output": _digest_folder(self.table(OUTPUT[stage])),
            "rows": sum(pq.read_metadata(path).num_rows for path in self.table(OUTPUT[stage]).rglob("*.parquet")),
            "wall_s": round(wall_s, 3),
        }
        _write_json(self.stages / f"{stage}.done.json", marker)

    def unmark(self, stage: str) -> None:
        """Forget that a stage was finished; call before touching its table."""
        (self.stages / f"{stage}.done.json").unlink(missing_ok=True)
        fsync_folder(self.stages)

    def clear_journal(self) -> None:
        """Forget all rollouts, finished ones too."""
        shutil.rmtree(self.journal)
        self.journal.mkdir()


def config_hash(config: RunConfig) -> str:
    """Hash of all settings that decide what a run writes; those that only decide how fast are left out."""
    return blake2b(canonical_json(config.model_dump(mode="json", exclude=_SPEED_ONLY)), digest_size=16).hexdigest()


def versions() -> dict[str, Any]:
    """Versions that decide what a run writes, and those that help to explain it."""
    return {
        "trajmill": importlib.metadata.version("trajmill"),
        "tables": {name: spec.version for name, spec in TABLES.items()},
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("apache-beam", "pyarrow", "pydantic")},
    }


def open_or_create(path: Path, config: RunConfig, inputs: list[Path], root: Path) -> RunFolder:
    """The run folder at `path` for this configuration and these input files (hashed by content)."""
    base = root if root.is_dir() else root.parent
    hashes = {file.relative_to(base).as_posix(): _digest_file(file) for file in sorted(inputs)}
    run = RunFolder(path)
    run.stages.mkdir(parents=True, exist_ok=True)
    run.journal.mkdir(exist_ok=True)
    run.table("sessions").mkdir(exist_ok=True)
    run.table("sessions").chmod(0o700)
    facts = {
        "input": str(root.resolve()),
        "inputs": hashes,
        "config": config.model_dump(mode="json"),
        "seed": config.seed,
        "versions": versions(),
    }
    _write_json(path / "run.json", facts)
    return run


def other_version(run: RunFolder) -> str | None:
    """Which tables of the folder this version would write otherwise, e.g. `episodes 1, now 2`; None: all the same."""
    written = run.facts().get("versions")
    before = written.get("tables") if isinstance(written, dict) else None
    before = before if isinstance(before, dict) else {}
    changed = [
        f"{name} {before.get(name, 'unknown')}, now {spec.version}"
        for name, spec in TABLES.items()
        if before.get(name) != spec.version
    ]
    return "; ".join(changed) or None


def open_run(path: Path, *, any_version: bool = False) -> RunFolder:
    """An existing run folder. Raises ConfigError when it is none, or one whose tables another version wrote."""
    run = RunFolder(path)
    changed = other_version(run)
    if changed and not any_version:
        raise ConfigError(f"{path} was written by another version ({changed}); `trajmill run` makes it again")
    return run


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a run folder (made when absent, leftovers swept) for this process alone.

    Raises StageError, naming the process that has it, when that is another one, and ConfigError when `path` holds
    something else than a run.
    """
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file; a run needs a folder")
    if path.exists() and not (path / "run.json").exists() and any(p.name != "pid" for p in path.iterdir()):
        raise ConfigError(f"{path} is neither empty nor a run folder")
    with ExitStack() as stack:
        try:
            stack.enter_context(store.locked(path))
        except StageError as e:
            pid = path / "pid"
            raise StageError(f"{e} (process {pid.read_text().strip()})" if pid.exists() else str(e)) from e
        write_text(path / "pid", f"{os.getpid()}\n")
        try:
            yield
        finally:
            (path / "pid").unlink(missing_ok=True)


@contextmanager
def finishing(run: RunFolder, stage: str) -> Iterator[None]:
    """Around the work of a stage: the old marker goes before, the new one comes after a good end."""
    run.unmark(stage)
    begin = time.monotonic()
    yield
    run.mark(stage, time.monotonic() - begin)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as e:
        raise ConfigError(f"{path.parent} is not a run folder: no {path.name}") from e
    except ValueError as e:
        raise ConfigError(f"{path}: damaged: {e}") from e
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: damaged: not an object")
    return value


def _write_json(path: Path, value: dict[str, Any]) -> None:
    write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


def _digest_file(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, lambda: blake2b(digest_size=16)).hexdigest()


def _digest_folder(path: Path) -> str:
    files = sorted(p for p in path.glob("*") if p.suffix in {".parquet", ".json"})
    return blake2b(canonical_json([[p.name, _digest_file(p)] for p in files]), digest_size=16).hexdigest()
