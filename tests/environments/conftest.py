"""The sandboxes that tests of environments run in."""

import asyncio

import pytest

from agents.sandbox.base import Limits
from agents.sandbox.native.host import NativeFactory
from schemas.errors import SandboxUnsupported


@pytest.fixture(scope="session")
def factory():
    """Native sandboxes; a host that cannot make one skips the test and says why."""
    found = NativeFactory()

    async def probe() -> None:
        await (await found.open(Limits())).close()

    try:
        asyncio.run(probe())
    except SandboxUnsupported as error:
        pytest.skip(f"no native sandbox here: {error}")
    return found
