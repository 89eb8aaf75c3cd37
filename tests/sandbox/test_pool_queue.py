"""Who gets in, when, and in which order: classes, signals, waiting times, creations at once."""

import asyncio
import contextlib
import logging
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pool_support import now, play, settle

from agents.sandbox.base import Limits
from agents.sandbox.pool import CLOSING, MAKING, PoolSettings
from agents.sandbox.room import SETTLED_S
from schemas.errors import SandboxCrashed, SandboxDied, SandboxError, SandboxRefused

LIMITS = Limits()
ONE = PoolSettings(max_live=1)
CLASSES = st.sampled_from(["latency", "background"])


def named(number: int) -> Limits:
    """Limits by which a request is known again in the factory."""
    return Limits(output_bytes=1000 + number)


@given(st.lists(st.tuples(CLASSES, st.booleans()), max_size=12))
def test_latency_first_then_in_order_and_who_leaves_is_skipped(asks):
    async def body(pool, factory, host):
        blocker = await pool.lease(LIMITS)

        async def use(number, priority):
            await (await pool.lease(named(number), priority)).close()

        tasks = [asyncio.create_task(use(number, priority)) for number, (priority, _) in enumerate(asks)]
        await settle()
        for task, (_, leaves) in zip(tasks, asks, strict=True):
            if leaves:
                task.cancel()
        await blocker.close()
        await asyncio.wait(tasks) if tasks else None
        assert now() == 0, "nobody waited for a timer"
        stay = [(priority, number) for number, (priority, leaves) in enumerate(asks) if not leaves]
        expected = [number for wanted in ("latency", "background") for priority, number in stay if priority == wanted]
        assert factory.asked[1:] == [named(number) for number in expected]
        assert [task.cancelled() for task in tasks] == [leaves for _, leaves in asks]

    play(body, ONE)


STEPS = st.one_of(
    st.tuples(st.just("ask"), CLASSES),
    st.tuples(st.just("fork"), CLASSES),
    st.tuples(st.sampled_from(["cancel", "close", "abandon_close", "die", "use"]), st.integers(0, 20)),
    st.tuples(st.just("turns"), st.integers(0, 6)),
    st.tuples(st.just("time"), st.floats(0.01, 8)),
    st.tuples(st.just("memory"), st.booleans()),
    st.tuples(st.just("fails"), st.booleans()),
    st.tuples(st.just("limits"), st.integers(0, 1)),
)


@given(st.lists(STEPS, max_size=60), st.integers(1, 4), st.integers(0, 3), st.sampled_from([0.0, 1.0]), st.floats(0, 2))
def test_nothing_is_lost_whatever_happens(steps, max_live, spares, open_s, close_s):
    """All who ask get an answer and all room comes back; `play` looks at the bounds and at what is left."""

    async def body(pool, factory, host):
        snapshot = await (await pool.lease(LIMITS)).seal()
        tasks, limits = [], LIMITS

        def nth(number):
            done = [task for task in tasks if task.done() and not task.cancelled() and not task.exception()]
            return done[number % len(done)].result() if done else None

        closing = []
        for kind, value in steps:
            if kind == "ask":
                tasks.append(asyncio.create_task(pool.lease(limits, value)))
            elif kind == "fork":
                tasks.append(asyncio.create_task(pool.fork(snapshot, value)))
            elif kind == "cancel" and tasks:
                tasks[value % len(tasks)].cancel()
            elif kind in {"close", "abandon_close"} and (lease := nth(value)):
                closing.append(asyncio.create_task(lease.close()))
                await asyncio.sleep(0)
                if kind == "abandon_close":
                    closing[-1].cancel()
            elif kind == "die" and factory.opened:  # it may be leased, a spare or closed
                factory.opened[value % len(factory.opened)].gone = SandboxCrashed("it is gone")
            elif kind == "use" and (lease := nth(value)):
                with contextlib.suppress(SandboxDied):
                    await lease.run("ls")
            elif kind == "turns":
                for _ in range(value):
                    await asyncio.sleep(0)
            elif kind == "time":
                await asyncio.sleep(value)
            elif kind == "memory":
                host.change(memory_mb=23_000 if value else 400)
            elif kind == "fails":
                factory.error = SandboxError("bad luck") if value else None
            elif kind == "limits":
                limits = replace(LIMITS, processes=10 + value)
        host.change(memory_mb=23_000)
        factory.error = None
        while not all(task.done() for task in tasks):
            for lease in filter(None, map(nth, range(len(tasks)))):
                await lease.close()
            await asyncio.sleep(1)
        for lease in filter(None, map(nth, range(len(tasks)))):
            await lease.close()
        again = [await pool.lease(LIMITS) for _ in range(max_live)]
        assert all(lease.alive for lease in again) and factory.there == max_live
        for task in tasks:
            assert task.cancelled() or task.exception() is None or str(task.exception()) == "bad luck"

    play(body, PoolSettings(max_live=max_live, spares=spares, idle_s=1e6), open_s=open_s, close_s=close_s)


def test_2500_at_once_do_not_start_2500_creations():
    async def body(pool, factory, host):
        leases = await asyncio.gather(*(pool.lease(LIMITS) for _ in range(2500)))
        assert (len(leases), factory.most_opening, factory.there) == (2500, MAKING, 2500)
        assert pool.refusal(LIMITS, "latency")[0] == "live"
        assert now() == pytest.approx(-(-2500 // MAKING) * 0.005)
        await pool.close()
        assert factory.most_closing == CLOSING

    play(body, PoolSettings(max_live=2500), open_s=0.005)


def test_a_latency_lease_overtakes_what_waits_to_be_made():
    async def body(pool, factory, host):
        tasks = [asyncio.create_task(pool.lease(named(n), "background")) for n in range(MAKING + 5)]
        await settle()
        urgent = asyncio.create_task(pool.lease(named(99)))
        await asyncio.gather(urgent, *tasks)
        assert factory.asked[MAKING] == named(99)

    play(body, PoolSettings(max_live=50), open_s=1)


def test_who_waits_is_let_in_when_the_host_recovers():
    async def body(pool, factory, host):
        host.change(memory_mb=400)
        task = asyncio.create_task(pool.lease(LIMITS))
        for _ in range(100):  # others that come and go make nobody look more often
            await settle()
            other = asyncio.create_task(pool.lease(LIMITS))
            await asyncio.sleep(1)
            other.cancel()
        assert host.reads < 100 * 15 and not factory.asked and pool.refusal(LIMITS, "latency")[0] == "memory"
        host.change(memory_mb=23_000)
        lease = await task
        assert now() <= 100.2 and lease.alive

    play(body)


def test_why_nobody_is_let_in_is_said_once(caplog):
    async def body(pool, factory, host):
        host.change(memory_mb=400)
        waiting = asyncio.create_task(pool.lease(LIMITS))
        await asyncio.sleep(10)
        assert not caplog.messages
        await asyncio.sleep(100)
        assert len(caplog.messages) == 1 and "memory" in caplog.messages[0]
        host.change(memory_mb=23_000)
        await (await waiting).close()

    play(body)


def test_a_small_request_does_not_overtake_a_large_one():
    async def body(pool, factory, host):
        host.change(memory_mb=4000)
        large = asyncio.create_task(pool.lease(Limits(memory_mb=8000)))
        small = [
            asyncio.create_task(pool.lease(named(n), priority)) for n, priority in enumerate(["latency", "background"])
        ]
        await asyncio.sleep(10)
        assert pool.metrics().queued == {"latency": 2, "background": 1}
        assert not factory.asked, "nor does a spare like it"
        host.change(memory_mb=23_000)
        leases = await asyncio.gather(large, *small)
        assert factory.asked == [Limits(memory_mb=8000), named(0), named(1)] and len(leases) == 3

    play(body, PoolSettings(max_live=3, spares=1))


def test_the_processor_holds_back_background_only():
    async def body(pool, factory, host):
        host.change(cpu_pressure=99.0)
        background = asyncio.create_task(pool.lease(LIMITS, "background"))
        await pool.lease(LIMITS)
        await asyncio.sleep(5)
        assert not background.done() and pool.refusal(LIMITS, "background")[0] == "cpu_pressure"
        host.change(cpu_pressure=None)
        assert (await background).alive

    play(body, PoolSettings(max_live=2))


@pytest.mark.parametrize(("wait_s", "after"), [(0.0, 0.0), (7.0, 7.0)])
def test_a_wait_that_ends(wait_s, after):
    async def body(pool, factory, host):
        held = await pool.lease(LIMITS)
        asked = [pool.lease(LIMITS, "background"), pool.lease(LIMITS), pool.lease(LIMITS)]
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(answer, SandboxRefused) and answer.cause == "live" and "1 sandboxes live" in str(answer)
        assert after <= now() <= after + 0.2
        await held.close()
        await (await pool.lease(LIMITS)).close()
        return pool.metrics()

    assert play(body, PoolSettings(max_live=1, wait_s=wait_s)).refused == {"live": 3}


def test_refusing_at_once_does_not_mean_refusing_whose_turn_comes():
    async def body(pool, factory, host):
        leases = await asyncio.gather(*(pool.lease(LIMITS) for _ in range(30)))
        assert len(leases) == 30 and now() == 4

    play(body, PoolSettings(max_live=30, wait_s=0), open_s=1)


@pytest.mark.parametrize("limits", [Limits(memory_mb=24_000), Limits(processes=32_700)])
def test_what_can_never_be_met_is_refused_at_once(limits):
    async def body(pool, factory, host):
        held = await pool.lease(LIMITS)
        with pytest.raises(SandboxRefused, match="can never give more than") as caught:
            await pool.lease(limits)
        assert caught.value.cause == "limits" and held.alive and pool.metrics().refused == {"limits": 1}

    play(body)


def test_signals_that_cannot_be_read_reach_the_asker():
    async def body(pool, factory, host):
        host.reading = None
        with pytest.raises(AttributeError):
            await pool.lease(LIMITS)
        assert not any(pool.metrics().queued.values())

    play(body)


def test_limits_above_all_that_was_ever_free_do_not_hold_up_the_line():
    """A real host never has all of its memory free."""

    async def body(pool, factory, host):
        host.change(memory_mb=20_000)
        large = asyncio.create_task(pool.lease(Limits(memory_mb=23_200)))
        await settle()
        small = [asyncio.create_task(pool.lease(LIMITS, priority)) for priority in ("latency", "background")]
        await asyncio.sleep(SETTLED_S - 1)
        assert not any(task.done() for task in (large, *small)), "what was there before may still go"
        with pytest.raises(SandboxRefused, match="never give more than 22488") as caught:
            await large
        assert caught.value.cause == "limits" and now() <= SETTLED_S + 0.2
        assert len(await asyncio.gather(*small)) == 2
        with pytest.raises(SandboxRefused):
            await pool.lease(Limits(memory_mb=23_200))
        assert now() <= SETTLED_S + 0.2, "known by now"

    play(body)


def test_limits_that_were_free_once_are_waited_for():
    async def body(pool, factory, host):
        host.change(memory_mb=4000)
        large = asyncio.create_task(pool.lease(Limits(memory_mb=8000)))
        await asyncio.sleep(10 * SETTLED_S)
        host.change(memory_mb=10_000)
        assert (await large).alive

    play(body)


def test_signals_that_cannot_be_read_let_nobody_in_and_break_nothing(caplog):
    async def body(pool, factory, host):
        def fail():
            raise OSError(5, "it does not answer")

        held, waiting = await pool.lease(LIMITS), []
        host.when_read = fail
        with caplog.at_level(logging.WARNING):
            waiting.append(asyncio.create_task(pool.lease(LIMITS)))
            await asyncio.sleep(60)
        assert caplog.text.count("it does not answer") == 1
        assert pool.refusal(LIMITS, "latency")[0] == "signals"
        await held.close()
        host.when_read = lambda: None
        assert (await waiting[0]).alive and pool.metrics().live["latency"] == 1

    play(body, PoolSettings(max_live=3, spares=1))
