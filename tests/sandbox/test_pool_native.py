"""The pool over real sandboxes: leases, a fork, spares, a forgotten lease; and nothing is left."""

import asyncio
import gc

import pytest

from agents.sandbox.base import Limits
from agents.sandbox.native.host import NativeFactory
from agents.sandbox.pool import Pool, PoolSettings
from agents.sandbox.signals import Signals
from schemas.errors import SandboxDied, SandboxUnsupported

LIMITS = Limits(memory_mb=64, disk_mb=8)


def test_real_sandboxes():
    async def main():
        pool = Pool(NativeFactory(), PoolSettings(max_live=6, spares=1), Signals())
        try:
            leases = await asyncio.gather(*(pool.lease(LIMITS, kind) for kind in ["latency", "background"] * 2))
            for number, lease in enumerate(leases):
                await lease.put({"name": str(number).encode()})
            said = await asyncio.gather(*(lease.run("cat name; echo $$ > pid") for lease in leases))
            assert [done.stdout for done in said] == [b"0", b"1", b"2", b"3"]
            snapshot = await leases[0].seal()
            branch = await pool.fork(snapshot)
            assert (await branch.run("cat name")).stdout == b"0"
            await leases[1].close()
            with pytest.raises(SandboxDied):
                await leases[1].run("true")
            del leases, lease
            gc.collect()
            last = await pool.lease(LIMITS)
            assert (await last.run("ls -A")).stdout == b"", "a fresh one"
            await snapshot.close()
            return pool.metrics()
        finally:
            await pool.close()

    try:
        seen = asyncio.run(main())
    except SandboxUnsupported as error:
        pytest.skip(f"no sandboxes on this host: {error}")
    assert seen.created >= 6 and seen.reclaimed == 3 and not seen.deaths and not seen.refused
