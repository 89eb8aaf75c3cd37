"""Leases: what they pass on, what ends them, and that room always comes back."""

import asyncio
import gc
import weakref

import pytest
from pool_support import ROOMY, SlowFactory, now, play, run, settle

from agents.sandbox.base import Limits, Sandbox, SandboxPool
from agents.sandbox.pool import Pool, PoolSettings
from schemas.errors import (
    SandboxCrashed,
    SandboxDied,
    SandboxError,
    SandboxExpired,
    SandboxLost,
    SandboxRefused,
    SandboxUnsupported,
)

LIMITS = Limits()


def test_a_lease_is_a_sandbox():
    async def body(pool, factory, host):
        keeps_contract: SandboxPool = pool
        lease: Sandbox = await keeps_contract.lease(LIMITS, "background")
        (real,) = factory.opened
        assert real.priority == "background" and lease.alive
        await lease.put({"a": b"1"})
        await lease.run("ls", cwd="/tmp", stdin=b"x", timeout_s=2)
        await lease.kill_all()
        assert await lease.collect(["a"]) == {"a": b"1"}
        assert (real.calls[0].cwd, real.calls[0].stdin, real.calls[0].timeout_s, real.kills) == ("/tmp", b"x", 2, 1)
        snapshot = await lease.seal()
        branch = await pool.fork(snapshot)
        assert await branch.collect(["a"]) == {"a": b"1"} and factory.opened[1].priority == "latency"
        with pytest.raises(SandboxError, match="sealed"):
            await lease.run("ls")
        assert lease.alive
        await lease.close()
        await lease.close()
        with pytest.raises(SandboxDied, match="its lease is closed"):
            await lease.collect(["a"])
        assert not lease.alive and branch.alive
        return pool.metrics()

    seen = play(body)
    assert dict(seen.live) == {"latency": 1, "background": 0} and seen.created == 2 and not seen.deaths


def test_closing_waits_until_there_is_room():
    async def body(pool, factory, host):
        lease = await pool.lease(LIMITS)
        waiting = asyncio.create_task(pool.lease(LIMITS))
        await settle()
        closing = asyncio.create_task(lease.close())
        await settle()
        closing.cancel()
        await settle()
        assert pool.metrics().queued["latency"] == 1
        await (await waiting).close()
        assert now() == 4, "one close after the other, cancelled or not"

    play(body, PoolSettings(max_live=1), close_s=2)


@pytest.mark.parametrize(
    ("kind", "word"), [(SandboxCrashed, "crashed"), (SandboxLost, "lost"), (SandboxExpired, "expired")]
)
def test_a_death_gives_room_back_and_is_told_again(kind, word):
    async def body(pool, factory, host):
        lease = await pool.lease(LIMITS)
        factory.opened[0].gone = kind("it is gone")
        assert not lease.alive
        for _ in range(2):
            with pytest.raises(kind, match="it is gone"):
                await lease.run("ls")
        await (await pool.lease(LIMITS)).close()
        await lease.close()
        return pool.metrics()

    assert dict(play(body, PoolSettings(max_live=1)).deaths) == {word: 1}


def test_an_unused_lease_is_reclaimed_and_a_used_one_is_not():
    async def body(pool, factory, host):
        forgotten, waiting, busy = [await pool.lease(LIMITS) for _ in range(3)]
        for _ in range(12):
            command = asyncio.create_task(busy.run("sleep"))
            await asyncio.sleep(10)
            waiting.renew()
            await command
        await asyncio.sleep(55)
        assert waiting.alive and busy.alive and not forgotten.alive
        with pytest.raises(SandboxLost, match="reclaimed after 60 s without use"):
            await forgotten.run("ls")
        assert pool.metrics().reclaimed == 1
        await (await pool.lease(LIMITS)).close()

    play(body, PoolSettings(max_live=3, idle_s=60))


def test_a_running_command_is_never_reclaimed():
    async def body(pool, factory, host):
        lease = await pool.lease(LIMITS)
        assert (await lease.run("sleep")).exit_code == 0
        assert now() == 10 and lease.alive
        await asyncio.sleep(8)
        return pool.metrics()

    assert play(body, PoolSettings(max_live=1, idle_s=2)).reclaimed == 1


def test_room_of_a_dead_sandbox_comes_back_before_its_holder_notices():
    """A lifetime that ends, a zygote that takes a thousand along: the holder still hears it in the sandbox's words."""

    async def body(pool, factory, host):
        lease = await pool.lease(LIMITS)
        factory.opened[0].gone = SandboxExpired("it lived for its 3600 s")
        other = await pool.lease(LIMITS)
        assert now() <= 5 and other.alive and not lease.alive and factory.opened[0].ended
        assert pool.metrics().deaths == {"expired": 1}, "it was asked why"
        for _ in range(2):
            with pytest.raises(SandboxExpired, match="3600 s"):
                await lease.run("ls")
        await lease.close()
        return pool.metrics()

    assert play(body, PoolSettings(max_live=1)).deaths == {"expired": 1}


def test_a_lease_that_nobody_refers_to_is_reclaimed():
    async def body(pool, factory, host):
        lease = await pool.lease(LIMITS)
        running = asyncio.create_task(lease.run("sleep"))
        await settle()
        del lease
        gc.collect()
        await settle()
        assert not factory.opened[0].closed, "a command runs"
        await running
        del running
        gc.collect()
        await settle()
        assert factory.opened[0].ended and pool.metrics().reclaimed == 1 and now() == 10
        kept = await pool.lease(LIMITS)
        await kept.close()
        del kept
        gc.collect()
        await settle()
        assert pool.metrics().reclaimed == 1

    play(body, PoolSettings(max_live=1))


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_forgotten_lease_outlives_its_loop_without_harm():
    async def main():
        return await Pool(SlowFactory(), signals=lambda: ROOMY).lease(LIMITS)

    lease = run(main())
    del lease
    gc.collect()


@pytest.mark.parametrize(
    "error", [SandboxUnsupported(38, "no namespaces"), SandboxError("bad luck"), OSError(24, "full")]
)
def test_a_failed_creation_reaches_the_asker_and_gives_room_back(error):
    async def body(pool, factory, host):
        factory.error = error
        for _ in range(3):
            with pytest.raises(type(error)) as caught:
                await pool.lease(LIMITS)
            assert caught.value is error
        factory.error = None
        await (await pool.lease(LIMITS)).close()
        assert pool.metrics().created == 1

    play(body, PoolSettings(max_live=1))


def test_closing_the_pool_ends_everything_with_a_typed_error():
    async def body(pool, factory, host):
        held = await pool.lease(LIMITS)
        running = asyncio.create_task(held.run("sleep"))
        made = asyncio.create_task(pool.lease(LIMITS))
        waiting = asyncio.create_task(pool.lease(LIMITS))
        await settle()
        assert factory.opening == 1 and pool.metrics().queued["latency"] == 1
        await asyncio.gather(pool.close(), pool.close())
        for task in (made, waiting):
            with pytest.raises(SandboxRefused) as caught:
                await task
            assert caught.value.cause == "closed"
        with pytest.raises(SandboxLost, match="the pool is closed"):
            await running
        with pytest.raises(SandboxRefused):
            await pool.lease(LIMITS)
        assert pool.refusal(LIMITS, "latency") == ("closed", "the pool is closed")
        await held.close()
        return pool.metrics()

    seen = play(body, PoolSettings(max_live=2), open_s=1)
    assert seen.refused == {"closed": 3} and seen.created == 2 and not seen.deaths


def test_metrics_say_how_long_and_how_fast():
    async def body(pool, factory, host):
        first = await pool.lease(LIMITS)
        second = asyncio.create_task(pool.lease(LIMITS, "background"))
        await asyncio.sleep(10)
        early = pool.metrics()
        assert early.queued == {"latency": 0, "background": 1} and early.live == {"latency": 1, "background": 0}
        assert early.waited_s == pytest.approx({"latency": 0, "background": 10})
        assert early.held_s == pytest.approx({"latency": 10, "background": 0})
        assert early.created_per_s == pytest.approx(1 / 10)
        await first.close()
        kept = await second
        await asyncio.sleep(100)
        late = pool.metrics()
        assert kept.alive and late.created == 2 and late.created_per_s == 0
        assert late.waited_s == pytest.approx(early.waited_s)
        assert late.held_s == pytest.approx({"latency": 10, "background": 100})

    play(body, PoolSettings(max_live=1))


def test_a_lease_that_ended_leaves_nothing_in_memory():
    """An error keeps the frames it came through, these the lease, and a finalizer must not keep the error."""

    async def body(pool, factory, host):
        async def one(dies):
            lease = await pool.lease(LIMITS)
            if dies:
                factory.opened[-1].gone = SandboxCrashed("it is gone")
            try:
                await lease.run("ls")
            except SandboxDied:
                assert dies
            await lease.close()
            factory.opened.clear()  # it keeps the error too
            return weakref.ref(lease)

        ended = [await one(dies) for dies in (False, True, True)]
        gc.collect()
        await settle()
        assert [lease() for lease in ended] == [None] * 3

    play(body)


@pytest.mark.parametrize("forgets", [False, True])
def test_a_death_that_the_sweep_finds_is_a_death(forgets):
    async def body(pool, factory, host):
        lease = await pool.lease(LIMITS)
        factory.opened[0].gone = SandboxCrashed("it is gone")
        await asyncio.sleep(11)
        if not forgets:
            await lease.close()
        del lease
        gc.collect()
        await settle()
        return pool.metrics()

    seen = play(body)
    assert seen.deaths == {"crashed": 1} and seen.reclaimed == 0
