"""Control groups for sandboxes: memory, pids, processor weight; version 1 or 2. Called by host.py.

Without them a sandbox is still bounded, but more weakly: RLIMIT_AS holds for each process, not for their sum.

    PARENT/trajmill-PID-latency/0        one for each sandbox of host process PID
    PARENT/trajmill-PID-background/1     this class is idle: it runs where nobody else wants to
"""

import contextlib
import itertools
import os
from dataclasses import dataclass
from pathlib import Path

from agents.sandbox.base import Limits, Priority
from agents.sandbox.native.layout import MIB, disk_mb

ROOT = Path("/sys/fs/cgroup")
OWN_PROCESSES = 16
"""PID 1 and the supervisors of commands count too."""
CONTROLLERS = ("memory", "pids")
LATENCY_WEIGHT = 1000
"""Of all latency-sensitive sandboxes together, beside 100 for anything else on the host."""
SHARES = 1024 / 100
"""cpu.shares of version 1 for each unit of cpu.weight of version 2."""
OPTIONAL = {"memory.kmem.tcp.limit_in_bytes", "memory.swap.max", "memory.memsw.limit_in_bytes", "cpu.idle"}
"""Absent on kernels that do not account for swap, or older than 5.15."""

_numbers = itertools.count()


@dataclass(frozen=True)
class Cgroups:
    """Below which folders groups can be made. `version` 0: nowhere, `why` says why."""

    version: int
    parents: tuple[Path, ...]
    """Version 1: of memory and pids. Version 2: one folder for all."""
    cpu: Path | None = None
    """For the processor weight; None when that is not ours to set."""
    why: str = ""

    @property
    def hierarchies(self) -> set[Path]:
        """All folders in which there are classes."""
        return {*self.parents, *([self.cpu] if self.cpu else [])}


@dataclass(frozen=True)
class Group:
    """The groups of one sandbox, one for each hierarchy; the first counts memory."""

    folders: tuple[Path, ...] = ()

    def join_files(self) -> list[int]:
        """A descriptor of each group's list of processes, to be written by who joins. The caller closes them."""
        opened: list[int] = []
        try:
            for folder in self.folders:
                opened.append(os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
        except OSError:
            for descriptor in opened:
                os.close(descriptor)
            raise
        return opened

    def out_of_memory_kills(self) -> int:
        """How many processes the kernel has killed in it because the sandbox, and not the host, was out of memory."""
        if not self.folders:
            return 0
        kills = self._read("memory.events") or self._read("memory.oom_control")
        most, limit = (self._read(f"memory.{name}_in_bytes").get("") for name in ("max_usage", "limit"))
        # Version 1 does not count how often the limit was reached, but whether it was.
        own = kills.get("oom", 0) or (most is not None and limit is not None and most >= limit - MIB)
        return kills.get("oom_kill", 0) if own else 0

    def _read(self, name: str) -> dict[str, int]:
        """The lines `name number` of a file; a lone number has no name. Empty where there is no such file."""
        try:
            lines = (self.folders[0] / name).read_text().splitlines()
        except OSError:
            return {}
        return {key: int(value) for key, _, value in (line.rpartition(" ") for line in lines)}

    def remove(self) -> None:
        """Remove the groups, whose processes are gone. Left-overs of a killed host are taken by `sweep`."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                folder.rmdir()


def find(root: Path = ROOT, membership: Path = Path("/proc/self/cgroup")) -> Cgroups:
    """What this process may use. Looks only; whether joining works shows with the first sandbox."""
    try:
        lines = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError as error:
        return Cgroups(0, (), why=f"{membership}: {error.strerror}")
    own = {name: path for _, names, path in lines for name in names.split(",")}
    if all(name in own for name in CONTROLLERS):
        *parents, cpu = (root / name / own.get(name, "").lstrip("/") for name in (*CONTROLLERS, "cpu"))
        closed = [str(path) for path in parents if not os.access(path, os.W_OK)]
        if closed:
            return Cgroups(0, (), why=f"no write access to {', '.join(closed)}")
        return Cgroups(1, tuple(parents), cpu if "cpu" in own and os.access(cpu, os.W_OK) else None)
    start = root / own.get("", "/").lstrip("/")
    for folder in (start, *start.parents):
        passed_on = _passed_on(folder)
        if set(CONTROLLERS) <= passed_on and os.access(folder, os.W_OK):
            return Cgroups(2, (folder,), folder if "cpu" in passed_on else None)
        if folder == root:
            break
    return Cgroups(0, (), why=f"no writable group at or above {start} passes on the memory and pids controllers")


def _passed_on(folder: Path) -> set[str]:
    try:
        return set((folder / "cgroup.subtree_control").read_text().split())
    except OSError:
        return set()


def create(where: Cgroups, limits: Limits, priority: Priority) -> Group:
    """Make the groups of one sandbox, limits set. Raises OSError."""
    # tmpfs pages are charged to the group. They come on top, so that a full disk does not eat a command's memory.
    memory = (limits.memory_mb + disk_mb(limits)) * MIB
    pids = {"pids.max": limits.processes + OWN_PROCESSES}
    if where.version == 1:
        names = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes")
        settings = [(where.parents[0], dict.fromkeys(names, memory)), (where.parents[1], pids)]
        if where.cpu:
            settings.append((where.cpu, {"cpu.shares": max(2, round(limits.cpu_weight * SHARES))}))
    else:
        weight = {"cpu.weight": limits.cpu_weight} if where.cpu else {}
        settings = [(where.parents[0], {"memory.max": memory, "memory.swap.max": 0} | pids | weight)]
    made: list[Path] = []
    number = next(_numbers)
    try:
        for parent, values in settings:
            folder = _class_folder(where, parent, priority) / str(number)
            folder.mkdir()
            made.append(folder)
            _write(folder, values)
    except FileExistsError:  # left by an earlier process that had our number
        Group(tuple(made)).remove()
        return create(where, limits, priority)
    except OSError:
        Group(tuple(made)).remove()
        raise
    return Group(tuple(made))


def _class_folder(where: Cgroups, parent: Path, priority: Priority) -> Path:
    folder = parent / f"trajmill-{os.getpid()}-{priority}"
    try:
        folder.mkdir()
    except FileExistsError:
        return folder
    idle = priority == "background"
    if where.version == 2:
        passed_on = "+memory +pids" + (" +cpu" if where.cpu else "")
        _write(folder, {"cgroup.subtree_control": passed_on})
        if where.cpu:
            _write(folder, {"cpu.idle": 1} if idle else {"cpu.weight": LATENCY_WEIGHT})
    elif parent == where.cpu:
        _write(folder, {"cpu.idle": 1} if idle else {"cpu.shares": round(LATENCY_WEIGHT * SHARES)})
    return folder


def _write(folder: Path, values: dict[str, int] | dict[str, str]) -> None:
    for key, value in values.items():
        if key not in OPTIONAL or (folder / key).exists():
            # One write, without truncation. (The kernel's files exist; O_CREAT is for the plain folders of tests.)
            descriptor = os.open(folder / key, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.write(descriptor, str(value).encode())
            finally:
                os.close(descriptor)


def sweep(where: Cgroups) -> int:
    """Remove groups whose host process is gone (killed before it could); returns how many sandboxes they were of."""
    count = 0
    for parent in where.hierarchies:
        for folder in parent.glob("trajmill-*-*"):
            owner = folder.name.split("-")[1]
            if owner.isdecimal() and not Path("/proc", owner).exists():
                count += _remove_class(folder)
    return count


def remove_classes(where: Cgroups) -> None:
    """Remove this process's class folders, unless another factory of it still has sandboxes in them."""
    for parent in where.hierarchies:
        for folder in parent.glob(f"trajmill-{os.getpid()}-*"):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _remove_class(folder: Path) -> int:
    removed = 0
    for child in (*(path for path in folder.iterdir() if path.is_dir()), folder):
        with contextlib.suppress(OSError):  # still dying: the next start takes it
            child.rmdir()
            removed += child != folder
    return removed
