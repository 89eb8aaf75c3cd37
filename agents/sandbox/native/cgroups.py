"""Memory and pids control groups for sandboxes, version 1 or 2, where the host lets us. Called by host.py and probe.py.

Without them a sandbox is still bounded, but more weakly: RLIMIT_AS holds for each process, not for their sum.
"""

import contextlib
import itertools
import os
from dataclasses import dataclass
from pathlib import Path

from agents.sandbox.base import Limits
from agents.sandbox.native.layout import MIB, disk_sizes

ROOT = Path("/sys/fs/cgroup")
OWN_PROCESSES = 16
"""PID 1 and the supervisors of commands count too."""
CONTROLLERS = ("memory", "pids")
OPTIONAL = {"memory.swap.max", "memory.memsw.limit_in_bytes"}
"""Absent on kernels that do not account for swap."""

_numbers = itertools.count()


@dataclass(frozen=True)
class Cgroups:
    """Below which folders groups can be made. `version` 0: nowhere, `why` says why."""

    version: int
    parents: tuple[Path, ...]
    why: str = ""


def find(root: Path = ROOT, membership: Path = Path("/proc/self/cgroup")) -> Cgroups:
    """What this process may use. Looks only; whether joining works shows with the first sandbox."""
    try:
        lines = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError as error:
        return Cgroups(0, (), f"{membership}: {error.strerror}")
    own = {name: path for _, names, path in lines for name in names.split(",")}
    if all(name in own for name in CONTROLLERS):
        parents = tuple(root / name / own[name].lstrip("/") for name in CONTROLLERS)
        closed = [str(path) for path in parents if not os.access(path, os.W_OK)]
        return Cgroups(0, (), f"no write access to {', '.join(closed)}") if closed else Cgroups(1, parents)
    start = root / own.get("", "/").lstrip("/")
    for folder in (start, *start.parents):
        if _delegates(folder):
            return Cgroups(2, (folder,))
        if folder == root:
            break
    return Cgroups(0, (), f"no writable group at or above {start} passes on the memory and pids controllers")


def _delegates(folder: Path) -> bool:
    try:
        passed_on = (folder / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False
    return set(CONTROLLERS) <= set(passed_on) and os.access(folder, os.W_OK)


def create(where: Cgroups, limits: Limits) -> list[Path]:
    """Make the groups of one sandbox, limits set. Raises OSError."""
    name = f"trajmill-{os.getpid()}-{next(_numbers)}"
    # tmpfs pages are charged to the group. They come on top, so that a full disk does not eat a command's memory.
    memory = (limits.memory_mb + sum(disk_sizes(limits).values())) * MIB
    pids = limits.processes + OWN_PROCESSES
    if where.version == 1:
        swap = [("memory.memsw.limit_in_bytes", memory)]  # of memory and swap together
        settings = [[("memory.limit_in_bytes", memory), *swap], [("pids.max", pids)]]
    else:
        settings = [[("memory.max", memory), ("memory.swap.max", 0), ("pids.max", pids)]]
    groups = [(parent / name, values) for parent, values in zip(where.parents, settings, strict=True)]
    made: list[Path] = []
    try:
        for group, values in groups:
            group.mkdir()
            made.append(group)
            for key, value in values:
                if key not in OPTIONAL or (group / key).exists():
                    (group / key).write_text(str(value))
    except OSError:
        remove(made)
        raise
    return made


def remove(groups: list[Path]) -> None:
    """Remove groups whose processes are gone. Left-overs of a killed host are taken by `sweep`."""
    for group in groups:
        with contextlib.suppress(OSError):
            group.rmdir()


def sweep(where: Cgroups) -> int:
    """Remove groups whose host process is gone (killed before it could); returns how many."""
    count = 0
    for parent in where.parents:
        for group in parent.glob("trajmill-*-*"):
            owner = group.name.split("-")[1]
            if owner.isdecimal() and not Path("/proc", owner).exists():
                with contextlib.suppress(OSError):
                    group.rmdir()
                    count += 1
    return count
