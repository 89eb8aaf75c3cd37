"""For all sandbox tests: one call that opens a real sandbox, uses it and closes it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agents.sandbox.base import ExecResult, Limits
from agents.sandbox.native.host import NativeFactory
from agents.sandbox.native.sandbox import NativeSandbox

Use = Callable[[NativeSandbox], Awaitable[Any]]


@pytest.fixture(scope="session")
def use() -> Callable[..., Any]:
    """`use(coroutine function)` runs it with a fresh sandbox and returns what it returns."""

    def go(body: Use, limits: Limits = Limits()) -> Any:  # noqa: B008
        async def main() -> Any:
            factory = NativeFactory(accept_process_memory_limit=True)
            try:
                return await body(await factory.open(limits))
            finally:
                await factory.close()

        return asyncio.run(main())

    return go


@pytest.fixture(scope="session")
def inside(use) -> Callable[..., ExecResult]:
    """`inside(command)` runs one command in a fresh sandbox."""

    def go(command, limits: Limits = Limits(), **options) -> ExecResult:  # noqa: B008
        return use(lambda sandbox: sandbox.run(command, **options), limits)

    return go


@pytest.fixture(scope="session")
def python_inside(inside) -> Callable[..., str]:
    """`python_inside(code)` runs Python code in a fresh sandbox and returns what it printed; it must end with 0."""

    def go(code: str, **options) -> str:
        done = inside(["python3", "-c", code], **options)
        assert done.exit_code == 0, done
        return done.stdout.decode()

    return go
