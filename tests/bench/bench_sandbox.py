"""Sandbox figures as JSON lines, beside the floor (a raw subprocess) of the same run. Called by `make bench`."""

import asyncio
import json
import resource
import statistics
import subprocess
import time
from pathlib import Path

from agents.sandbox.base import Limits
from agents.sandbox.native.host import NativeFactory, NativeSandbox

ROUNDS = 200
LIVE = 200
ECHO = ["/bin/echo", "x"]


def pss_kb(pid: int) -> int:
    """Proportional memory of a process, in KB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def cpu_s() -> float:
    """Processor time of this process and its ended children."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in usage)


def say(name: str, **figures: float) -> None:
    print(json.dumps({"bench": "sandbox", "name": name, **{key: round(value, 3) for key, value in figures.items()}}))


async def exec_against_floor(box: NativeSandbox) -> None:
    inside, floor = [], []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        await box.run(ECHO)
        inside.append(time.perf_counter() - started)
        started = time.perf_counter()
        subprocess.run(ECHO, capture_output=True, check=True)  # noqa: ASYNC221  (nothing else runs)
        floor.append(time.perf_counter() - started)
    ours, raw = statistics.median(inside) * 1e3, statistics.median(floor) * 1e3
    say("exec echo", median_ms=ours, subprocess_ms=raw, ratio=ours / raw)


async def main() -> None:
    factory = NativeFactory()
    first = await factory.open(Limits())
    await exec_against_floor(first)
    await first.close()

    made, boxes, cpu = [], [], cpu_s()
    for _ in range(LIVE):
        started = time.perf_counter()
        boxes.append(await factory.open(Limits()))
        made.append(time.perf_counter() - started)
    say("create", median_ms=statistics.median(made) * 1e3, p95_ms=sorted(made)[LIVE * 95 // 100] * 1e3)
    say("idle", live=LIVE, pss_kb=statistics.median(pss_kb(box.pid) for box in boxes if box.pid))
    started = time.perf_counter()
    await asyncio.gather(*(box.close() for box in boxes))
    say("close all", live=LIVE, seconds=time.perf_counter() - started)
    say("life", cpu_ms=(cpu_s() - cpu) / LIVE * 1e3)  # made and closed, host and sandbox together


if __name__ == "__main__":
    asyncio.run(main())
