"""Sandbox bench: many sandboxes live at once, what they take, and that ending them leaves nothing."""

import gc
import os
import statistics
import sys
import time
from pathlib import Path

from lines import say, skip
from sandbox_measure import (
    BAR,
    Meter,
    at_once,
    below,
    new_factory,
    pid_of,
    pss_bytes,
    settled_meminfo,
    traces,
)

from agents.sandbox.base import Limits
from agents.sandbox.native.host import NativeFactory
from agents.sandbox.native.sandbox import NativeSandbox

WIDTH = 16
"""Opened, and commanded, at a time."""
FULL = 2500
"""The issue's bars are for so many; with fewer they are scaled."""
KERNEL = ("SUnreclaim", "KernelStack", "PageTables", "Percpu", "Shmem")


async def live_at_once(live: int, meter: Meter) -> None:
    """Make them, run a command that writes a file in each, measure, collect all files, end them."""
    warm = new_factory()  # compiles the helper, fills caches
    await (await warm.open(Limits())).run("true")
    await warm.close()
    gc.collect()
    before, memory, own = traces(), await settled_meminfo(), pss_bytes(os.getpid())
    factory = new_factory()
    try:
        boxes = await _make(factory, live, meter)
        await at_once(WIDTH, _write, enumerate(boxes))
        _say_memory(memory, await settled_meminfo(), own, boxes)
        _say_idle(boxes)
        await at_once(WIDTH, _check, enumerate(boxes))
        started, cpu = time.perf_counter(), meter.seconds()
    finally:
        await factory.close()
    wall, spent = time.perf_counter() - started, meter.seconds() - cpu
    left = {kind: found - before[kind] for kind, found in traces().items()}
    say("sandbox_teardown", wall, BAR, 5.0 * live / FULL, f"s, {live} sandboxes")
    say("sandbox_teardown_cpu", spent / live * 1e3, BAR, 5.0, "CPU ms each", None)
    for kind, found in left.items():
        say(f"sandbox_left_{kind}", len(found), "none", 0, f"left of {live} sandboxes", 0)
        for name in sorted(found)[:5]:
            print(f"left: {name}", file=sys.stderr)


async def _make(factory: NativeFactory, live: int, meter: Meter) -> list[NativeSandbox]:
    started, cpu = time.perf_counter(), meter.seconds()
    boxes = await at_once(WIDTH, lambda _: factory.open(Limits()), range(live))
    wall, spent = time.perf_counter() - started, meter.seconds() - cpu
    say("sandbox_live_created", live / wall, BAR, 150, f"per s, {WIDTH} at a time", at_least=True)
    say("sandbox_live_created_cpu", spent / live * 1e3, BAR, 3.0, f"CPU ms each ({meter.how})")
    return boxes


async def _write(numbered: tuple[int, NativeSandbox]) -> None:
    number, box = numbered
    done = await box.run(f"echo {number} > kept.txt")
    if done.exit_code != 0:
        raise RuntimeError(f"a command in sandbox {number} gave {done}")


async def _check(numbered: tuple[int, NativeSandbox]) -> None:
    number, box = numbered
    kept = await box.collect(["kept.txt"])
    if kept != {"kept.txt": f"{number}\n".encode()}:
        raise RuntimeError(f"sandbox {number} kept {kept}")


def _say_memory(before: dict[str, int], after: dict[str, int], own: int, boxes: list[NativeSandbox]) -> None:
    """The bar is for what the machine has lost, whoever holds it. The sum of what can be named checks that."""
    bar = 1500 * len(boxes) / FULL
    lost = before["MemAvailable"] - after["MemAvailable"]
    say("sandbox_live_memory", lost / 1e6, BAR, bar, f"MB, drop of MemAvailable, {len(boxes)} live")
    try:
        parts = {"sandboxes": sum(map(pss_bytes, below(os.getpid()))), "host": pss_bytes(os.getpid()) - own}
    except PermissionError as error:
        skip("sandbox_live_memory_named", f"only root may: {error}")
        return
    parts |= {key: after.get(key, 0) - before.get(key, 0) for key in KERNEL}
    detail = ", ".join(f"{key} {size / 1e6:.0f}" for key, size in parts.items())
    say("sandbox_live_memory_named", sum(parts.values()) / 1e6, BAR, bar, f"MB: {detail}")


def _say_idle(boxes: list[NativeSandbox]) -> None:
    pids = [pid_of(box) for box in boxes]
    everything = below(os.getpid())
    if not set(pids) <= everything:
        raise RuntimeError("not every PID 1 is among our descendants")
    say("sandbox_idle_processes", len(everything) / len(pids), BAR, 1, "each, with what serves them all", 1.01)
    try:
        say("sandbox_idle_memory", statistics.median(map(pss_bytes, pids)) / 1024, BAR, 20, "KB PSS, median")
        say("sandbox_idle_descriptors", max(map(_descriptors, pids)), BAR, 3, "most")
    except PermissionError as error:
        skip("sandbox_idle", f"only root may: {error}")


def _descriptors(pid: int) -> int:
    return len(list(Path("/proc", str(pid), "fd").iterdir()))
