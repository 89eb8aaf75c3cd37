"""What the sandbox bench measures with: output lines, costs, processor time, memory, processes, what is left behind.

Called by bench_sandbox.py and its parts, sandbox_*.py.
"""

import asyncio
import contextlib
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agents.sandbox.native.host import NativeFactory
from agents.sandbox.native.sandbox import NativeSandbox

CGROUPS = Path("/sys/fs/cgroup")
BAR = "the bar"


@dataclass(frozen=True)
class Meter:
    """Processor seconds used since some moment, by this process and by all that it ever started."""

    seconds: Callable[[], float]
    how: str


@contextlib.contextmanager
def cpu_meter() -> Iterator[Meter]:
    """Count in a cpuacct group of our own: exact, with the dead and the adopted, blind to the rest of the machine.

    Where no such group can be made it is the busy time of the whole machine, in ticks, so run alone. Kernel threads
    that clean up after dead namespaces are in neither the group nor in what a peer is charged with.
    """
    member = Path("/proc/self/cgroup").read_text().splitlines()
    paths = [path for _, names, path in (line.split(":", 2) for line in member) if "cpuacct" in names.split(",")]
    home = CGROUPS / "cpuacct" / (paths[0].lstrip("/") if paths else "")
    if not paths or not os.access(home, os.W_OK):
        yield Meter(machine_busy_s, "the whole machine's: no cpuacct group")
        return
    for stale in home.glob("benchmark-*"):
        with contextlib.suppress(OSError):  # of one that still runs
            stale.rmdir()
    group = home / f"benchmark-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield Meter(lambda: int((group / "cpuacct.usage").read_text()) / 1e9, "of a cpuacct group")
    finally:
        (home / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def machine_busy_s() -> float:
    """Busy time of all processors since boot: user, nice, system, irq, softirq."""
    fields = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:8]]
    user, nice, system, _idle, _iowait, irq, softirq = fields
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


@dataclass
class Cost:
    """What one operation cost, over its rounds."""

    walls_ms: list[float] = field(default_factory=list)
    cpu_s: float = 0.0

    @property
    def median_ms(self) -> float:
        return statistics.median(self.walls_ms)

    @property
    def p95_ms(self) -> float:
        return statistics.quantiles(self.walls_ms, n=20, method="inclusive")[-1]

    @property
    def cpu_ms(self) -> float:
        return self.cpu_s / len(self.walls_ms) * 1e3


Operation = Callable[[], Awaitable[object]]


async def interleave(meter: Meter, blocks: int, operations: Mapping[str, tuple[int, Operation]]) -> dict[str, Cost]:
    """Run each operation so many times a block, block after block, so that all meet the same machine.

    Processor time is read once a block: the kernel books it when a process stops running, not at each moment.
    """
    costs = {name: Cost() for name in operations}
    for _ in range(blocks):
        for name, (each, operation) in operations.items():
            cpu = meter.seconds()
            for _ in range(each):
                started = time.perf_counter()
                await operation()
                costs[name].walls_ms.append((time.perf_counter() - started) * 1e3)
            costs[name].cpu_s += meter.seconds() - cpu
    return costs


async def at_once(width: int, call: Callable[[Any], Awaitable[Any]], items: Iterable[Any]) -> list[Any]:
    """`call` of every item, `width` of them at a time; results in order."""
    gate = asyncio.Semaphore(width)

    async def one(item: Any) -> Any:
        async with gate:
            return await call(item)

    return await asyncio.gather(*(one(item) for item in items))


def children() -> dict[int, list[int]]:
    """Child processes by parent, of the whole machine. Readable without rights."""
    found: dict[int, list[int]] = defaultdict(list)
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                stat = (path / "stat").read_text()
                found[int(stat.rpartition(")")[2].split()[1])].append(int(path.name))
    return found


def below(pid: int, tree: Mapping[int, list[int]] | None = None) -> set[int]:
    """Every process descended from one, itself not counted. In a pid namespace PID 1 adopts, so none is missed."""
    tree = children() if tree is None else tree
    found: set[int] = set()
    todo = [pid]
    while todo:
        fresh = [child for child in tree.get(todo.pop(), []) if child not in found]
        found.update(fresh)
        todo += fresh
    return found


def traces() -> dict[str, set[str]]:
    """What a sandbox may leave behind, by kind: compare before and after. Another trajmill's cgroups do not count."""
    groups = {f"{folder}/{name}" for folder, names, _ in os.walk(CGROUPS) for name in names}
    groups = {path for path in groups if str(os.getpid()) in path or "/trajmill-" not in path}
    mounts = set(Path("/proc/self/mountinfo").read_text().splitlines())
    descriptors = {path.name for path in Path("/proc/self/fd").iterdir()}
    return {
        "processes": {str(pid) for pid in below(os.getpid())},
        "cgroups": groups,
        "mounts": mounts,
        "descriptors": descriptors,
    }


def meminfo() -> dict[str, int]:
    """/proc/meminfo in bytes."""
    pairs = (line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return {name: int(value.split()[0]) * 1024 for name, value in pairs}


async def settled_meminfo() -> dict[str, int]:
    """The same once MemAvailable moves less than 1 MB in a second (the kernel frees late), or after 15 s."""
    last = meminfo()
    for _ in range(15):
        await asyncio.sleep(1)
        now = meminfo()
        if abs(now["MemAvailable"] - last["MemAvailable"]) < 1e6:
            return now
        last = now
    return last


def new_factory() -> NativeFactory:
    """As root the full isolation or an error; without root what the host offers."""
    return NativeFactory(accept_process_memory_limit=os.geteuid() != 0)


def pid_of(box: NativeSandbox) -> int:
    """The host's number of its PID 1."""
    if box.pid is None:
        raise RuntimeError("a sandbox without a PID 1")
    return box.pid


def pss_bytes(pid: int) -> int:
    """Proportional memory of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
