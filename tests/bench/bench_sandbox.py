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
FLOOR = "a raw subprocess of the same run"


def pss_kb(pid: int) -> int:
    """Proportional memory of a process, in KB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def cpu_s() -> float:
    """Processor time of this process and its ended children."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in usage)


def say(figure: str, ours: float, peer: str, against: float, unit: str, bar: float) -> None:
    ratio = ours / against
    line = {"figure": figure, "ours": round(ours, 3), "against": round(against, 3), "peer": peer}
    print(json.dumps(line | {"ratio": round(ratio, 3), "unit": unit, "bar": bar, "holds": ratio <= bar}), flush=True)


async def exec_against_floor(box: NativeSandbox) -> tuple[float, float]:
    """Milliseconds of a raw subprocess: wall and CPU."""
    inside, floor = [], []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        await box.run(ECHO)
        inside.append(time.perf_counter() - started)
        started = time.perf_counter()
        subprocess.run(ECHO, capture_output=True, check=True)  # noqa: ASYNC221  (nothing else runs)
        floor.append(time.perf_counter() - started)
    cpu = cpu_s()
    for _ in range(ROUNDS):
        subprocess.run(ECHO, capture_output=True, check=True)  # noqa: ASYNC221
    ours, raw = statistics.median(inside) * 1e3, statistics.median(floor) * 1e3
    say("sandbox_exec_echo", ours, FLOOR, raw, "ms, median", 2.0)
    return raw, (cpu_s() - cpu) / ROUNDS * 1e3


async def main() -> None:
    factory = NativeFactory()
    first = await factory.open(Limits())
    raw_ms, raw_cpu_ms = await exec_against_floor(first)
    await first.close()

    made, boxes, cpu = [], [], cpu_s()
    for _ in range(LIVE):
        started = time.perf_counter()
        boxes.append(await factory.open(Limits()))
        made.append(time.perf_counter() - started)
    say("sandbox_create", statistics.median(made) * 1e3, FLOOR, raw_ms, "ms, median", 10.0)
    idle = statistics.median(pss_kb(box.pid) for box in boxes if box.pid)
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as cat:  # noqa: ASYNC220
        if cat.stdin and cat.stdout:
            cat.stdin.write(b"up\n")
            cat.stdout.readline()  # it runs and waits now
        say("sandbox_idle", idle, "an idle cat", pss_kb(cat.pid), "KB PSS", 1.0)
    await asyncio.gather(*(box.close() for box in boxes))
    say("sandbox_life", (cpu_s() - cpu) / LIVE * 1e3, FLOOR, raw_cpu_ms, "CPU ms, made and closed", 10.0)


if __name__ == "__main__":
    asyncio.run(main())
