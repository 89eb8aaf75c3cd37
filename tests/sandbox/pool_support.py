"""For the pool's tests: a loop whose time jumps instead of passing, a factory that checks bounds, made-up hosts."""

import asyncio
import dataclasses
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

from agents.sandbox.base import Limits, Priority, Snapshot
from agents.sandbox.fake import FakeFactory, FakeSandbox, ok
from agents.sandbox.pool import MAKING, Pool, PoolSettings
from agents.sandbox.signals import Reading

ROOMY = Reading(
    memory_mb=23_000,
    memory_total_mb=24_000,
    pids=30_000,
    pids_total=32_768,
    fds=19_000,
    disk_mb=50_000,
    cpu_pressure=10.0,
    memory_pressure=0.0,
    io_pressure=None,
)
LONG_S = 50_000.0


class Jump(selectors.SelectSelector):
    """Moves the clock on instead of waiting. Raises when nothing would ever happen again: a lost wake-up."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list:
        happened = super().select(0)
        if not happened and timeout is None:
            raise RuntimeError("everybody waits, and nothing will ever wake them")
        if not happened:
            self.now += timeout
        if self.now > LONG_S:
            raise RuntimeError("everybody waits, and only timers go on")
        return happened


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop on that clock."""

    def __init__(self) -> None:
        self.clock = Jump()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """asyncio.run on a jumping clock."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(main)


def now() -> float:
    """Of the running loop."""
    return asyncio.get_running_loop().time()


async def settle() -> None:
    """Let everything happen that happens without time passing."""
    for _ in range(50):
        await asyncio.sleep(0)


class SlowSandbox(FakeSandbox):
    """Takes its factory's `close_s` to close; counts as there until then. The command `sleep` takes 10 s."""

    factory: "SlowFactory"
    ended = False

    async def run(self, command, **options):
        if command == "sleep":
            await asyncio.sleep(10)
        return await super().run(command, **options)

    async def close(self) -> None:
        await super().close()
        self.factory.closing += 1
        self.factory.most_closing = max(self.factory.most_closing, self.factory.closing)
        await asyncio.sleep(self.factory.close_s)
        self.factory.closing -= 1
        self.ended = True


class SlowFactory(FakeFactory):
    """Takes `open_s`, fails with `error` when set, and keeps count of how many there were at once."""

    def __init__(self, open_s: float = 0.0, close_s: float = 0.0) -> None:
        super().__init__(lambda sandbox, call: ok())
        self.open_s, self.close_s = open_s, close_s
        self.opening = self.most_opening = self.most_there = self.closing = self.most_closing = 0
        self.error: Exception | None = None
        self.asked: list[Limits] = []
        self.closed = False

    @property
    def there(self) -> int:
        """Sandboxes that exist, the half-made and half-closed included."""
        return self.opening + sum(not sandbox.ended for sandbox in self.opened)

    async def open(self, limits: Limits, priority: Priority = "latency", files=None) -> SlowSandbox:
        self.asked.append(limits)
        self.opening += 1
        try:
            self.most_opening = max(self.most_opening, self.opening)
            self.most_there = max(self.most_there, self.there)
            await asyncio.sleep(self.open_s)
            if self.error is not None:
                raise self.error
            assert not self.closed, "made after the factory was closed"
            sandbox = SlowSandbox(self.script, limits, priority, files)
            sandbox.factory = self
            self.opened.append(sandbox)
            return sandbox
        finally:
            self.opening -= 1

    async def fork(self, snapshot: Snapshot, priority: Priority = "latency") -> SlowSandbox:
        return await self.open(snapshot.limits, priority, snapshot.files)

    async def close(self) -> None:
        await super().close()
        self.closed = True


class Host:
    """Made-up signals: `host.change(memory_mb=100)`."""

    def __init__(self, reading: Reading = ROOMY) -> None:
        self.reading = reading
        self.reads = 0
        self.when_read = lambda: None

    def __call__(self) -> Reading:
        self.reads += 1
        self.when_read()
        return self.reading

    def change(self, **fields) -> None:
        self.reading = dataclasses.replace(self.reading, **fields)


def play(
    body: Callable[[Pool, SlowFactory, Host], Coroutine[Any, Any, Any]],
    settings: PoolSettings = PoolSettings(max_live=3),  # noqa: B008
    **speed: float,
) -> Any:
    """Run `body(pool, factory, host)` on the jumping clock, close the pool; were bounds kept, and is nothing left?"""

    async def main() -> Any:
        factory, host = SlowFactory(**speed), Host()
        pool = Pool(factory, settings, host)
        try:
            return await body(pool, factory, host)
        finally:
            await pool.close()
            assert factory.closed and not factory.there and factory.most_there <= settings.max_live
            assert factory.most_opening <= MAKING
            assert pool.metrics().making == pool.metrics().spares == sum(pool.metrics().live.values()) == 0

    return run(main())
