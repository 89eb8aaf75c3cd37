"""Warm spares: ready for who asks next, fresh, never in anybody's way."""

import asyncio
from dataclasses import replace

import pytest
from pool_support import now, play, settle

from agents.sandbox.base import Limits
from agents.sandbox.pool import MAKING, Pool, PoolSettings
from schemas.errors import SandboxCrashed, SandboxError

LIMITS = Limits()
TWO = PoolSettings(max_live=10, spares=2)


async def warm(pool: Pool, spares: int = 2):
    """A lease, and then time to make spares like it."""
    lease = await pool.lease(LIMITS)
    await asyncio.sleep(4)
    assert pool.metrics().spares == spares
    return lease


def test_spares_are_handed_out_at_once_and_made_again_one_by_one():
    async def body(pool, factory, host):
        leases = [await warm(pool)]
        start = now()
        leases += [await pool.lease(LIMITS), await pool.lease(LIMITS)]
        assert now() == start
        assert len(factory.opened) == 3 and pool.metrics().spares == 0
        await asyncio.sleep(4)
        assert pool.metrics().spares == 2 and pool.metrics().created == 5 and factory.most_opening == 1
        assert all(lease.alive for lease in leases)

    play(body, TWO, open_s=1)


def test_a_used_sandbox_is_never_handed_out_again():
    async def body(pool, factory, host):
        for _ in range(10):
            lease = await pool.lease(LIMITS)
            await lease.run("ls")
            await lease.close()
        assert [len(sandbox.calls) for sandbox in factory.opened if sandbox.calls] == [1] * 10

    play(body, TWO)


def test_a_dead_spare_is_replaced():
    async def body(pool, factory, host):
        await warm(pool)
        for sandbox in factory.opened[1:]:
            sandbox.gone = SandboxCrashed("killed by the kernel")
        lease = await pool.lease(LIMITS)
        assert (await lease.run("ls")).exit_code == 0 and factory.opened[1].closed and factory.opened[2].closed
        await asyncio.sleep(4)
        assert pool.metrics().spares == 2 and not pool.metrics().deaths
        factory.opened[-1].gone = SandboxCrashed("killed by the kernel")
        await asyncio.sleep(10)
        assert factory.opened[-2].closed and pool.metrics().spares == 2, "replaced without anybody asking"

    play(body, TWO, open_s=1)


def test_old_spares_are_replaced():
    async def body(pool, factory, host):
        lease = await pool.lease(replace(LIMITS, lifetime_s=1000))
        await asyncio.sleep(3)
        old = factory.opened[1:]
        await asyncio.sleep(110)
        assert [sandbox.closed for sandbox in old] == [True, True] and pool.metrics().spares == 2 and lease.alive
        await asyncio.sleep(92.5)  # too old, but nobody has looked since
        old = factory.opened[-2:]
        assert not old[0].closed
        await pool.lease(replace(LIMITS, lifetime_s=1000))
        await settle()
        assert [sandbox.closed for sandbox in old] == [True, True]

    play(body, TWO)


@pytest.mark.parametrize("ask", [(replace(LIMITS, memory_mb=99), "latency"), (LIMITS, "background")])
def test_spares_follow_what_was_asked_for_last(ask):
    async def body(pool, factory, host):
        leases = [await warm(pool), await pool.lease(*ask), await pool.lease(*ask)]
        await asyncio.sleep(4)
        assert [sandbox.closed for sandbox in factory.opened] == [False, True, True] + [False] * 4
        assert [(sandbox.limits, sandbox.priority) for sandbox in factory.opened[3:]] == [ask] * 4
        assert all(lease.alive for lease in leases)

    play(body, TWO, open_s=1)


def test_a_spare_that_was_made_for_what_nobody_wants_any_more_is_closed():
    async def body(pool, factory, host):
        leases = [await pool.lease(LIMITS)]
        await asyncio.sleep(0.5)  # a spare is half made
        leases += await asyncio.gather(*(pool.lease(replace(LIMITS, memory_mb=99)) for _ in range(2)))
        await asyncio.sleep(4)
        assert [sandbox.closed for sandbox in factory.opened] == [False, True, False, False, False, False]

    play(body, TWO, open_s=1)


def test_a_spare_in_the_hands_of_who_is_cancelled_goes_back():
    async def body(pool, factory, host):
        lease = await warm(pool)
        host.change(memory_mb=400)
        asking = asyncio.create_task(pool.lease(LIMITS))
        await settle()
        host.change(memory_mb=23_000)
        host.when_read = lambda: asyncio.get_running_loop().call_soon(
            asking.cancel
        )  # between being let in and knowing it
        await asyncio.wait([asking])
        await asyncio.sleep(4)
        assert asking.cancelled() and lease.alive and pool.metrics().spares == 2
        made = pool.metrics().created
        assert [sandbox.closed for sandbox in factory.opened] == [False, False, False, True][:made]

    play(body, TWO, open_s=1)


def test_spares_make_room_for_forks_and_are_not_counted_as_live():
    async def body(pool, factory, host):
        lease = await warm(pool)
        snapshot = await lease.seal()
        assert pool.refusal(LIMITS, "latency") is None
        forks = await asyncio.gather(*(pool.fork(snapshot) for _ in range(2)))
        assert all(fork.alive for fork in forks) and pool.metrics().spares == 0
        await asyncio.sleep(4)
        assert pool.metrics().spares == 0, "no room for one"
        await forks[0].close()
        await asyncio.sleep(4)
        assert pool.metrics().spares == 1, "and no room for two"

    play(body, PoolSettings(max_live=3, spares=2), open_s=1, close_s=1)


def test_spares_that_are_still_closing_are_waited_for():
    async def body(pool, factory, host):
        snapshot = await (await warm(pool)).seal()
        asked = [pool.fork(snapshot), pool.lease(replace(LIMITS, memory_mb=99))]
        await asyncio.gather(*asked)
        assert factory.there == 3

    play(body, PoolSettings(max_live=3, spares=2), open_s=0.1, close_s=1)


def test_no_spares_while_somebody_waits_or_the_host_is_short():
    async def body(pool, factory, host):
        lease = await warm(pool)
        host.change(memory_mb=400)
        waiting = asyncio.create_task(pool.lease(replace(LIMITS, memory_mb=99)))
        await asyncio.sleep(60)
        assert len(factory.opened) == 3
        host.change(memory_mb=23_000)
        await waiting
        await asyncio.sleep(4)
        assert lease.alive and pool.metrics().spares == 2

    play(body, TWO, open_s=1)


def test_while_many_ask_no_spare_is_made():
    async def body(pool, factory, host):
        leases = await asyncio.gather(*(pool.lease(LIMITS) for _ in range(MAKING * 3)))
        assert len(factory.opened) == len(leases) == MAKING * 3 and now() == 3

    play(body, PoolSettings(max_live=100, spares=5), open_s=1)


def test_a_spare_that_cannot_be_made_is_not_tried_for_ever():
    async def body(pool, factory, host):
        lease = await pool.lease(LIMITS)
        factory.error = SandboxError("bad luck")
        await asyncio.sleep(100)
        assert len(factory.asked) == 2 and lease.alive
        with pytest.raises(SandboxError, match="bad luck"):
            await pool.lease(LIMITS)
        factory.error = None
        kept = await pool.lease(LIMITS)
        await asyncio.sleep(100)
        assert kept.alive
        assert pool.metrics().spares == 2

    play(body, TWO, open_s=1)


def test_kinds_in_turn_do_not_waste_spares():
    async def body(pool, factory, host):
        for number in range(40):
            lease = await pool.lease(LIMITS, "latency" if number % 2 else "background")
            await asyncio.sleep(1)
            await lease.close()
        return pool.metrics()

    seen = play(body, PoolSettings(max_live=50, spares=8), open_s=0.01, close_s=0.01)
    assert seen.created == 40 + 8


def test_spares_closed_for_others_are_as_many_as_needed():
    async def body(pool, factory, host):
        lease = await pool.lease(LIMITS)
        await asyncio.sleep(5)
        assert pool.metrics().spares == 8
        snapshot = await lease.seal()
        forks = []
        for _ in range(4):
            forks.append(asyncio.create_task(pool.fork(snapshot)))
            await asyncio.sleep(0.02)  # so that the end of one is seen by who still waits for others
        await asyncio.gather(*forks)
        assert pool.metrics().spares == 4

    play(body, PoolSettings(max_live=9, spares=8), open_s=0.01, close_s=0.05)


def test_the_peak_is_of_leases():
    async def body(pool, factory, host):
        for number in range(12):
            lease = await pool.lease(LIMITS, "latency" if number // 2 % 2 else "background")
            await asyncio.sleep(1)
            await lease.close()
        return pool.metrics()

    assert play(body, PoolSettings(max_live=9, spares=2), open_s=0.01, close_s=0.5).peak == 1
