"""Real node agents in processes of their own, with real sandboxes: one dies under load, and nothing is lost."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from node_help import SMALL

from agents.sandbox.native.host import NativeFactory
from agents.sandbox.node.client import Nodes
from schemas.errors import SandboxLost, SandboxUnsupported

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "pipelines.cli", "node"]
TOKEN = "a-token-for-this-test-only"


@pytest.fixture(scope="module", autouse=True)
def supported():
    async def main():
        factory = NativeFactory()
        try:
            await factory.open(SMALL)
        finally:
            await factory.close()

    try:
        asyncio.run(main())
    except SandboxUnsupported as error:
        pytest.skip(f"no native sandboxes here: {error}")


@contextlib.contextmanager
def nodes(count, *options):
    """So many node agents; their processes and URLs. They are ended by their number."""
    command = [*COMMAND, "--token-env", "NODE_TEST_TOKEN", *options]
    environment = os.environ | {"NODE_TEST_TOKEN": TOKEN}
    started = [
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    try:
        lines = [process.stdout.readline() for process in started]
        assert all(line.startswith("listening on http://127.0.0.1:") for line in lines), started[0].communicate()
        yield started, [line.removeprefix("listening on ").strip() for line in lines]
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in started:
            process.communicate(timeout=20)


def live(url) -> int:
    headers, nothing = {"authorization": f"Bearer {TOKEN}"}, {"leases": [], "snapshots": []}
    response = httpx.post(f"{url}/renew", json=nothing, headers=headers)
    return response.json()["reading"]["live"]


def children(pid) -> set[int]:
    """Every living process below this one."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(stat.parent.name)] = int(parent)
    found, new = set(), {pid}
    while new := {child for child, parent in parents.items() if parent in new} - found:
        found |= new
    return found


def test_a_node_dies_under_load_and_nothing_is_lost():
    units, results, lost_on = 60, {}, []

    async def one(pool, number):
        """One unit of work; what was lost is done again from its beginning, somewhere."""
        while number not in results:
            box = await pool.lease(SMALL)
            try:
                await box.put({"in": str(number).encode()})
                done = await box.run("sleep 0.2; n=$(cat in); echo $((n * n)) | tee out")
                files = await box.collect(["out"])
                assert done.exit_code == 0 and files["out"] == done.stdout
                results.setdefault(number, []).append(done.stdout)
            except SandboxLost:
                lost_on.append(box.link.url)
            finally:
                await box.close()

    async def main(processes, urls):
        pool = Nodes(urls, TOKEN, seed=1, beat_s=0.2, lost_s=3.0)
        try:
            tasks = [asyncio.create_task(one(pool, number)) for number in range(units)]
            while len(results) < units // 4:  # noqa: ASYNC110  (nobody else would set an event)
                await asyncio.sleep(0.01)
            busy = len(pool._links[urls[0]].leases)
            processes[0].kill()
            await asyncio.gather(*tasks)
            return busy
        finally:
            await pool.close()

    with nodes(3, "--max-live", "4") as (processes, urls):
        busy = asyncio.run(main(processes, urls))
        assert results == {number: [b"%d\n" % number**2] for number in range(units)}
        assert busy > 0 and lost_on and set(lost_on) == {urls[0]}
        assert [live(url) for url in urls[1:]] == [0, 0]


def test_a_node_that_hangs_is_lost_and_may_come_back():
    async def main(processes, urls):
        pool = Nodes(urls, TOKEN, wait_s=10.0, beat_s=0.1, lost_s=1.0)
        try:
            boxes = [await pool.lease(SMALL) for _ in range(6)]
            stuck = [box for box in boxes if box.link.url == urls[0]]
            assert 1 < len(stuck) < 6
            snapshot = await stuck.pop().seal()
            running = [asyncio.create_task(box.run("sleep 100", timeout_s=100)) for box in stuck]
            await asyncio.sleep(0.3)
            processes[0].send_signal(signal.SIGSTOP)
            started = time.monotonic()
            ends = await asyncio.gather(*running, return_exceptions=True)
            assert all(type(end) is SandboxLost for end in ends), ends
            assert time.monotonic() - started < 8  # and not after 100 s
            assert not any(box.alive for box in stuck)
            with pytest.raises(SandboxLost):
                await pool.fork(snapshot)
            for box in stuck:
                await box.close()
            more = [await pool.lease(SMALL) for _ in range(2)]
            assert {box.link.url for box in more} == {urls[1]}  # out of placement
            processes[0].send_signal(signal.SIGCONT)
            async with asyncio.timeout(10):
                while pool._links[urls[0]].reading is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            again = [await pool.lease(SMALL) for _ in range(3)]
            assert urls[0] in {box.link.url for box in again}
            assert (await again[0].run("echo back")).stdout == b"back\n"
        finally:
            await pool.close()

    with nodes(2, "--max-live", "8") as (processes, urls):
        asyncio.run(main(processes, urls))


def test_a_signal_ends_every_sandbox_and_the_token_is_nowhere_to_read():
    async def main(url):
        pool = Nodes([url], TOKEN)
        boxes = [await pool.lease(SMALL) for _ in range(3)]
        seen = await boxes[0].run("env; cat /proc/*/environ /proc/*/cmdline")
        assert b"PATH=" in seen.stdout and TOKEN.encode() not in seen.stdout + seen.stderr
        times = []
        for _ in range(15):
            started = time.perf_counter()
            await boxes[1].run("true")
            times.append(time.perf_counter() - started)
        assert min(times) < 0.035  # Nagle's algorithm and a delayed acknowledgement would make every one 0.04
        for link in pool._links.values():
            await link.close()  # without giving anything back

    with nodes(1, "--max-live", "3") as ([process], [url]):
        assert TOKEN not in Path(f"/proc/{process.pid}/cmdline").read_text()
        asyncio.run(main(url))
        inside = children(process.pid)
        assert len(inside) >= 3
        process.terminate()
        process.wait(10)
        deadline = time.monotonic() + 5
        while left := {pid for pid in inside if Path(f"/proc/{pid}").exists() and not is_zombie(pid)}:
            assert time.monotonic() < deadline, left
            time.sleep(0.02)


def is_zombie(pid) -> bool:
    """Dead, and its parent has not looked yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


REFUSED = {
    "name a variable": ["--host", "0.0.0.0"],
    "$NODE_TEST_NONE must hold": ["--host", "0.0.0.0", "--token-env", "NODE_TEST_NONE"],
    "at least 16": ["--token-env", "NODE_TEST_SHORT"],
    "assign": ["--host", "192.0.2.1", "--token-env", "NODE_TEST_TOKEN"],
    "max-live": ["--max-live", "0"],
}


def test_what_the_command_refuses():
    environment = os.environ | {"NODE_TEST_TOKEN": TOKEN, "NODE_TEST_SHORT": "x" * 15}
    started = {
        said: subprocess.Popen(
            [*COMMAND, *options],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for said, options in REFUSED.items()
    }
    for said, process in started.items():
        stdout, stderr = process.communicate(timeout=30)
        assert process.returncode == 2 and said in stderr and "Traceback" not in stderr, (said, stderr)
        assert stdout == ""
