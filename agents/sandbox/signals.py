"""What this host still has to give, read in microseconds. Called by pool.py before every admission.

Files under /proc and of the own control groups stay open and are read with pread. Nothing here decides anything.
"""

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MIB = 1024 * 1024


@dataclass(frozen=True)
class Reading:
    """One look at the host. Sizes are in MiB.

    Pressures are percent of the last 10 s in which something waited for it (PSI, `some avg10`); None: this kernel does
    not tell, because PSI is not built in or is switched off.
    """

    memory_mb: int
    """Free without hurting anybody: MemAvailable, or what the own memory group leaves where that is less."""
    memory_total_mb: int
    """The most that `memory_mb` could ever be."""
    pids: int
    """Processes and threads that may still start."""
    pids_total: int
    """The most that `pids` could ever be."""
    fds: int
    """Descriptors that this process may still open."""
    disk_mb: int
    """Free where the run writes. (The files of sandboxes are in memory.)"""
    cpu_pressure: float | None = None
    memory_pressure: float | None = None
    io_pressure: float | None = None


@dataclass(frozen=True)
class _Group:
    """A control group that limits this process; `current` and `stat` are open descriptors (of pids groups the same)."""

    limit: int
    current: int
    stat: int


class Signals:
    """Call it for a Reading. Belongs to the process that made it.

    `folder` is where the run writes; `proc` and `cgroup` are parameters for tests with made-up trees. Raises OSError
    where /proc is not that of a Linux host. Which groups have a limit, and which, is looked up once.
    """

    def __init__(
        self, folder: Path = Path(), proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")
    ) -> None:
        self._descriptors: list[int] = []
        try:
            self._meminfo, self._loadavg = self._open(proc / "meminfo"), self._open(proc / "loadavg")
            self._folder, self._own = self._open(folder), self._open(Path("/proc/self/fd"))
            self._pressures = [self._open_pressure(proc / "pressure" / name) for name in ("cpu", "memory", "io")]
            memory, pids = (list(own_groups(proc, cgroup, name)) for name in ("memory", "pids"))
            self._memory = [
                *self._limited(memory, "memory.max", "memory.current", "memory.stat"),
                *self._limited(memory, "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"),
            ]
            self._pids = self._limited(pids, "pids.max", "pids.current", "pids.current")
            kernel = proc / "sys" / "kernel"
            self._threads = min(int((kernel / name).read_text()) for name in ("threads-max", "pid_max"))
            self._memory_total = min([self._memory_line(b"MemTotal:"), *(group.limit for group in self._memory)])
        except BaseException:
            self.close()
            raise

    def __call__(self) -> Reading:
        """Read everything: about 30 µs of processor time. Raises OSError and ValueError for files that are not so."""
        cpu, memory, io = (_pressure(os.pread(file, 256, 0)) if file is not None else None for file in self._pressures)
        disk = os.statvfs(self._folder)
        return Reading(
            memory_mb=self._memory_left() // MIB,
            memory_total_mb=self._memory_total // MIB,
            pids=self._pids_left(),
            pids_total=min([self._threads, *(group.limit for group in self._pids)]),
            fds=resource.getrlimit(resource.RLIMIT_NOFILE)[0] - self._open_files(),
            disk_mb=disk.f_bavail * disk.f_frsize // MIB,
            cpu_pressure=cpu,
            memory_pressure=memory,
            io_pressure=io,
        )

    def close(self) -> None:
        """Close the files. Safe to call twice."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _memory_line(self, name: bytes) -> int:
        text = os.pread(self._meminfo, 4096, 0)
        start = text.index(name) + len(name)
        return int(text[start : text.index(b"kB", start)]) * 1024

    def _memory_left(self) -> int:
        left = self._memory_line(b"MemAvailable:")
        for group in self._memory:
            unused = group.limit - _number(group.current)
            if unused < left:  # only now, as reading the statistics costs more than all the rest
                left = min(left, unused + _page_cache(os.pread(group.stat, 8192, 0)))
        return left

    def _pids_left(self) -> int:
        running = int(os.pread(self._loadavg, 128, 0).split()[3].split(b"/")[1])
        return min([self._threads - running, *(group.limit - _number(group.current) for group in self._pids)])

    def _open_files(self) -> int:
        """Linux 6.2 and later give the count as the folder's size; before, the names must be counted."""
        return os.fstat(self._own).st_size or sum(1 for _ in Path("/proc/self/fd").iterdir())

    def _limited(self, folders: list[Path], limit: str, current: str, stat: str) -> list[_Group]:
        found = []
        for folder in folders:
            text = (folder / limit).read_text().strip() if (folder / limit).exists() else "max"
            if text != "max" and int(text) < 2**62:  # version 1 writes "no limit" as a number just below 2^63
                found.append(_Group(int(text), self._open(folder / current), self._open(folder / stat)))
        return found

    def _open(self, path: Path) -> int:
        self._descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        return self._descriptors[-1]

    def _open_pressure(self, path: Path) -> int | None:
        try:
            file = self._open(path)
            os.pread(file, 1, 0)
        except OSError:  # absent, or switched off at boot: then it may open, but not be read
            return None
        return file


def allow_open_files() -> None:
    """Raise this process's soft limit of open files to its hard one: each live sandbox takes a descriptor."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def own_groups(proc: Path, cgroup: Path, controller: str) -> Iterator[Path]:
    """Folders of the group of this process and of those above it, version 1 or 2. In a container some may not exist."""
    membership = proc / "self" / "cgroup"
    lines = [line.split(":", 2) for line in membership.read_text().splitlines()] if membership.exists() else []
    own = {name: path for _, names, path in lines for name in names.split(",")}
    top = cgroup / controller if controller in own else cgroup
    folder = top / own.get(controller, own.get("", "/")).lstrip("/")
    yield from (place for place in (folder, *folder.parents) if place.is_relative_to(top) and place.is_dir())


def _number(file: int) -> int:
    return int(os.pread(file, 64, 0))


def _page_cache(stat: bytes) -> int:
    """Bytes that the kernel takes back from a group before anything in it dies: of its whole tree, in both versions."""
    for name in (b"total_inactive_file ", b"inactive_file "):
        start = stat.find(name)
        if start >= 0:
            return int(stat[start + len(name) :].split(maxsplit=1)[0])
    return 0


def _pressure(text: bytes) -> float:
    start = text.index(b"avg10=") + 6
    return float(text[start : text.index(b" ", start)])
