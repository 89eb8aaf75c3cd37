"""Sandbox bench: what making, executing, forking and timing out cost, beside subprocess, SWE-ReX and bubblewrap."""

import asyncio
import random
import subprocess
import tempfile
import time
from pathlib import Path

import sandbox_peers as peers
from lines import say
from sandbox_measure import BAR, Cost, Meter, below, children, interleave, pid_of

from agents.sandbox.base import Limits
from agents.sandbox.native.host import NativeFactory
from agents.sandbox.native.sandbox import NativeSandbox

ECHO = ["/bin/echo", "x"]
FLOOR = "a raw subprocess of the same run"
TREE = """
trap '' TERM INT HUP
setsid sh -c 'trap "" TERM; while :; do sleep 1; done' &
nohup sleep 600 >/dev/null 2>&1 &
(sh -c 'sleep 600 & exec sleep 600' &)
wait
"""
TIMEOUT_S = 0.25
MANY = 16
SHM = Path("/dev/shm")
MEMORY = SHM if SHM.is_dir() else None
MIB = 1024 * 1024


async def raw_echo() -> None:
    """The floor: what any Python program pays to run a command."""
    subprocess.run(ECHO, capture_output=True, check=True)  # noqa: ASYNC221  (nothing else runs)


async def create(factory: NativeFactory, meter: Meter, blocks: int) -> None:
    """One after the other; none is closed before all are made."""
    made: list[NativeSandbox] = []

    async def ours() -> None:
        made.append(await factory.open(Limits()))

    async with peers.swerex() as rex:
        operations = {"ours": (20, ours), "rex": (1, rex.create), "bwrap": (2, peers.bwrap_true)}
        cost = await interleave(meter, blocks, operations)
    for box in made:
        await box.close()
    say("sandbox_create", cost["ours"].median_ms, BAR, 5.0, "ms, median")
    say("sandbox_create_cpu", cost["ours"].cpu_ms, BAR, 3.0, f"CPU ms ({meter.how})")
    against_peers("sandbox_create", cost, {"rex": peers.REX_CREATE, "bwrap": peers.BWRAP_CREATE})


async def execute(factory: NativeFactory, meter: Meter, blocks: int) -> None:
    """`echo` as an argument vector, everywhere."""
    box = await factory.open(Limits())

    async def ours() -> None:
        done = await box.run(ECHO)
        if done.stdout != b"x\n":
            raise RuntimeError(f"echo gave {done}")

    async with peers.swerex() as rex:
        await rex.create()
        operations = {"ours": (20, ours), "raw": (20, raw_echo), "rex": (20, rex.execute)}
        operations |= {"session": (1, rex.run_in_session), "bwrap": (2, peers.bwrap_echo)}
        cost = await interleave(meter, blocks, operations)
    await box.close()
    say("sandbox_exec", cost["ours"].median_ms, FLOOR, cost["raw"].median_ms, "ms, median", 1.5)
    say("sandbox_exec_cpu", cost["ours"].cpu_ms, FLOOR, cost["raw"].cpu_ms, f"CPU ms ({meter.how})", None)
    names = {"rex": peers.REX_EXECUTE, "session": peers.REX_SESSION, "bwrap": peers.BWRAP_ECHO}
    against_peers("sandbox_exec", cost, names)


async def execute_many(factory: NativeFactory, meter: Meter, blocks: int) -> None:
    """`echo` in many sandboxes at once, as rollouts do it, against the quicker way of the peer."""
    boxes = [await factory.open(Limits()) for _ in range(MANY)]

    async def ours() -> None:
        await asyncio.gather(*(box.run(ECHO) for box in boxes))

    async with peers.swerex() as rex:
        await rex.create()

        async def theirs() -> None:
            await asyncio.gather(*(rex.execute() for _ in boxes))

        cost = await interleave(meter, blocks, {"ours": (2, ours), "rex": (2, theirs)})
    await asyncio.gather(*(box.close() for box in boxes))
    peer = f"{peers.REX_EXECUTE}; it holds its event loop"
    unit = f"ms for {MANY} at once, median"
    say("sandbox_exec_many_against_rex", cost["ours"].median_ms, peer, cost["rex"].median_ms, unit)


def against_peers(figure: str, cost: dict[str, Cost], names: dict[str, str]) -> None:
    """Wall and processor time of ours over each peer's."""
    ours = cost["ours"]
    for key, peer in names.items():
        say(f"{figure}_against_{key}", ours.median_ms, peer, cost[key].median_ms, "ms, median")
        say(f"{figure}_against_{key}_cpu", ours.cpu_ms, peer, cost[key].cpu_ms, "CPU ms", None)


async def fork(factory: NativeFactory, meter: Meter, megabytes: int, blocks: int) -> None:
    """From a sealed sandbox with so much in WORK, in files of 64 KB; the peer copies the same files through tar."""
    draw = random.Random(megabytes)
    files = {f"d{i % 16}/{i}.bin": draw.randbytes(MIB // 16) for i in range(megabytes * 16)}
    parent = await factory.open(Limits(memory_mb=512, disk_mb=128))
    await parent.put(files)
    snapshot = await parent.seal()
    await parent.close()
    forks: list[NativeSandbox] = []

    async def ours() -> None:
        forks.append(await factory.fork(snapshot))

    with tempfile.TemporaryDirectory(dir=MEMORY) as scratch:
        source = _unpacked(Path(scratch, "source"), files)

        async def tar_copy() -> None:
            target = tempfile.mkdtemp(dir=scratch)
            line = f"tar -cf - -C {source} . | tar -xf - -C {target}"
            subprocess.run(line, shell=True, check=True)  # noqa: ASYNC221

        cost = await interleave(meter, max(2, blocks // 2), {"ours": (10, ours), "tar": (1, tar_copy)})
    await _check_forks(forks, files)
    await asyncio.gather(*(box.close() for box in forks))
    await snapshot.close()
    say(f"sandbox_fork_{megabytes}mb", cost["ours"].median_ms, BAR, 5.0, "ms, median")
    copied = f"tar to tar of the same {len(files)} files in memory"
    say(f"sandbox_fork_{megabytes}mb_against_tar", cost["ours"].median_ms, copied, cost["tar"].median_ms, "ms, median")
    say(f"sandbox_fork_{megabytes}mb_cpu", cost["ours"].cpu_ms, copied, cost["tar"].cpu_ms, "CPU ms", None)


def _unpacked(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


async def _check_forks(forks: list[NativeSandbox], files: dict[str, bytes]) -> None:
    """Each has the parent's files, may change them, and no sibling sees it."""
    names = sorted(files)
    for number, box in enumerate(forks):
        seen = await box.collect([names[0], names[-1], "mine"])
        if seen != {name: files[name] for name in (names[0], names[-1])}:
            raise RuntimeError(f"fork {number} has {sorted(seen)}, not the parent's files")
        done = await box.run(f"echo {number} > mine && rm {names[0]} && find . -name '*.bin' | wc -l")
        if done.stdout.split() != [str(len(files) - 1).encode()]:
            raise RuntimeError(f"a command in fork {number} gave {done}")


async def timeout(factory: NativeFactory, rounds: int) -> None:
    """How long after its wall time a command's whole tree is gone: detached, deaf and orphaned processes too."""
    box = await factory.open(Limits())
    late_ms = Cost()
    for _ in range(rounds):
        started = time.perf_counter()
        result, tree = await asyncio.gather(box.run(TREE, timeout_s=TIMEOUT_S), _tree_of(box))
        while _any_left(tree):
            if time.perf_counter() - started > 30:
                raise RuntimeError("processes outlived their timeout")
        late_ms.walls_ms.append((time.perf_counter() - started - TIMEOUT_S) * 1e3)
        if len(tree) < 6 or not result.timed_out:
            raise RuntimeError(f"not the tree that was meant: {len(tree)} processes, {result}")
    left = below(pid_of(box))
    done = await box.run(ECHO)
    if left or done.exit_code != 0:
        raise RuntimeError(f"the sandbox did not come out of its timeouts clean: {left}, {done}")
    await box.close()
    say("sandbox_timeout_overshoot", late_ms.median_ms, BAR, 20.0, "ms, median, whole tree")
    say("sandbox_timeout_overshoot_p95", late_ms.p95_ms, BAR, 20.0, "ms, p95, whole tree")


async def _tree_of(box: NativeSandbox) -> set[int]:
    """Its processes a little before the timeout."""
    await asyncio.sleep(TIMEOUT_S * 0.6)
    return below(pid_of(box))


def _any_left(pids: set[int]) -> bool:
    """Zombies count."""
    return any(Path("/proc", str(pid)).exists() for pid in pids)


async def priority(factory: NativeFactory, meter: Meter, busy: int, rounds: int) -> None:
    """Commands of a latency sandbox while so many background sandboxes take all the processor time there is."""
    box = await factory.open(Limits(), "latency")

    async def ours() -> None:
        await box.run(ECHO)

    idle = await interleave(meter, rounds // 10, {"ours": (10, ours), "raw": (10, raw_echo)})
    others = [await factory.open(Limits(), "background") for _ in range(busy)]
    running = [asyncio.ensure_future(other.run("while :; do :; done", timeout_s=600)) for other in others]
    try:
        await _all_running(others)
        loaded = await interleave(meter, rounds // 10, {"ours": (10, ours), "raw": (10, raw_echo)})
        if ended := [task for task in running if task.done()]:
            raise RuntimeError(f"{len(ended)} background commands ended early: {ended[0]}")
    finally:
        await asyncio.gather(*(other.close() for other in others))
        await asyncio.gather(*running, return_exceptions=True)
    await box.close()
    say("sandbox_busy_p95", loaded["ours"].p95_ms, f"the same idle; {busy} busy", idle["ours"].p95_ms, "ms, p95", 3.0)
    say("sandbox_busy_median", loaded["ours"].median_ms, "the same idle", idle["ours"].median_ms, "ms, median", None)
    raw = "a raw subprocess beside them"
    say("sandbox_busy_p95_against_raw", loaded["ours"].p95_ms, raw, loaded["raw"].p95_ms, "ms, p95", None)


async def _all_running(boxes: list[NativeSandbox]) -> None:
    deadline = time.monotonic() + 60
    while True:
        tree = children()
        waiting = sum(not below(pid_of(box), tree) for box in boxes)
        if not waiting:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{waiting} background commands did not start in a minute")
        await asyncio.sleep(0.2)
