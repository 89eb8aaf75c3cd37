"""Sandboxes through HTTP are sandboxes: same contract, same errors; leases go where there is room."""

import asyncio
import os
import resource
from contextlib import AsyncExitStack

import pytest
from node_help import SMALL, SlowFactory, SlowSandbox, node, until

from agents.runtime import open_pool
from agents.sandbox.base import VERIFY, Limits, Sandbox, SandboxPool
from agents.sandbox.node import wire
from agents.sandbox.node.client import Nodes
from schemas.errors import (
    ConfigError,
    SandboxCrashed,
    SandboxDied,
    SandboxError,
    SandboxExpired,
    SandboxLost,
    SandboxRefused,
    SandboxUnsupported,
)
from schemas.recipe import RunConfig


def play(body, *, nodes=1, wait_s=0.0, token=None, client=None, **options):
    """Run `body(pool, urls)` against so many node agents."""

    async def main():
        async with AsyncExitStack() as stack:
            urls = [await stack.enter_async_context(node(token=token, **options)) for _ in range(nodes)]
            pool = Nodes(urls, token, **{"wait_s": wait_s, "beat_s": 0.1, "lost_s": 1.0, **(client or {})})
            try:
                return await body(pool, urls)
            finally:
                await pool.close()
                await pool.close()

    return asyncio.run(main())


def test_a_remote_sandbox_keeps_the_contract():
    async def body(pool: SandboxPool, urls):
        box: Sandbox = await pool.lease(SMALL)
        assert box.alive
        done = await box.run("echo hi \udcff", stdin=b"\x00\xff", cwd="/tmp", timeout_s=3)
        assert done.stdout == b"hi \xed\xb3\xbf\x00\xff\n" and done.stderr == b"warned" and done.exit_code == 0
        assert (await box.run(["echo", "a  b"], merge_stderr=True)).stdout == b"a  b\nwarned"
        assert (await box.run("fail")).exit_code == 7
        await box.put({"d/x": bytes(range(256)), "run.sh": b""}, executable=frozenset({"run.sh"}))
        await box.put({"check": b"3"}, root=VERIFY)
        assert await box.collect(["d/x", "check", "../verify/check", "\udcff"]) == {"d/x": bytes(range(256))}
        for files, root in (({"../x": b""}, "/work"), ({"/x": b""}, "/work"), ({"x": b""}, "/etc")):
            with pytest.raises(ValueError, match="below"):
                await box.put(files, root=root)
        with pytest.raises(SandboxError, match="no reply to 'unknown'"):
            await box.run("unknown")
        await box.kill_all()
        assert box.alive
        await box.close()
        await box.close()
        assert not box.alive
        with pytest.raises(SandboxDied, match="closed") as caught:
            await box.run("echo")
        assert type(caught.value) is SandboxDied

    play(body)


def test_sealed_forked_and_outlived():
    async def body(pool, urls):
        box = await pool.lease(SMALL)
        await box.put({"x": b"1"})
        snapshot = await box.seal()
        assert snapshot.limits == SMALL
        with pytest.raises(SandboxError, match="sealed"):
            await box.run("echo")
        await box.close()
        forks = [await pool.fork(snapshot, "background") for _ in range(2)]
        await forks[0].put({"x": b"2"})
        assert await forks[1].collect(["x"]) == {"x": b"1"}
        with pytest.raises(SandboxRefused) as caught:
            await pool.fork(snapshot)
        assert caught.value.cause == "live"
        await snapshot.close()
        await snapshot.close()
        assert (await forks[0].collect(["x"])) == {"x": b"2"}
        with pytest.raises(SandboxDied, match="closed"):
            await pool.fork(snapshot)
        with pytest.raises(TypeError):
            await pool.fork(object())

    play(body, max_live=2)


@pytest.mark.parametrize(
    "error",
    [SandboxCrashed("by the agent"), SandboxExpired("old"), SandboxLost("zygote gone")],
    ids=lambda error: type(error).__name__,
)
def test_deaths_keep_their_kind(error):
    factory = SlowFactory()

    async def body(pool, urls):
        box = await pool.lease(SMALL)
        factory.opened[0].gone = error
        for _ in range(2):
            with pytest.raises(type(error), match=str(error)) as caught:
                await box.run("echo")
            assert type(caught.value) is type(error)
            assert not box.alive
        await box.close()
        await (await pool.lease(SMALL)).close()  # its room is free again

    play(body, factory=factory, max_live=1)


def test_a_full_node_is_passed_over_and_all_full_is_a_refusal_with_causes():
    async def body(pool, urls):
        boxes = [await pool.lease(SMALL) for _ in range(4)]
        assert {box.link.url for box in boxes} == set(urls)
        with pytest.raises(SandboxRefused) as caught:
            await pool.lease(SMALL)
        assert caught.value.cause == "live"
        assert all(url in str(caught.value) for url in urls)
        await boxes[0].close()
        await pool.lease(SMALL)

    play(body, nodes=2, max_live=2)


def test_what_no_node_can_ever_give_is_refused_at_once():
    async def body(pool, urls):
        with pytest.raises(SandboxRefused, match="never") as caught:
            await pool.lease(Limits(memory_mb=10**6))
        assert caught.value.cause == "limits"
        with pytest.raises(ValueError, match="memory_mb"):
            await pool.lease(Limits(memory_mb=-1))

    play(body, nodes=2, wait_s=None)


def test_leases_wait_for_room_latency_first():
    async def body(pool, urls):
        box = await pool.lease(SMALL)
        got = []

        async def wait(name, priority):
            mine = await pool.lease(SMALL, priority)
            got.append(name)
            await mine.close()

        waiters = []
        for name, priority in (("b1", "background"), ("b2", "background"), ("l1", "latency"), ("l2", "latency")):
            waiters.append(asyncio.create_task(wait(name, priority)))
            await asyncio.sleep(0.02)
        waiters[1].cancel()
        await asyncio.sleep(0.3)
        assert got == []
        await box.close()
        await asyncio.gather(*waiters, return_exceptions=True)
        assert got == ["l1", "l2", "b1"]  # b2 has left

    play(body, max_live=1, wait_s=None)


def test_waiting_ends_with_the_causes():
    async def body(pool, urls):
        await pool.lease(SMALL)
        results = await asyncio.gather(*(pool.lease(SMALL) for _ in range(3)), return_exceptions=True)
        assert all(isinstance(result, SandboxRefused) and result.cause == "live" for result in results), results
        assert all("no room in 0.3 s" in str(result) for result in results)

    play(body, max_live=1, wait_s=0.3)


def test_nobody_answers():
    async def main():
        pool = Nodes(["http://127.0.0.1:1"], lost_s=1.0)
        try:
            with pytest.raises(SandboxRefused, match="none of the nodes answers") as caught:
                await pool.lease(SMALL)
            assert caught.value.cause == "unreachable"
        finally:
            await pool.close()
        with pytest.raises(SandboxError, match="closed"):
            await pool.lease(SMALL)

    asyncio.run(main())
    for urls in ([], ["127.0.0.1:80"], ["ftp://x"], ["http://[::1"], ["http://"]):
        with pytest.raises(ConfigError):
            Nodes(urls)


def test_the_wrong_token_is_a_matter_of_configuration():
    async def body(pool, urls):
        await pool.lease(SMALL)
        for wrong in (None, "another token of someone"):
            other = Nodes(urls, wrong)
            with pytest.raises(ConfigError, match="token"):
                await other.lease(SMALL)
            await other.close()

    play(body, token="a token of the node")


def test_a_cancelled_command_ends_on_the_node():
    async def body(pool, urls):
        box, before = await pool.lease(SMALL), SlowSandbox.cut
        task = asyncio.create_task(box.run("sleep 60"))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: SlowSandbox.cut == before + 1)
        assert (await box.run("sleep 0.01")).stdout == b"slept\n"

    play(body)


def test_renewed_leases_outlive_their_time_and_others_do_not():
    factory = SlowFactory()

    async def body(pool, urls):
        kept = await pool.lease(SMALL)
        snapshot = await (await pool.lease(SMALL)).seal()
        leaver = Nodes(urls, wait_s=0.0, beat_s=0.1)
        left = await leaver.lease(SMALL)
        assert len(factory.opened) == 3
        leaver._links[urls[0]]._beating.cancel()  # it dies without a word
        await until(lambda: factory.opened[2].closed)
        assert (await kept.run("echo")).exit_code == 0
        await pool.fork(snapshot)
        with pytest.raises(SandboxLost, match="reclaimed"):
            await left.run("echo")
        await leaver.close()

    play(body, factory=factory, ttl_s=0.6)


def test_a_node_that_forgot_the_lease_is_noticed_by_renewal():
    async def body(pool, urls):
        box = await pool.lease(SMALL)
        other = Nodes(urls, beat_s=0.1)
        await other.lease(SMALL)
        link = other._links[urls[0]]
        link.leases[box.name] = box  # the other one closes it, as if the node had reclaimed it
        await link.call("/close", wire.OfLease(lease=box.name), wire.Done)
        await until(lambda: not box.alive)
        with pytest.raises(SandboxLost):
            await box.run("echo")
        await other.close()

    play(body)


class Counting(SlowFactory):
    """Knows how many were there at once."""

    peak = 0

    async def open(self, limits, priority="latency"):
        box = await super().open(limits, priority)
        await asyncio.sleep(0.005)
        self.peak = max(self.peak, sum(not box.closed for box in self.opened))
        return box


def test_replicas_never_exceed_what_a_node_may_hold():
    factories = [Counting() for _ in range(3)]

    async def work(pool, count):
        for _ in range(count):
            box = await pool.lease(SMALL)
            await box.run("sleep 0.02")
            await box.close()

    async def main():
        async with AsyncExitStack() as stack:
            urls = [await stack.enter_async_context(node(factory=factory, max_live=4)) for factory in factories]
            replicas = [Nodes(urls, seed=seed, beat_s=0.1) for seed in range(4)]
            await asyncio.gather(*(work(pool, 6) for pool in replicas for _ in range(5)))
            for pool in replicas:
                await pool.close()

    asyncio.run(main())
    assert sum(len(factory.opened) for factory in factories) == 4 * 5 * 6
    for factory in factories:
        assert 1 < factory.peak <= 4
        assert len(factory.opened) > 20  # each took its part
        assert all(box.closed for box in factory.opened)


def test_more_commands_at_once_than_a_connection_pool_has_by_default():
    async def body(pool, urls):
        boxes = [await pool.lease(SMALL) for _ in range(4)]
        loop = asyncio.get_running_loop()
        started = loop.time()
        results = await asyncio.gather(*(boxes[n % 4].run("sleep 1.5") for n in range(150)))
        assert all(result.stdout == b"slept\n" for result in results)
        assert loop.time() - started < 2.9  # not one after the other

    play(body)


def test_closing_ends_the_wait():
    async def body(pool, urls):
        await pool.lease(SMALL)
        waiter = asyncio.create_task(pool.lease(SMALL))
        await asyncio.sleep(0.1)
        await pool.close()
        with pytest.raises(SandboxRefused, match="no node any more"):
            await waiter

    play(body, max_live=1, wait_s=None)


class Unable(SlowFactory):
    """Of a host that makes none."""

    async def open(self, limits, priority="latency"):
        raise SandboxUnsupported("no user namespaces")


def test_what_is_not_for_want_of_room_is_not_waited_for():
    async def main():
        async with node(factory=Unable()) as bad, node() as good:
            pool = Nodes([bad, good], seed=3)
            boxes = [await pool.lease(SMALL) for _ in range(3)]
            assert {box.link.url for box in boxes} == {good}
            await pool.close()
            pool = Nodes([bad])
            with pytest.raises(SandboxUnsupported, match="no user namespaces"):
                await pool.lease(SMALL)
            await pool.close()

    asyncio.run(main())


def test_one_node_with_another_token_stops_the_start_and_not_the_renewals_of_the_rest():
    async def main():
        async with node(token="a token of these two") as good, node(token="a token of its own") as other:
            pool = Nodes([good, other], "a token of these two", beat_s=0.1)
            for _ in range(3):
                with pytest.raises(ConfigError, match=other):
                    await pool.lease(SMALL)
            await pool.close()

    asyncio.run(main())


def test_who_asks_during_the_first_look_waits_for_it():
    async def body(pool, urls):
        slow, looked = pool._links[urls[1]], asyncio.Event()
        beat = slow.beat

        async def late():
            await looked.wait()
            await beat()

        slow.beat = late
        first = [asyncio.create_task(pool.lease(SMALL)) for _ in range(2)]
        await until(lambda: pool._links[urls[0]].reading)
        second = [asyncio.create_task(pool.lease(SMALL)) for _ in range(2)]
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in first + second)
        looked.set()
        boxes = await asyncio.gather(*first, *second)
        assert {box.link.url for box in boxes} == set(urls)

    play(body, nodes=2, max_live=2)


def test_a_node_that_was_started_again_with_another_token_has_lost_all():
    async def main():
        async with node(token="the first token") as url:
            pool = Nodes([url], "the first token", beat_s=0.05, lost_s=0.3)
            boxes = [await pool.lease(SMALL) for _ in range(2)]
        async with node(token="another token", port=int(url.rpartition(":")[2])):
            await until(lambda: pool._links[url].rejected)
            with pytest.raises(SandboxLost, match="another token"):
                await boxes[0].run("echo")
            with pytest.raises(ConfigError, match=f"{url}.*another token"):
                await pool.lease(SMALL)
            await until(lambda: not boxes[1].alive)
            for box in boxes:
                await box.close()
            await pool.close()

    asyncio.run(main())


def test_want_of_descriptors_here_is_no_fault_of_the_node():
    async def body(pool, urls):
        boxes = [await pool.lease(SMALL) for _ in range(2)]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        opened = [os.open("/", os.O_RDONLY)]
        link = boxes[0].link
        await link.beat()
        busy = asyncio.create_task(boxes[1].run("sleep 0.5"))  # on the connection that is kept
        await asyncio.sleep(0.1)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(opened) + 1, hard))
        try:
            while True:
                opened.append(os.open("/", os.O_RDONLY))
        except OSError:
            pass
        try:
            with pytest.raises(SandboxError, match="open files") as caught:
                await asyncio.gather(*(boxes[0].run("echo") for _ in range(8)))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for file in opened:
                os.close(file)
        assert not isinstance(caught.value, SandboxDied)
        assert boxes[0].alive and link.reading is not None
        assert (await boxes[0].run("echo 1")).exit_code == 0 and (await busy).exit_code == 0

    play(body)


def test_a_run_on_nodes_may_open_as_many_files_as_one_here():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard // 2, hard))
    try:
        pool = open_pool(RunConfig.model_validate({"sandbox": {"nodes": ["http://127.0.0.1:1"]}}))
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        asyncio.run(pool.close())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
