"""The sandboxes that tests of environments run in."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from agents.sandbox.base import Limits
from agents.sandbox.native.host import NativeFactory
from agents.sandbox.pool import Pool
from schemas.errors import SandboxUnsupported


@asynccontextmanager
async def opened():
    pool = Pool(NativeFactory(accept_process_memory_limit=True))
    try:
        yield pool
    finally:
        await pool.close()


@pytest.fixture(scope="session")
def sandboxes():
    """Opens a pool of native sandboxes for one event loop; a host that cannot make one skips the test and says why."""

    async def probe() -> None:
        async with opened() as pool:
            await (await pool.lease(Limits())).close()

    try:
        asyncio.run(probe())
    except SandboxUnsupported as error:
        pytest.skip(f"no native sandbox here: {error}")
    return opened
