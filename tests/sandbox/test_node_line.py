"""Clients that wait, leave and close, on a clock that jumps: who is served when, and what is left on the node."""

import asyncio
import contextlib
import dataclasses
import gc
import logging

import pytest
from node_help import ROOMY, SMALL, SlowFactory, app, jump
from pool_support import Host, now, settle
from pool_support import SlowFactory as LateFactory

from agents.sandbox.base import Limits
from agents.sandbox.node import wire
from agents.sandbox.node.agent import RESERVED_S, Agent
from agents.sandbox.node.client import LAST_PAUSE_S, UNREACHABLE_S
from agents.sandbox.pool import Pool, PoolSettings
from schemas.errors import SandboxError, SandboxLost, SandboxRefused


async def dead(scope, receive, send):
    """What answers when the node does not."""
    raise ConnectionResetError("nobody there")


def kill(pool):
    """Its nodes are gone."""
    for link in pool._links.values():
        link._client._transport.app = dead


def live(factory) -> int:
    return sum(not box.closed for box in factory.opened)


@pytest.mark.parametrize("how", ["lease", "fork"])
def test_a_latency_lease_comes_before_background_ones_of_other_clients(how):
    async def body(near):
        busy, other = near.nodes(), near.nodes()
        boxes, served = [await busy.lease(SMALL) for _ in range(4)], []
        snapshot = await boxes[0].seal() if how == "fork" else None

        async def churn():
            while True:
                box = await busy.lease(SMALL, "background")
                served.append(box)
                await asyncio.sleep(0.5)
                await box.close()

        churning = [asyncio.create_task(churn()) for _ in range(8)]
        for box in boxes:
            await box.close()
        await asyncio.sleep(10.2)
        before, started = len(served), now()
        box = None
        async with asyncio.timeout(60):
            while box is None:
                with contextlib.suppress(SandboxRefused):
                    box = await (busy.fork(snapshot) if snapshot else other.lease(SMALL))
                await asyncio.sleep(LAST_PAUSE_S)
        assert now() - started <= 3 * LAST_PAUSE_S and len(served) - before <= 8
        for task in churning:
            task.cancel()
        await asyncio.wait(churning)
        await box.close()

    jump(body, app(max_live=4))


def test_room_is_not_kept_for_a_latency_lease_whose_asker_has_left():
    async def body(near):
        factory = SlowFactory()
        settings = PoolSettings(max_live=1, wait_s=0.0)
        pool = Pool(factory, settings, lambda: ROOMY)
        agent = Agent(pool, settings, lambda: ROOMY, 30.0)
        held = await agent.lease(wire.Lease(limits=SMALL, priority="background"))
        with pytest.raises(SandboxRefused):
            await agent.lease(wire.Lease(limits=SMALL, priority="latency"))
        await agent.close(wire.OfLease(lease=held.lease))
        with pytest.raises(SandboxRefused, match="come first") as caught:
            await agent.lease(wire.Lease(limits=SMALL, priority="background"))
        assert caught.value.cause == "queue" and not live(factory)
        await asyncio.sleep(RESERVED_S)
        await agent.lease(wire.Lease(limits=SMALL, priority="background"))
        with pytest.raises(SandboxRefused, match="never"):  # which is not for want of room
            await agent.lease(wire.Lease(limits=Limits(memory_mb=10**6), priority="latency"))
        with pytest.raises(SandboxRefused, match="live"):
            await agent.lease(wire.Lease(limits=SMALL, priority="background"))
        await pool.close()

    jump(body)


async def long_wait(pool, priority="latency"):
    """Somebody in the line, whose pauses are the longest by now."""
    waiter = asyncio.create_task(pool.lease(SMALL, priority))
    await asyncio.sleep(5)
    assert not waiter.done()
    return waiter


def test_room_that_comes_back_while_a_refusal_is_on_its_way_counts():
    async def body(near):
        pool = near.nodes()
        box = await pool.lease(SMALL)
        link = box.link
        answered = link._client._transport.app

        async def slow_lease(scope, receive, send):
            await answered(scope, receive, send)
            if scope["path"] == "/lease" and box.alive:  # refused, and the asker does not know it yet
                await box.close()
                box.given_back = now()

        waiter = await long_wait(pool)
        link._client._transport.app = slow_lease
        await (await waiter).close()
        assert now() == box.given_back

    jump(body, app(max_live=1))


def test_a_latency_lease_does_not_sit_out_the_pause_of_a_background_one():
    host = Host(dataclasses.replace(ROOMY, cpu_pressure=99.0))

    async def body(near):
        pool = near.nodes()
        waiter = await long_wait(pool, "background")
        for _ in range(5):
            started = now()
            box = await pool.lease(SMALL)
            assert now() == started
            await box.close()
            await asyncio.sleep(1.3)
        assert not waiter.done()
        waiter.cancel()

    jump(body, app(signals=host))


def test_the_end_of_all_nodes_is_said_and_the_wait_for_them_ends(caplog):
    async def body(near):
        pool = near.nodes(beat_s=1.0)
        box = await pool.lease(SMALL)
        kill(pool)
        await asyncio.sleep(15)
        assert not box.alive
        started = now()
        with caplog.at_level(logging.WARNING), pytest.raises(SandboxRefused, match="has answered") as caught:
            await pool.lease(SMALL)
        assert caught.value.cause == "unreachable" and UNREACHABLE_S <= now() - started < UNREACHABLE_S + 3
        assert caplog.text.count("none of the nodes answers any more") == 1
        waiter = await long_wait(pool)
        box.link._client._transport.app = near.apps[box.link.url]
        assert (await waiter).alive

    jump(body, app())


def test_closing_while_leases_are_asked_for_refuses_them_and_leaves_nothing():
    factory = LateFactory(open_s=2.0)

    async def body(near):
        pool = near.nodes()
        asking = [asyncio.create_task(pool.lease(SMALL)) for _ in range(3)]
        await asyncio.sleep(1)
        waiting = [asyncio.create_task(pool.lease(SMALL)) for _ in range(2)]
        await settle()
        await pool.close()
        for task in asking + waiting:
            with pytest.raises(SandboxRefused) as caught:
                await task
            assert caught.value.cause == "closed"
        link = next(iter(pool._links.values()))
        assert not live(factory) and link._client is None and link._beating is None and pool._asking is None
        with pytest.raises(SandboxRefused):
            await pool.lease(SMALL)

    jump(body, app(max_live=3, factory=factory))


@pytest.mark.parametrize("turns", range(1, 12, 2))
def test_closing_during_the_first_look_refuses_who_waits_for_it(turns):
    async def body(near):
        pool = near.nodes()
        asking = [asyncio.create_task(pool.lease(SMALL)) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0)
        await pool.close()
        ends = await asyncio.gather(*asking, return_exceptions=True)
        assert all(end.cause == "closed" if isinstance(end, SandboxRefused) else not end.alive for end in ends)
        assert pool._first_look is None or pool._first_look.done()
        assert all(link._client is None and link._beating is None for link in pool._links.values())

    jump(body, app())


def test_a_sandbox_that_cannot_be_ended_does_not_keep_the_others_or_the_links():
    factory = SlowFactory()

    async def body(near):
        pool = near.nodes()
        boxes = [await pool.lease(SMALL) for _ in range(3)]
        snapshot = await boxes[2].seal()

        async def fail():
            raise SandboxError("it does not end")

        factory.opened[0].close = fail
        with pytest.raises(SandboxError, match="does not end"):
            await pool.close()
        assert [box.closed for box in factory.opened[1:]] == [True, True]
        assert boxes[0].link._client is None and boxes[0].link._beating is None
        with pytest.raises(SandboxLost, match="closed"):
            await boxes[0].link.call("/kill_all", wire.OfLease(lease=boxes[0].name), wire.Done)
        with pytest.raises(SandboxError, match="closed"):
            await pool.fork(snapshot)

    jump(body, app(factory=factory))


def test_the_answer_for_who_has_left_is_given_back():
    factory = LateFactory(open_s=1.0)

    async def body(near):
        pool = near.nodes()
        await (await pool.lease(SMALL)).close()
        asking = [asyncio.create_task(pool.lease(SMALL)) for _ in range(3)]
        await asyncio.sleep(0.5)
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)
        await asyncio.sleep(2)
        assert all(task.cancelled() for task in asking) and not live(factory)
        assert next(iter(pool._links.values())).placed <= 0

    jump(body, app(factory=factory))


def test_a_refusal_for_its_class_does_not_send_others_away():
    host = Host(dataclasses.replace(ROOMY, cpu_pressure=99.0))

    async def body(near):
        pool = near.nodes(wait_s=0.0)
        with pytest.raises(SandboxRefused, match="cpu_pressure"):
            await pool.lease(SMALL, "background")
        box = await pool.lease(SMALL)
        assert not box.link.refused
        with pytest.raises(SandboxRefused, match="live"):
            await pool.lease(SMALL)
        assert box.link.refused

    jump(body, app(max_live=1, signals=host))


@contextlib.asynccontextmanager
async def reclaiming(factory, ttl_s=10.0):
    """An agent that reclaims, without HTTP."""
    settings = PoolSettings(max_live=4, wait_s=0.0)
    pool = Pool(factory, settings, lambda: ROOMY)
    agent = Agent(pool, settings, lambda: ROOMY, ttl_s)
    task = asyncio.create_task(agent.reclaim_for_ever())
    try:
        yield agent
    finally:
        task.cancel()
        await pool.close()


LEASE = wire.Lease(limits=SMALL, priority="latency")


def test_one_that_hangs_does_not_keep_others_from_being_reclaimed():
    async def body(near):
        factory = SlowFactory()
        async with reclaiming(factory) as agent:
            await agent.lease(LEASE)
            hangs, close = asyncio.Event(), factory.opened[0].close
            factory.opened[0].close = hangs.wait
            await asyncio.sleep(30)
            for _ in range(3):
                await agent.lease(LEASE)
            await asyncio.sleep(30)
            assert agent.reading().live == 1
            hangs.set()
            factory.opened[0].close = close

    jump(body)


def test_who_waits_for_a_command_is_alive():
    async def body(near):
        factory = SlowFactory()
        async with reclaiming(factory) as agent:
            name = (await agent.lease(LEASE)).lease
            command = wire.Run(
                lease=name, command=b"sleep 60", timeout_s=None, stdin=b"", cwd=b"/work", merge_stderr=False
            )
            assert (await agent.run(command)).result.stdout == b"slept\n"
            assert factory.opened[0].alive
            await asyncio.sleep(15)
            assert factory.opened[0].closed

    jump(body)


def test_what_its_holder_forgot_is_not_renewed():
    async def body(near):
        pool = near.nodes()
        box, snapshot = await pool.lease(SMALL), await (await pool.lease(SMALL)).seal()
        link = box.link
        await asyncio.sleep(3)
        gc.collect()
        assert list(link.leases) == [box.name] and list(link.snapshots) == [snapshot.name]
        running = asyncio.create_task(box.run("sleep 5"))
        del box
        await asyncio.sleep(3)
        gc.collect()
        assert len(link.leases) == 1, "a command runs"
        await running
        del running, snapshot
        gc.collect()
        assert not link.leases and not link.snapshots

    jump(body, app())
