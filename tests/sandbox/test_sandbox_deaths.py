"""How sandboxes end, whose doing it is said to be, and that nothing of them is left on the host."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agents.sandbox.base import Limits
from agents.sandbox.native import cgroups
from agents.sandbox.native.host import NativeFactory
from agents.sandbox.native.sandbox import NativeSandbox, _cause
from schemas.errors import (
    SandboxCrashed,
    SandboxDied,
    SandboxError,
    SandboxExpired,
    SandboxLost,
    SandboxUnsupported,
)

PROJECT = Path(__file__).resolve().parents[2]
BUSY = "for i in 1 2 3; do setsid sleep 9999 & done; trap '' TERM; nohup sleep 9998 > /dev/null 2>&1 & sleep 9997"


def with_factory(body):
    async def main():
        factory = NativeFactory(accept_process_memory_limit=True)
        try:
            return await body(factory)
        finally:
            await factory.close()

    return asyncio.run(main())


def below(tops):
    """Live host processes that are these or descend from them."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] not in "ZX":
            parents[int(stat.parent.name)] = int(fields[1])
    found = {pid for pid in tops if pid in parents}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def running(pids):
    return {pid for pid in pids if below([pid])}


def group_folders(owner):
    return [path for parent in cgroups.find().hierarchies for path in parent.glob(f"trajmill-{owner}-*")]


async def started(box, command=BUSY, processes=7):
    """The command runs with all its children: PID 1, a supervisor and `processes` - 2 of its own."""
    task = asyncio.ensure_future(box.run(command, timeout_s=100))
    deadline = time.monotonic() + 20
    while len(below([box.pid])) < processes:
        assert time.monotonic() < deadline, below([box.pid])
        await asyncio.sleep(0.005)
    return task


def gone_in_time(pids, seconds):
    deadline = time.monotonic() + seconds
    while left := running(pids):
        assert time.monotonic() < deadline, left
        time.sleep(0.002)


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


# ---- whose doing


def test_lifetime_is_not_the_time_of_a_command():
    async def body(factory):
        box = await factory.open(Limits(lifetime_s=0.4, command_s=0.1))
        assert (await box.run("sleep 9")).timed_out
        task = asyncio.ensure_future(box.run("sleep 9", timeout_s=9))
        with pytest.raises(SandboxExpired, match=r"0\.4 s"):
            await task
        assert not box.alive
        for attempt in (box.run("true"), box.put({"a": b""}), box.collect(["a"]), box.kill_all(), box.seal()):
            with pytest.raises(SandboxExpired):
                await attempt
        await box.close()
        assert not below([box.pid])

    with_factory(body)


def test_a_zygote_takes_its_sandboxes_with_it_and_another_one_is_started():
    async def body(factory):
        boxes = [await factory.open(Limits()) for _ in range(3)]
        other = await factory.open(Limits(), "background")
        tasks = [await started(box) for box in boxes]
        members = below([box.pid for box in boxes])
        zygote = factory._zygotes[None, "latency"]
        os.kill(zygote.pid, signal.SIGKILL)
        for task in tasks:
            with pytest.raises(SandboxLost, match="zygote"):
                await task
        await asyncio.gather(*(box.close() for box in boxes))
        assert not running(members)
        assert (await other.run("echo I live")).stdout == b"I live\n"
        assert (await (await factory.open(Limits())).run("echo again")).stdout == b"again\n"

    with_factory(body)


def test_killed_from_outside_is_the_hosts_doing():
    async def body(factory):
        box = await factory.open(Limits())
        task = await started(box)
        os.kill(box.pid, signal.SIGKILL)
        with pytest.raises(SandboxLost, match="outside"):
            await task
        with pytest.raises(SandboxLost):
            await box.run("true")
        await box.close()
        with pytest.raises(SandboxLost):
            await box.run("true")

    with_factory(body)


def test_its_own_end_is_the_agents_doing():
    """PID 1 has no way to end that an agent could be seen to take here, so its wait statuses are made up."""
    assert isinstance(_cause(signal.SIGKILL, 1), SandboxCrashed)
    assert isinstance(_cause(signal.SIGSEGV, 0), SandboxCrashed)
    assert isinstance(_cause(1 << 8, 0), SandboxCrashed)
    assert isinstance(_cause(signal.SIGKILL, 0), SandboxLost)
    assert isinstance(_cause(None, 0), SandboxLost)


def test_out_of_memory_is_counted_and_the_sandbox_lives():
    async def body(factory):
        box = await factory.open(Limits(memory_mb=64, processes=32))
        if not factory.groups.version:
            pytest.skip(f"no memory cgroup: {factory.groups.why}")
        hog = "import os\nfor _ in range(8):\n    if os.fork() == 0: x = b'x' * (40 << 20)\n"
        await box.run(["python3", "-c", hog + "os.wait()"], timeout_s=10)
        assert box._group.out_of_memory_kills() > 0
        assert (await box.run("echo here")).stdout == b"here\n"

    with_factory(body)


def test_a_weaker_memory_limit_must_be_accepted():
    async def main():
        factory = NativeFactory()
        factory.groups = cgroups.Cgroups(0, (), why="none for this test")
        try:
            with pytest.raises(SandboxUnsupported, match=r"none for this test.*accept_process_memory_limit"):
                await factory.open(Limits())
        finally:
            await factory.close()

    asyncio.run(main())


# ---- nothing left behind


def test_closing_many_leaves_nothing():
    async def body(factory):
        before = descriptors()
        boxes = await asyncio.gather(
            *(factory.open(Limits(), "background" if i % 10 == 0 else "latency") for i in range(40))
        )
        tasks = [await started(box) for box in boxes[:6]]
        members = below([box.pid for box in boxes])
        zygotes = [zygote.pid for zygote in factory._zygotes.values()]
        await factory.close()
        assert not running([*members, *zygotes])
        for task in tasks:
            with pytest.raises(SandboxDied):
                await task
        assert descriptors() <= before
        assert not group_folders(os.getpid())

    with_factory(body)


SUPERVISOR = """
import asyncio, json, os, sys, time
from agents.sandbox.base import Limits
from agents.sandbox.native.host import NativeFactory
async def main():
    factory = NativeFactory(accept_process_memory_limit=True)
    boxes = [await factory.open(Limits(), "background" if i % 10 == 0 else "latency") for i in range(30)]
    for box in boxes[:5]:
        asyncio.ensure_future(box.run(sys.argv[1]))
    copy = os.fork() if "fork" in sys.argv else 0  # holds a copy of every descriptor
    if "fork" in sys.argv and copy == 0:
        time.sleep(60)
        os._exit(0)
    pids = [box.pid for box in boxes] + [zygote.pid for zygote in factory._zygotes.values()]
    print(json.dumps({"pids": pids, "copy": copy}), flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["plain", "fork"])
def test_a_killed_supervisor_leaves_nothing_but_cgroups_and_those_until_the_next_start(how):
    supervisor = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, BUSY, how], stdout=subprocess.PIPE, text=True, cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )  # fmt: skip
    try:
        said = json.loads(supervisor.stdout.readline())
        deadline = time.monotonic() + 20
        while len(members := below(said["pids"])) < 32 + 5 * 6:
            assert time.monotonic() < deadline, members
            time.sleep(0.005)
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait()
        # 100 ms where the processor is free (tests/bench measures); an idle one has to wait for its turn to die.
        gone_in_time(members, 20)
    finally:
        supervisor.kill()
        supervisor.stdout.close()
        if said["copy"]:
            os.kill(said["copy"], signal.SIGKILL)
    where = cgroups.find()
    # Tests beside this one start sandboxes too, and may have swept them by now.
    assert where.version or not group_folders(supervisor.pid)
    # Zombies that nobody has reaped yet keep a group busy.
    deadline = time.monotonic() + 10
    while group_folders(supervisor.pid):
        cgroups.sweep(where)
        assert time.monotonic() < deadline, group_folders(supervisor.pid)
        time.sleep(0.01)


# ---- what is cancelled, and what there is not enough of


def children():
    return {int(p) for p in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def test_cancelled_at_any_moment_an_open_leaves_nothing():
    async def body(factory):
        await factory.open(Limits())
        before = children(), group_count(), descriptors()
        for step in range(40):
            opening = asyncio.ensure_future(factory.open(Limits()))
            for _ in range(step):
                await asyncio.sleep(0)
            opening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await opening).close()
        for delay in range(20):
            opening = asyncio.ensure_future(factory.open(Limits()))
            await asyncio.wait([opening], timeout=delay / 4000)
            opening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await opening).close()
        assert (children(), group_count(), descriptors()) == before

    def group_count():
        return sum(len([p for p in folder.iterdir() if p.is_dir()]) for folder in group_folders(os.getpid()))

    with_factory(body)


def test_a_factory_closed_while_it_opens_makes_no_more():
    async def main():
        factory = NativeFactory(accept_process_memory_limit=True)
        opening = [asyncio.ensure_future(factory.open(Limits())) for _ in range(10)]
        await opening[0]
        more = [asyncio.ensure_future(factory.open(Limits(), "background")) for _ in range(3)]
        await factory.close()
        ended = await asyncio.gather(*opening[1:], *more, return_exceptions=True)
        assert not any(isinstance(box, NativeSandbox) and box.alive for box in ended)
        assert all(isinstance(error, SandboxError) for error in ended if not isinstance(error, NativeSandbox)), ended
        await factory.close()
        return children()

    before = children()
    assert asyncio.run(main()) == before
    assert not group_folders(os.getpid())


def test_a_sandbox_that_hears_nothing_is_lost_and_closes():
    async def body(factory):
        box = await factory.open(Limits())
        box._answer_s = 1.0
        os.kill(box.pid, signal.SIGSTOP)
        big = "true " + "x" * 100_000
        running = [asyncio.ensure_future(box.run(big, timeout_s=0.2)) for _ in range(8)]
        for task in running:
            with pytest.raises(SandboxLost, match="no answer"):
                await task
        await box.close()
        assert not below([box.pid])
        other = await factory.open(Limits())
        assert (await other.run("echo well")).stdout == b"well\n"

    with_factory(body)


def test_all_who_seal_get_the_same_files():
    async def body(factory):
        box = await factory.open(Limits())
        if not box.can_fork:
            pytest.skip("this kernel cannot fork files (Linux 6.15)")
        await box.put({"a": b"1"})
        first = asyncio.ensure_future(box.seal())
        await asyncio.sleep(0)
        first.cancel()
        snapshots = await asyncio.gather(box.seal(), box.seal())
        for snapshot in snapshots:
            assert await (await factory.fork(snapshot)).collect(["a"]) == {"a": b"1"}

    with_factory(body)


def test_without_descriptors_it_fails_typed_and_leaves_nothing():
    async def main():
        factory = NativeFactory(accept_process_memory_limit=True)
        boxes = [await factory.open(Limits()) for _ in range(3)]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() - 1, hard))
        held = []
        try:
            with contextlib.suppress(OSError):
                while True:
                    held.append(os.open("/dev/null", os.O_RDONLY))
            for attempt in (factory.open(Limits()), boxes[0].run("true"), boxes[0].collect(["a"]), boxes[0].seal()):
                with pytest.raises(SandboxError):
                    await attempt
            os.kill(boxes[1].pid, signal.SIGKILL)
            with pytest.raises(SandboxLost):
                await boxes[1].kill_all()
            await factory.close()
        finally:
            for descriptor in held:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return children()

    before = children()
    assert asyncio.run(main()) == before
    assert not group_folders(os.getpid())


def test_a_zygote_that_ended_unnoticed_is_lost_not_closed():
    async def body(factory):
        await factory.open(Limits())
        zygote = factory._zygotes[None, "latency"]
        os.kill(zygote.pid, signal.SIGKILL)
        os.waitid(os.P_PID, zygote.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222
        with pytest.raises(SandboxLost, match="zygote"):
            await factory.open(Limits())
        assert (await (await factory.open(Limits())).run("echo new")).stdout == b"new\n"

    with_factory(body)


def test_groups_of_an_earlier_process_with_our_number_do_not_matter():
    async def body(factory):
        box = await factory.open(Limits())
        if not factory.groups.version:
            pytest.skip(f"no cgroups: {factory.groups.why}")
        folder = box._group.folders[0]
        following = folder.parent / str(int(folder.name) + 1)
        following.mkdir()
        other = await factory.open(Limits())
        assert int(other._group.folders[0].name) == int(folder.name) + 2
        following.rmdir()

    with_factory(body)
