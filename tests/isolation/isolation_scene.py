"""Where an attempt to escape is played: sandboxes of one mode, and helpers to run hostile programs in them.

Used by conftest.py in this process (root) and by isolation_child.py in a process that has given up root (rootless).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agents.sandbox.base import ExecResult, Limits, Priority, Sandbox
from agents.sandbox.native.host import NativeFactory

Attempt = Callable[..., Awaitable[None]]

PRELUDE = """
import ctypes, errno, fcntl, json, os, resource, signal, socket, stat, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(*words):
    '''A raw system call: its result, or the name of its error.'''
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in words]
    done = libc.syscall(*words)
    return done if done >= 0 else errno.errorcode[ctypes.get_errno()]
def refused(action, *words):
    '''The name of the error that an action ends with, or None when it was carried out.'''
    try: action(*words)
    except OSError as error: return errno.errorcode[error.errno]
"""
"""Python that every hostile program starts with."""


@dataclass
class Scene:
    """One factory, one long-lived sandbox for attempts that disturb nobody, and what was found out in it."""

    mode: str
    factory: NativeFactory
    _shared: Sandbox | None = field(default=None, repr=False)
    _known: dict[str, str] = field(default_factory=dict, repr=False)

    async def shared(self) -> Sandbox:
        """The long-lived sandbox; a new one when an attempt has ended it."""
        if self._shared is None or not self._shared.alive:
            self._shared = await self.factory.open(Limits())
        return self._shared

    @asynccontextmanager
    async def fresh(self, limits: Limits = Limits(), priority: Priority = "latency") -> AsyncIterator[Sandbox]:  # noqa: B008
        """A sandbox of its own for an attempt that breaks things."""
        sandbox = await self.factory.open(limits, priority)
        try:
            yield sandbox
        finally:
            await sandbox.close()

    async def shell(self, line: str) -> str:
        """What a shell line says, in the long-lived sandbox."""
        return (await (await self.shared()).run(line, merge_stderr=True)).stdout.decode(errors="replace")

    async def python(self, code: str, *arguments: str) -> str:
        """What Python code says, in the long-lived sandbox; it must end with 0."""
        return await python(await self.shared(), code, *arguments)

    async def once(self, code: str) -> str:
        """As `python`, but run only the first time."""
        if code not in self._known:
            self._known[code] = await self.python(code)
        return self._known[code]


async def python(box: Sandbox, code: str, *arguments: str) -> str:
    """What Python code says in this sandbox; it must end with 0."""
    done = await box.run(["python3", "-c", PRELUDE + code, *arguments])
    assert done.exit_code == 0, done
    return done.stdout.decode()


async def alive(box: Sandbox) -> bool:
    """Does it still run commands?"""
    done: ExecResult = await box.run("echo alive")
    return done.stdout == b"alive\n"


def new_factory(mode: str) -> NativeFactory:
    """Without root there may be no cgroup; the weaker memory limit that is left must be accepted."""
    return NativeFactory(accept_process_memory_limit=mode == "rootless")


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that a program inside is about to do; ten seconds are the end of patience."""
    async with asyncio.timeout(10):
        while not await condition():  # noqa: ASYNC110  (it happens in another process)
            await asyncio.sleep(0.02)


@asynccontextmanager
async def busy(box: Sandbox, code: str) -> AsyncIterator[None]:
    """A program that runs in the sandbox, from when it has written /work/ready until the block ends."""
    running = asyncio.ensure_future(box.run(["python3", "-c", PRELUDE + code]))

    async def ready() -> bool:
        return "ready" in await box.collect(["ready"])

    try:
        await until(ready)
        yield
    finally:
        await box.kill_all()
        await running


class Stage:
    """An event loop and its scene. A sandbox dies with the thread that opened it, so the loop stays in this one."""

    def __init__(self, mode: str) -> None:
        self.runner = asyncio.Runner()
        self.scene = Scene(mode, new_factory(mode))

    def play(self, attempt: Attempt, arguments: dict[str, Any]) -> None:
        """Run one attempt to its end. Raises what it raises."""
        self.runner.run(self._guarded(attempt, arguments))

    async def _guarded(self, attempt: Attempt, arguments: dict[str, Any]) -> None:
        async with asyncio.timeout(60):
            await attempt(self.scene, **arguments)

    def close(self) -> None:
        """End every sandbox."""
        self.runner.run(self.scene.factory.close())
        self.runner.close()
