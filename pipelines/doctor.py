"""What this host can do and what is missing. Called by `trajmill doctor`."""

import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from schemas.errors import ConfigError
from schemas.recipe import RunConfig

CORE = ("apache-beam", "duckdb", "httpx", "jinja2", "polars", "pyarrow", "pydantic", "rich", "tokenizers", "typer")
ENGINE = ("torch", "safetensors", "gguf", "llguidance")
NOTEBOOK = ("ipykernel", "nbclient", "nbformat")
MEMORY_GB = 3
MEMORY_LIMIT = "sandbox: memory limit"
"""The finding that a setting does without."""


@dataclass(frozen=True)
class Finding:
    """One line of the report. `missing` stops the default run, `note` does not."""

    what: str
    state: Literal["ok", "note", "missing"]
    detail: str


def findings() -> list[Finding]:
    """Everything that was looked at."""
    return [*_host(), *_packages(), _weights(), *_sandbox()]


def _host() -> Iterator[Finding]:
    version = platform.python_version_tuple()
    good = (int(version[0]), int(version[1])) >= (3, 11)
    yield Finding("python", "ok" if good else "missing", f"{platform.python_version()} (3.11 or newer)")
    yield Finding("cores", "ok", f"{len(os.sched_getaffinity(0))}")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    enough = memory >= MEMORY_GB
    yield Finding("memory", "ok" if enough else "note", f"{memory:.1f} GB (the demo run wants {MEMORY_GB})")
    yield Finding("disk", "ok", f"{shutil.disk_usage(Path.cwd()).free / 1e9:.0f} GB free here")


def _packages() -> Iterator[Finding]:
    for group, names, otherwise in (
        ("packages", CORE, "missing"),
        ("extra: engine", ENGINE, "missing"),
        ("extra: notebook", NOTEBOOK, "note"),
    ):
        absent = [name for name in names if _version(name) is None]
        found = ", ".join(f"{name} {_version(name)}" for name in names if name not in absent)
        state: Literal["ok", "note", "missing"] = (
            "ok" if not absent else "missing" if otherwise == "missing" else "note"
        )
        yield Finding(group, state, f"not installed: {', '.join(absent)}" if absent else found)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _weights() -> Finding:
    from agents.engine.files import find

    model = RunConfig().engine.model
    try:
        path = find(model)
    except ConfigError as error:
        return Finding("model weights", "missing", str(error))
    return Finding("model weights", "ok", f"{model}: {path.name}, {path.stat().st_size / 1e6:.0f} MB")


def _sandbox() -> Iterator[Finding]:
    from agents.sandbox.probe import probe

    for check in probe():
        bad: Literal["note", "missing"] = "note" if check.optional else "missing"
        yield Finding(f"sandbox: {check.name}", "ok" if check.ok else bad, check.detail)


def print_report() -> bool:
    """Print all findings; True when the default run can work."""
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_column()
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    styles = {"ok": "green", "note": "yellow", "missing": "bold red"}
    found = findings()
    for finding in found:
        table.add_row(Text(finding.state, style=styles[finding.state]), Text(finding.what), Text(finding.detail))
    console = Console()
    console.print(table)
    console.print(verdict(found))
    return all(finding.state != "missing" for finding in found)


def verdict(found: Sequence[Finding]) -> str:
    """The last line of the report."""
    missing = {finding.what for finding in found if finding.state == "missing"}
    if missing == {MEMORY_LIMIT}:
        return (
            "The default run needs a word here, as `make run` gives it: `--config data/demo.yaml`, which sets "
            "sandbox.accept_process_memory_limit."
        )
    return "The default run cannot work here yet: see `missing`." if missing else "The default run can work here."
