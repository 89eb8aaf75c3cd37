"""Is there room for one more sandbox on this host? Pure; called by pool.py.

What is overcommitted, and why: an idle sandbox costs IDLE_MB and one process, and that is certain. Its limits are what
it may grow to, and most never do: a machine with 24 GB holds 2,500 idle sandboxes of 256 MB, whose limits add up to
640 GB. So limits are not added up. What the ones already there really use shows in the reading; on top of that a
newcomer must find its own limits free, and a floor must stay. When many grow at once, readings fall below the
floor, nobody else is let in, and each one's own group still bounds what it can take.
"""

from dataclasses import dataclass

from agents.sandbox.base import Limits, Priority
from agents.sandbox.signals import Reading

IDLE_MB = 1
"""Of one sandbox that was just made and may not show in a reading yet (measured: 0.6)."""
DESCRIPTORS = 8
"""One for a sandbox, and at most seven more while a command of it starts."""

Cause = tuple[str, str]
"""One word for metrics, and what was measured."""


@dataclass(frozen=True)
class PoolSettings:
    """How much a pool may take, and the levels of the host's signals at which it lets nobody else in."""

    max_live: int = 2500
    """Sandboxes at once: leased, spare, being made and being closed."""
    spares: int = 0
    """Ready ones kept for the limits and priority asked for last."""
    wait_s: float | None = None
    """How long a lease may wait for room. None: for ever. 0: it is refused at once, as a node agent wants it.

    Waiting for one's turn to be made, which takes milliseconds, does not count.
    """
    idle_s: float = 900.0
    """A lease that was not used for so long is reclaimed."""
    free_memory_mb: int = 512
    """Must stay free, as must the next five."""
    free_pids: int = 256
    free_fds: int = 256
    """For the commands of the sandboxes that are there: up to seven each while one starts, four while it runs."""
    free_disk_mb: int = 512
    cpu_pressure: float = 90.0
    """Percent of time. Holds back `background` only: latency-sensitive ones take the processor from the others."""
    memory_pressure: float = 40.0
    io_pressure: float = 90.0
    """High, as a journal that is synced at every step waits for the disk most of the time."""


def never(settings: PoolSettings, limits: Limits, memory_mb: int, pids: int) -> Cause | None:
    """Why these limits cannot be met, however long one waits, on a host that never has more free than this."""
    memory, memory_most = limits.memory_mb + limits.disk_mb, memory_mb - settings.free_memory_mb
    pids_most = pids - settings.free_pids
    if settings.max_live < 1:
        return "limits", "this pool is set to hold no sandbox"
    if memory > memory_most:
        return "limits", f"{memory} MB of memory and files asked for; this host can never give more than {memory_most}"
    if limits.processes > pids_most:
        return "limits", f"{limits.processes} processes asked for; this host can never give more than {pids_most}"
    return None


def shortage(reading: Reading, settings: PoolSettings, limits: Limits, priority: Priority, making: int) -> Cause | None:
    """What is short now for one more, besides `making` that do not show in the reading yet."""
    have_need = {
        "memory": (reading.memory_mb, settings.free_memory_mb + limits.memory_mb + limits.disk_mb + making * IDLE_MB),
        "pids": (reading.pids, settings.free_pids + limits.processes + making),
        "fds": (reading.fds, settings.free_fds + DESCRIPTORS + making),
        "disk": (reading.disk_mb, settings.free_disk_mb),
    }
    for cause, (have, need) in have_need.items():
        if have < need:
            return cause, f"{cause} short: {have} free, {need} needed"
    pressures = {
        "memory_pressure": (reading.memory_pressure, settings.memory_pressure),
        "io_pressure": (reading.io_pressure, settings.io_pressure),
        "cpu_pressure": (reading.cpu_pressure if priority == "background" else None, settings.cpu_pressure),
    }
    for cause, (percent, level) in pressures.items():
        if percent is not None and percent > level:
            return cause, f"{cause} {percent:g}% of the last 10 s, above {level:g}%"
    return None
